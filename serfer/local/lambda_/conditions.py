"""The conditions that a local Lambda service runs under, those of this machine unless others are set, and its counters.

AWS refuses invocations of an account that has too many, delivers an event more than once, and gives a function a
machine with a noisy neighbour: benchmarks and tests set such conditions (`CONDITIONS`) while a service is made.
"""

from __future__ import annotations

from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from serfer.local.lambda_.process import WorkerProcess


class ProcessorLimit(Protocol):
    """Holds a process to a share of the processors, from `start` to `stop`."""

    def start(self) -> None: ...
    def stop(self) -> None: ...


class Conditions:
    """Conditions under which nothing goes wrong, and all takes the time that it takes on this machine."""

    twice = False
    """Whether every event is delivered twice, and twice as many invocations have room."""

    def throttles(self) -> bool:
        return False

    def latency_s(self) -> float:
        return 0.0

    def placing_s(self, package_bytes: int) -> float:  # noqa: ARG002
        """Return how long the next environment waits for its place and its package."""
        return 0.0

    def slowness(self) -> float:
        """Return how many times as long as others the next environment takes."""
        return 1.0

    def least_init_s(self, *, restored: bool) -> float:  # noqa: ARG002
        """Return how long an initialisation takes at least."""
        return 0.0

    def limit_processors(self, process: WorkerProcess, memory_mb: int) -> ProcessorLimit | None:  # noqa: ARG002
        """Return what holds a process to the processors of so much memory; None where nothing does."""
        return None


CONDITIONS: Final[ContextVar[Conditions]] = ContextVar("CONDITIONS", default=Conditions())  # noqa: B039 - has no state
"""The conditions of services that are made in this context."""


@dataclass(slots=True)
class Counts:
    """Counters of a service since it was made.

    `invocations` are those that an environment took, by function; `failed` of them ended with an error. `refused` found
    no room, `throttled` were refused by a fault. `events` were accepted, `doubled` of them delivered twice. `slowed`
    invocations were a slow environment's.
    """

    invocations: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    refused: int = 0
    throttled: int = 0
    events: int = 0
    doubled: int = 0
    slowed: int = 0

    def as_dict(self) -> dict[str, Any]:
        return {
            "invocations": dict(self.invocations),
            "failed": self.failed,
            "refused": self.refused,
            "throttled": self.throttled,
            "events": self.events,
            "doubled": self.doubled,
            "slowed": self.slowed,
        }
