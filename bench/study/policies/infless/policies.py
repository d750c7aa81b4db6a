"""Policies of clusters by name, made for a scenario."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final

from serfer.control.windows import WindowPolicy, window_policies
from serfer.core.errors import InputError, UsageError
from serfer_bench.study.policies.infless.batch import Batch, BatchScheduled
from serfer_bench.study.policies.infless.fleet import ClusterPolicy, FrontQueue
from serfer_bench.study.policies.infless.options import Function, Option, Sizes, fixed_option
from serfer_bench.study.policies.infless.policy import Infless, InflessByEfficiency
from serfer_bench.study.policies.infless.profiles import Configuration
from serfer_bench.study.policies.infless.scenario import ClusterScenario
from serfer_bench.study.policies.infless.scheduling import Chooser, Efficiency
from serfer_bench.study.policies.infless.servers import Servers
from serfer_bench.study.policies.infless.uniform import KEEP_ALIVE_S, Uniform

INSTANCE: Final = Configuration(batch=1, cores=2, share=10)
_NO_WAIT: Final = FrontQueue(1, 0.0)


class OpenFaasPlus(Uniform):
    """Scales by the rate alone, 2 cores and 10% of a GPU for each instance, without batches or SLO (INFless, 5.1)."""

    name = "openfaas-plus"

    def __init__(
        self,
        functions: Sequence[Function],
        servers: Servers,
        sizes: Sizes,
        *,
        offset: float,
        keep_alive_s: float = KEEP_ALIVE_S,
        windows: Callable[[], WindowPolicy] | None = None,
    ) -> None:
        super().__init__(functions, servers, keep_alive_s=keep_alive_s, windows=windows)
        self._options = [fixed_option(function.network, INSTANCE, sizes, offset=offset) for function in functions]

    def option(self, function: int, rate: float) -> Option:
        del rate
        return self._options[function]

    def front(self, function: int) -> FrontQueue:
        del function
        return _NO_WAIT


Maker = Callable[[ClusterScenario], ClusterPolicy]


def _infless(kind: type[Infless], scenario: ClusterScenario, **options: Chooser) -> ClusterPolicy:
    facts = scenario.policy
    windows = _windows(scenario)
    functions, servers = scenario.new_functions(), scenario.new_servers()
    return kind(functions, servers, alpha=facts.alpha, reserve_s=facts.reserve_s, windows=windows, **options)


def _windows(scenario: ClusterScenario) -> Callable[[], WindowPolicy] | None:
    name = scenario.policy.windows
    if not name:
        return None
    try:
        return window_policies(name)
    except UsageError as error:
        raise InputError(f"policy.windows: {error}") from error


def _buffered(kind: type[Batch | BatchScheduled], scenario: ClusterScenario) -> ClusterPolicy:
    return kind(
        scenario.new_functions(),
        scenario.new_servers(),
        keep_alive_s=scenario.policy.keep_alive_s,
        windows=_windows(scenario),
    )


def _openfaas_plus(scenario: ClusterScenario) -> ClusterPolicy:
    facts = scenario.policy
    return OpenFaasPlus(
        scenario.new_functions(),
        scenario.new_servers(),
        scenario.cluster.sizes,
        offset=facts.offset,
        keep_alive_s=facts.keep_alive_s,
        windows=_windows(scenario),
    )


CLUSTER_POLICIES: Final[Mapping[str, Maker]] = MappingProxyType(
    {
        "infless": lambda scenario: _infless(Infless, scenario, chooser=Efficiency(scenario.policy.full_fit)),
        "infless-by-efficiency": partial(_infless, InflessByEfficiency),
        "batch": partial(_buffered, Batch),
        "batch-rs": partial(_buffered, BatchScheduled),
        "openfaas-plus": _openfaas_plus,
    }
)
CLUSTER_DEFAULT: Final = "infless"


def make_cluster_policy(name: str, scenario: ClusterScenario) -> ClusterPolicy:
    if name not in CLUSTER_POLICIES:
        known = ", ".join(CLUSTER_POLICIES)
        raise UsageError(f"--policy {name!r:.60} is none of a cluster's: those are {known}")
    return CLUSTER_POLICIES[name](scenario)


def refuse_cluster_policy(name: str) -> None:
    if name in CLUSTER_POLICIES:
        raise UsageError(
            f"policy {name} needs a cluster's scenario of serfer study simulate, with [[servers]] and [[functions]]; "
            "non-uniform batches of instances of one type are the policy nonuniform"
        )
