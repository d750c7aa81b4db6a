"""The interface of a system under load, and its report of queries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from serfer.core.keys import StoreCounts
from serfer_bench.core.part_times import Times

Pixels = NDArray[np.uint8]
Logits = NDArray[np.float32]


@dataclass(frozen=True)
class Totals:
    """The costs of a system so far; `usd` to `hedges` are None where it does not report them."""

    bytes_put: int = 0
    bytes_get: int = 0
    polls: int = 0
    usd: float | None = None
    cold: int | None = None
    retries: int | None = None
    hedges: int | None = None

    def __sub__(self, other: Totals) -> Totals:
        return Totals(
            self.bytes_put - other.bytes_put,
            self.bytes_get - other.bytes_get,
            self.polls - other.polls,
            None if self.usd is None or other.usd is None else self.usd - other.usd,
            _less(self.cold, other.cold),
            _less(self.retries, other.retries),
            _less(self.hedges, other.hedges),
        )


def _less(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one - other


class System(ABC):
    """Answers queries, any number at once, as a context manager that leaves nothing running."""

    name: str

    @abstractmethod
    def submit(self, pixels: Pixels) -> Future[Logits]:
        """Start a query of (N, H, W, C) pixels and return its (N, K) logits to come; raises InputError at once."""

    @abstractmethod
    def counts(self) -> StoreCounts:
        """Return what all ended queries moved through the store, and how often they polled it."""

    def totals(self) -> Totals:
        """Return what all ended queries spent, as far as the system reports it."""
        counts = self.counts()
        return Totals(counts.bytes_put, counts.bytes_get, counts.exists)

    def take_times(self) -> Times:
        """Return what parts of the queries that ended since the last call took, as far as the system times them."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Stop everything; queries in flight fail, those that wait are cancelled."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
