"""Log events of the pool, in the form that serfer/api/observability/logs.py writes."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from serfer.core.errors import SerferError

_log = logging.getLogger("serfer.fleet")
CHANGED_S: Final = 30.0
"""Seconds after which a line is logged that differs from the last one."""
SAME_S: Final = 300.0
"""Seconds after which the same line is logged again."""


def log_event(
    level: int,
    event: str,
    error: BaseException | None = None,
    /,
    **fields: Any,  # noqa: ANN401 - any JSON value
) -> None:
    """Log an event with its fields, and with the traceback of an `error` that is a bug and not what can happen."""
    bug = None if isinstance(error, SerferError | OSError) else error
    _log.log(level, event, exc_info=bug, extra={"serfer": fields})


@dataclass(frozen=True)
class _LastMessage:
    message: str
    at: float


@dataclass(frozen=True)
class TroubleLog:
    """Logs trouble of what is tried again each second: when it begins, changes or ends, and rarely while it lasts.

    Its lines are warnings `event`, of each key by itself, on an injected clock in seconds.
    """

    event: str
    clock: Callable[[], float] = time.monotonic
    _last: dict[Hashable, _LastMessage] = field(default_factory=dict)

    def note(
        self,
        key: Hashable,
        message: str,
        error: BaseException | None = None,
        /,
        **fields: Any,  # noqa: ANN401 - any JSON value
    ) -> None:
        """Log what is wrong with `key`, unless that was done lately."""
        now, last = self.clock(), self._last.get(key)
        if last is None or now - last.at >= (SAME_S if message == last.message else CHANGED_S):
            self._last[key] = _LastMessage(message, now)
            log_event(logging.WARNING, self.event, error, **fields, message=message)

    def over(self, key: Hashable, **fields: Any) -> None:  # noqa: ANN401 - any JSON value
        if self.forget(key):
            log_event(logging.INFO, f"{self.event} is over", **fields)

    def forget(self, key: Hashable) -> bool:
        return self._last.pop(key, None) is not None


class Troubles(Counter[str]):
    """Counts the errors that a loop survives, by the part that failed, and logs them as TroubleLog does."""

    def __init__(self, event: str, clock: Callable[[], float]) -> None:
        super().__init__()
        self._log = TroubleLog(event, clock)

    @contextlib.contextmanager
    def survived(self, part: str) -> Iterator[None]:
        """Run a block, any error of which counts and goes no further."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - any error: the loop goes on
            self[part] += 1
            self._log.note(part, f"{type(error).__name__}: {error}".partition("\n")[0], error, of=part)
        else:
            self._log.over(part, of=part)
