"""Values of several seeds in one cell."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Several:
    """A value for each seed, shown as the least to the largest."""

    values: tuple[float, ...]

    def __format__(self, spec: str) -> str:
        least, most = format(min(self.values), spec), format(max(self.values), spec)
        return least if least == most else f"{least} to {most}"
