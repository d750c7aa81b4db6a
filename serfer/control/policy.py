"""The contract of a provisioning policy: from the load seen so far to how many instances there should be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Wanted:
    """How many instances should be on, whether they boot or serve, and why, in a few words for logs and counters."""

    instances: int
    reason: str


class Policy(Protocol):
    """Says how many instances there should be, told the load as time goes by.

    It holds what it has learnt and nothing else: no clock, no view of the fleet. Whoever asks makes it so, and says so
    where he can't.
    """

    name: str

    def observe(self, elapsed_s: float, rate: float) -> Wanted:
        """Take note that queries came at `rate` per second for the `elapsed_s` seconds up to now, and decide anew."""
        ...

    def resume(self, instances: int) -> None:
        """Go on from so many instances that are on already: those that a controller before this one started."""
        ...
