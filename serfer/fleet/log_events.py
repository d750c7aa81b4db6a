"""Log events of the pool, in the form that serfer/api/observability/logs.py writes."""

from __future__ import annotations

import logging
from typing import Any

_log = logging.getLogger("serfer.fleet")


def log_event(level: int, event: str, **fields: Any) -> None:  # noqa: ANN401 - any JSON value
    """Log an event with its fields."""
    _log.log(level, event, extra={"serfer": fields})
