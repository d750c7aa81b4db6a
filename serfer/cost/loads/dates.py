"""Dates and times as texts."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

_DATE: Final = re.compile(r"\d{4}[-/]\d\d")


def unix_time(text: str) -> float | None:
    """Return the Unix time of a date and time, in UTC where it names no zone; None where it is none."""
    if not _DATE.match(text):
        return None
    try:
        time = datetime.fromisoformat(text.replace("/", "-"))
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
