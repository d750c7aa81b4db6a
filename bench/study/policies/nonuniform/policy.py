"""The policy `nonuniform`: instances of one type with batch sizes of their own, as section 3.2 of INFless has them.

    R > R_max                                  instances for the rest, where these are not dearer than Lambda
    alpha R_min + (1 - alpha) R_max <= R       as it is
    below                                      smaller batches at once; fewer instances after a boot's time

Lambda has what instances that boot will take, and the rest that is too little for one. Where the paper starts and stops
functions on the servers of a cluster, in seconds (Algorithm 1, the policy `infless` of study/policies/infless), here
are whole machines that take minutes to boot and cost the same with any batch size: so sizes change without a restart,
and an instance that is too much goes when it has idled for as long as its boot took.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

from serfer.control.policy import InstanceCount, InstanceGroup, Observation, ProvisioningPlan, on_demand_in
from serfer.control.scenario import Market, Scenario
from serfer_bench.study.policies.infless.dispatch import Case, case_of
from serfer_bench.study.policies.nonuniform.rate_dispatcher import MeanRate, RateDispatcher
from serfer_bench.study.policies.nonuniform.sizes import Size, sizes_of

_MEAN_S: Final = 10.0  # of the rate
_MOST: Final = 1000  # instances: no pool has more
_ROUNDING: Final = 1e-9


def mix(rate: float, sizes: Sequence[Size], least: float) -> tuple[Size, ...]:
    """Return the sizes of the fewest instances that take `rate` queries a second, largest first.

    `sizes` come largest first. Instances of one type cost the same, so all but one have the size that takes most
    (Algorithm 1 tries the largest batch first); the last one has the largest size whose range holds the rest. Below
    `least` queries a second an instance is dearer than Lambda, which gets the rest then.
    """
    if not sizes or sizes[0].up < least:
        return ()
    bulk = sizes[0]
    whole = math.floor(rate / bulk.up + _ROUNDING)
    rest = max(0.0, rate - whole * bulk.up)
    if rest <= _ROUNDING * bulk.up or rest < least:
        return (bulk,) * whole
    return (*(bulk,) * whole, holding(rest, sizes))


def holding(rate: float, sizes: Sequence[Size]) -> Size:
    """Return the largest size whose range holds a rate that the largest takes; between two ranges the upper one."""
    for size in sizes:
        if size.low <= rate <= size.up:
            return size
    return min((size for size in sizes if size.up >= rate), key=lambda size: size.up, default=sizes[0])


class NonUniform:
    """Scales the scenario's first type on demand, each instance with a batch size; dispatches by their rates."""

    name = "nonuniform"

    def __init__(self, scenario: Scenario) -> None:
        self._scenario, self._kind = scenario, scenario.instance
        self._sizes = sizes_of(self._kind, scenario.slo_ms)
        self._least = self._kind.usd_per_s / scenario.serverless.usd_per_query  # queries/s that are worth an instance
        self._rate = MeanRate(_MEAN_S)
        self._on: tuple[Size, ...] = ()
        self._ample_s = 0.0

    def purchases(self) -> list[tuple[str, Market]]:
        return [(self._kind.name, Market.ON_DEMAND)]

    def dispatcher(self) -> RateDispatcher:
        return RateDispatcher(self._scenario)

    def observe(self, seen: Observation) -> ProvisioningPlan:
        rate = self._rate.observe(seen.rate, seen.elapsed_s)
        low, up = sum(one.low for one in self._on), sum(one.up for one in self._on)
        case = case_of(rate, low, up)
        self._ample_s = self._ample_s + seen.elapsed_s if case is Case.AMPLE and self._on else 0.0
        if case is Case.SHORT:
            wanted = mix(rate, self._sizes, self._least)
            if sum(one.up for one in wanted) > up:
                self._on = wanted[:_MOST]
        elif case is Case.AMPLE:
            self._shrink(rate)
        return self._plan(f"{rate:.1f} queries/s: {case}")

    def resume(self, fleet: Sequence[InstanceGroup]) -> None:
        count = min(on_demand_in(fleet, self._kind), _MOST)
        self._on = self._sizes[:1] * count
        self._ample_s = 0.0

    def _shrink(self, rate: float) -> None:
        """Have fewer instances after a boot's time, until then smaller batches for what the others leave."""
        wanted = mix(rate, self._sizes, self._least)
        if len(wanted) < len(self._on):
            if self._ample_s < self._kind.boot_s - _ROUNDING:
                return
            self._ample_s = 0.0
        elif sum(one.low for one in wanted) >= sum(one.low for one in self._on):
            return
        self._on = wanted

    def _plan(self, reason: str) -> ProvisioningPlan:
        counts = Counter(one.batch for one in self._on)
        groups = (
            InstanceCount(self._kind.name, Market.ON_DEMAND, counts[batch], batch)
            for batch in sorted(counts, reverse=True)
        )
        return ProvisioningPlan(tuple(groups), reason)
