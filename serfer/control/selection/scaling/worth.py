"""How many instances are worth their price: the break-even rule of the provisioning policies, for applications.

The paper has no functions beside its workers, and no rule for workers to go. Here functions can answer, so an instance
is only worth its price where functions would cost more. Each instance that the demand could fill is a capacity level of
the work-function algorithm (serfer/control/policies/ski_rental.py): it is worth it once functions have cost as much
more as its start does, and no longer once it has been dearer by that much.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from serfer.control.policies.ski_rental import WorkFunction
from serfer.control.scenario import S_PER_HOUR

_MOST_LEVELS: Final = 256
_ROUNDING: Final = 1e-9
_LEAST_USD: Final = 1e-12  # what a start costs at least, for types without a price


class InstanceWorth:
    """The levels of one pool, whose instances take `boot_s` to start."""

    def __init__(self, boot_s: float) -> None:
        self._boot_s = boot_s
        self._price = 0.0
        self._levels = WorkFunction(_LEAST_USD)
        self._stranded = 0

    @property
    def count(self) -> int:
        return max(self._stranded, sum(self._levels.on))

    def resume(self, count: int) -> None:
        self._levels.resume(count)

    def observe(self, elapsed_s: float, usd_per_hour: float, demand: PoolDemand) -> None:
        """Add what the last seconds cost on functions, and on instances at a price."""
        self._set_price(usd_per_hour)
        self._stranded = math.ceil(demand.stranded)
        filled = demand.stranded + demand.priced
        self._levels.grow(min(_MOST_LEVELS, math.ceil(filled)))
        usd_per_s = usd_per_hour / S_PER_HOUR
        each_usd = demand.functions_usd / demand.priced if demand.priced else 0.0
        priced = [min(1.0, max(0.0, demand.priced - level)) for level in range(len(self._levels.on))]
        self._levels.advance((usd_per_s - share * each_usd) * elapsed_s for share in priced)

    def _set_price(self, usd_per_hour: float) -> None:
        if usd_per_hour == self._price:
            return
        on, self._price = sum(self._levels.on), usd_per_hour
        self._levels = WorkFunction(max(_LEAST_USD, self._boot_s * usd_per_hour / S_PER_HOUR))
        self._levels.resume(on)


class PoolDemand:
    """The demand on one pool, in instances that it would fill, and the dollars that functions take a second for it.

    `stranded` is the part that functions are not good enough for.
    """

    __slots__ = ("functions_usd", "priced", "stranded")

    def __init__(self) -> None:
        self.priced = self.stranded = self.functions_usd = 0.0

    def add(self, rate: float, stranded: float, functions_usd: float, qps: float) -> None:
        """Add a network's queries a second, of which an instance answers `qps`."""
        self.stranded += stranded / qps
        self.priced += max(0.0, rate - stranded) / qps
        self.functions_usd += functions_usd


def affordable(
    wanted: Mapping[str, int], most: Mapping[str, int], prices: Mapping[str, float], max_usd_per_hour: float
) -> dict[str, int]:
    """Return how many instances of each pool there may be: at most its own number, all within the dollars an hour."""
    left, found = max_usd_per_hour, {}
    for pool, count in sorted(wanted.items()):
        price = prices.get(pool, 0.0)
        room = most[pool] if price <= 0 or math.isinf(left) else min(most[pool], math.floor(left / price + _ROUNDING))
        found[pool] = max(0, min(count, room))
        left -= found[pool] * price
    return found
