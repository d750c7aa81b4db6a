"""Residency: which networks an instance unloads so that another one has room (INFaaS, section 3.3).

The memory of networks is bounded. Those that compute or have queries waiting stay; of the others the least recently
used go first, and none whose going is not needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Occupant:
    """A network in memory: its bytes, when it was last used, in seconds on any one clock, and whether it must stay."""

    name: str
    size: int
    last_used: float
    busy: bool


def victims(size: int, occupants: Iterable[Occupant], bound: int) -> tuple[str, ...] | None:
    """Return the networks to unload so that one of `size` bytes fits into `bound`, in the order of their last use.

    None where it does not fit even without all that may go: then none should.
    """
    known = sorted(occupants, key=lambda one: (one.last_used, one.name))
    excess = sum(one.size for one in known) + size - bound
    idle = [one for one in known if not one.busy]
    if sum(one.size for one in idle) < excess:
        return None
    chosen: list[Occupant] = []
    for one in idle:
        if excess <= 0:
            break
        chosen.append(one)
        excess -= one.size
    for one in reversed(chosen[:]):  # a large one may have made a smaller one's going needless
        if one.size <= -excess:
            chosen.remove(one)
            excess += one.size
    return tuple(one.name for one in chosen)
