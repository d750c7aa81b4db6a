"""What the default policy asks of a guess: for each capacity level, whether it should be on."""

from __future__ import annotations

from typing import Protocol

from serfer.control.policies.capacity_levels import Bools, Floats
from serfer.control.policy import Observation
from serfer.control.snapshots import SavedFields, Snapshot


class Guess(Protocol):
    """Decides for each level as if it alone were followed; pure and deterministic.

    Load does not depend on decisions, so what a guess would have cost is known whether or not it is followed.
    """

    @property
    def reason(self) -> str:
        """What its decisions rest on, in a few words for logs."""
        ...

    @property
    def on(self) -> Bools:
        """The levels that should be on: (levels,); off where it knows too little."""
        ...

    def grow(self, levels: int) -> None:
        """Append levels, which are off, up to so many."""
        ...

    def units(self, elapsed_s: float, lambda_units: Floats) -> Floats:
        """Return what each level cost in the last `elapsed_s` seconds, (levels,) in instance-seconds.

        `lambda_units` is what Lambda cost a second. NaN for a level of which the guess knew too little.
        """
        ...

    def observe(self, seen: Observation) -> bool:
        """Learn from an observation, and decide; return whether costs are to be compared again."""
        ...

    def snapshot(self) -> Snapshot:
        """Return all that was learnt, as plain JSON values."""
        ...

    def restore(self, saved: SavedFields, levels: int) -> None:
        """Go on from the snapshot of so many levels, in a guess that has seen nothing; raises InputError."""
        ...
