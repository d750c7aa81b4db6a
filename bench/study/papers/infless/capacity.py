"""The highest constant load that a policy places on a cluster, and INFless without each of its parts (figure 11)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from serfer_bench.study.policies.infless.fleet import ClusterPolicy
from serfer_bench.study.policies.infless.policies import make_cluster_policy
from serfer_bench.study.policies.infless.policy import Infless
from serfer_bench.study.policies.infless.scenario import ClusterScenario
from serfer_bench.study.policies.infless.scheduling import Throughput

Maker = Callable[[ClusterScenario], ClusterPolicy]
_PRECISE: Final = 0.005
_LEAST: Final = 1.0  # requests a second that count as none
_MOST: Final = 1e6


def _without_batches(scenario: ClusterScenario) -> ClusterPolicy:
    return make_cluster_policy("infless", replace(scenario, cluster=replace(scenario.cluster, batches=(1,))))


def _without_scheduling(scenario: ClusterScenario) -> ClusterPolicy:
    return Infless(scenario.new_functions(), scenario.new_servers(), chooser=Throughput())


def _over_estimating(offset: float) -> Maker:
    return lambda scenario: make_cluster_policy(
        "infless", replace(scenario, policy=replace(scenario.policy, offset=offset))
    )


def _named(name: str) -> Maker:
    return lambda scenario: make_cluster_policy(name, scenario)


SYSTEMS: Final[Mapping[str, Maker]] = {
    "openfaas-plus": _named("openfaas-plus"),
    "batch": _named("batch"),
    "batch-rs": _named("batch-rs"),
    "infless": _named("infless"),
    "without BB": _without_batches,
    "without RS": _without_scheduling,
    "OP1.5": _over_estimating(0.5),
    "OP2": _over_estimating(1.0),
    "infless-by-efficiency": _named("infless-by-efficiency"),
}
"""BB: all batches are 1; RS: the configuration with the most requests a second; OP: 50% and 100% added to times."""


@dataclass(frozen=True)
class Capacity:
    """Requests a second of all functions together, and what the instances for them occupy."""

    rps: float
    units: float
    fragments: float
    instances: int

    @property
    def per_unit(self) -> float:
        return self.rps / self.units if self.units else 0.0


def placed(scenario: ClusterScenario, make: Maker, rps: float) -> Capacity | None:
    policy = make(scenario)
    each = rps / len(scenario.functions)
    step = policy.step(0.0, [each] * len(scenario.functions))
    if step.unplaced > _PRECISE * rps:
        return None
    units = sum(one.option.units for one in step.launched)
    return Capacity(rps, units, policy.servers.fragments, len(step.launched))


def highest(scenario: ClusterScenario, make: Maker) -> Capacity:
    low, best = 0.0, Capacity(0.0, 0.0, 0.0, 0)
    high = float(len(scenario.functions))
    while high < _MOST and (found := placed(scenario, make, high)) is not None:
        low, best, high = high, found, 2 * high
    while high - low > _PRECISE * high and high > _LEAST:
        middle = (low + high) / 2
        found = placed(scenario, make, middle)
        if found is None:
            high = middle
        else:
            low, best = middle, found
    return best
