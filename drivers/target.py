"""The contract of a target, which answers queries with the whole network: an instance, or a pool of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from serfer.drivers.driver import RequestContext


@dataclass(frozen=True)
class InstanceAnswer:
    """The answer of an instance: (N, K) float32 logits, and how they were computed.

    `batch` is how many images ran together, those of other queries included. `cost_usd` is what the instance costs
    while it answers so many images at its full load; 0 where its price is unknown.
    """

    logits: NDArray[np.float32]
    instance: str
    batch: int
    computed_ms: float
    cost_usd: float


class Target(Protocol):
    """Answers queries with the whole network, any number at once, on one event loop."""

    async def run(self, batch: NDArray[Any], deadline_s: float, context: RequestContext) -> InstanceAnswer | None:
        """Answer one query, or return None for one that should run through the plan's functions.

        `batch` is (N, C, H, W) float32, or (N, H, W, C) uint8 pixels that are to be normalised as the plan says. Raises
        the project's errors; CeilingError if the budget has no room for the query on either target.
        """
        ...

    async def close(self) -> None: ...
