"""Lines of the log about the pool, in the form that serfer/api/observability/logs.py writes."""

from __future__ import annotations

import logging
from typing import Any

_log = logging.getLogger("serfer.fleet")


def tell(level: int, event: str, **fields: Any) -> None:  # noqa: ANN401 - any JSON value
    """Write a line: an event and what is known of it."""
    _log.log(level, event, extra={"serfer": fields})
