"""The contract of a target of notifications."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from serfer.offline.notify.event import JobEvent


@dataclass(frozen=True)
class Attempt:
    """How one attempt to deliver has ended: `error` is empty where it was taken.

    Where another attempt may help, `again`, not before `wait_s` seconds have passed.
    """

    error: str = ""
    again: bool = False
    wait_s: float = 0.0


class Target(Protocol):
    """Somebody who is notified of the end of a job."""

    @property
    def name(self) -> str:
        """The target as messages name it, without what may be secret."""
        ...

    def send(self, event: JobEvent, timeout_s: float) -> Attempt:
        """Try once to deliver an event, for at most about so many seconds; never raises for what a target does."""
        ...
