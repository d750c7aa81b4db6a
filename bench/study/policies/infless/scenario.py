"""A cluster, the functions on it, and their profiles: what INFless' autoscaler and its baselines compute with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Final

from serfer.control.scenario import CLUSTER, parse_file, read_tables
from serfer.core.costs.operator_costs import SAFETY
from serfer.core.dataclass_codec import Bounds, structure
from serfer.core.errors import InputError
from serfer.core.units import MS_PER_S
from serfer_bench.study.policies.infless.dispatch import ALPHA
from serfer_bench.study.policies.infless.options import Function, Sizes, function_of
from serfer_bench.study.policies.infless.policy import RESERVE_S
from serfer_bench.study.policies.infless.profiles import WHOLE_GPU, Branches, Chain, Operator, Part
from serfer_bench.study.policies.infless.scheduling import FULL_FIT
from serfer_bench.study.policies.infless.servers import Servers
from serfer_bench.study.policies.infless.uniform import KEEP_ALIVE_S

_Positive = Annotated[float, Bounds(1e-9, 1e9)]
_NotNegative = Annotated[float, Bounds(0.0, 1e9)]
_Count = Annotated[int, Bounds(1, 100_000)]
_Sizes = tuple[Annotated[int, Bounds(1, 1024)], ...]
_MAX_SERVERS, _MAX_TABLES, _MAX_SIZES = 100_000, 1000, 32
MAX_NAME: Final = 64
"""Characters of a name."""


@dataclass(frozen=True)
class ServerKind:
    """So many like servers, each with cores and whole GPUs, at a price while it has an instance."""

    count: _Count
    cores: _Count
    gpus: Annotated[int, Bounds(0, 64)] = 0
    usd_per_hour: _NotNegative = 0.0


@dataclass(frozen=True)
class ClusterFacts:
    """What a core and a GPU do (GFLOPS, for beta) and cost, and the values that configurations are made of."""

    core_gflops: _Positive
    gpu_gflops: _Positive
    usd_per_core_hour: _NotNegative
    usd_per_gpu_hour: _NotNegative
    batches: _Sizes
    cores: _Sizes
    shares: tuple[Annotated[int, Bounds(0, WHOLE_GPU)], ...]
    images_per_core: _Positive = 1e9

    @property
    def sizes(self) -> Sizes:
        """Batches, cores and shares, and beta from FLOPS (3.4)."""
        beta = self.core_gflops / (self.gpu_gflops / WHOLE_GPU)
        return Sizes(self.batches, self.cores, self.shares, beta, self.images_per_core)


@dataclass(frozen=True)
class Profile:
    """A network's operators, and how they follow one another: `graph` has parts in order, each some branches of names.

    Without `graph` the operators are a chain.
    """

    name: str
    operators: tuple[Operator, ...]
    graph: tuple[tuple[tuple[str, ...], ...], ...] = ()

    @cached_property
    def network(self) -> Part:
        known = {operator.name: operator for operator in self.operators}
        if not self.graph:
            return Chain(self.operators)
        return Chain([Branches([Chain([known[name] for name in branch]) for branch in part]) for part in self.graph])


@dataclass(frozen=True)
class FunctionSpec:
    """A function: its profile, SLO and cold start, and a load, whose rates are multiplied by `factor`.

    A `load` is a file or a generator, as `serfer study simulate` has it; empty for that of the command line.
    """

    name: str
    profile: str
    slo_ms: _Positive
    cold_ms: _NotNegative
    load: str = ""
    factor: _Positive = 1.0


@dataclass(frozen=True)
class PolicyFacts:
    """Parameters of policies; `exec_error` is how far a configuration's times are from its profile, either way.

    `windows` names a window policy, such as lsth (serfer/control/windows); empty for none.
    """

    alpha: Annotated[float, Bounds(0.0, 1.0)] = ALPHA
    offset: Annotated[float, Bounds(0.0, 10.0)] = SAFETY
    full_fit: _Positive = FULL_FIT
    rounded_rates: bool = False
    reserve_s: _NotNegative = RESERVE_S
    windows: str = ""
    keep_alive_s: _NotNegative = KEEP_ALIVE_S
    exec_error: Annotated[float, Bounds(0.0, 0.9)] = 0.0


@dataclass(frozen=True)
class ClusterScenario:
    """Servers and functions. Raises InputError for names that are doubled or unknown, and for none or too many."""

    cluster: ClusterFacts
    servers: tuple[ServerKind, ...]
    profiles: tuple[Profile, ...]
    functions: tuple[FunctionSpec, ...]
    policy: PolicyFacts = PolicyFacts()

    def __post_init__(self) -> None:
        _check_count("servers", self.servers)
        if sum(server.count for server in self.servers) > _MAX_SERVERS:
            raise InputError(f"servers: there are at most {_MAX_SERVERS:,}")
        for name in ("batches", "cores", "shares"):
            if not 1 <= len(getattr(self.cluster, name)) <= _MAX_SIZES:
                raise InputError(f"cluster.{name} has 1 to {_MAX_SIZES} values")
        _check_names("profiles", [profile.name for profile in self.profiles])
        _check_names("functions", [function.name for function in self.functions])
        for number, one in enumerate(self.profiles):
            _check_profile(f"profiles[{number}]", one)
        known = {profile.name for profile in self.profiles}
        for number, each in enumerate(self.functions):
            if each.profile not in known:
                raise InputError(f"functions[{number}].profile: there is no {each.profile!r:.60} among [[profiles]]")

    def new_servers(self) -> Servers:
        each = chain.from_iterable([(server.cores, server.gpus)] * server.count for server in self.servers)
        return Servers(each, self.cluster.sizes)

    def new_functions(self) -> list[Function]:
        networks = {profile.name: profile.network for profile in self.profiles}
        facts = self.policy
        return [
            function_of(
                function.name,
                networks[function.profile],
                function.slo_ms / MS_PER_S,
                self.cluster.sizes,
                offset=facts.offset,
                rounded=facts.rounded_rates,
            )
            for function in self.functions
        ]

    @property
    def server_usd_per_hour(self) -> list[float]:
        return list(chain.from_iterable([server.usd_per_hour] * server.count for server in self.servers))

    def warnings(self) -> list[str]:
        return [
            f"function {one.name}: no configuration answers within slo_ms {one.slo_s * MS_PER_S:g}"
            for one in self.new_functions()
            if not one.options
        ]


_MAX_CLUSTER_BYTES: Final = 1024 * 1024  # profiles of many operators


def parse_cluster(tables: Mapping[str, Any]) -> ClusterScenario:
    """Return what a TOML document describes (docs/explanation/infless.md has the format)."""
    return structure(ClusterScenario, tables, "scenario", error=InputError)


def _check_count(where: str, tables: Sequence[object]) -> None:
    if not 1 <= len(tables) <= _MAX_TABLES:
        raise InputError(f"a cluster's scenario has 1 to {_MAX_TABLES:,} [[{where}]] tables, not {len(tables)}")


def _check_names(where: str, names: Sequence[str]) -> None:
    _check_count(where, names)
    for number, name in enumerate(names):
        if not 1 <= len(name) <= MAX_NAME or not name.isprintable():
            raise InputError(f"{where}[{number}].name has 1 to {MAX_NAME} printable characters, not {name!r:.80}")
        if name in names[:number]:
            raise InputError(f"{where}[{number}].name: {name!r} is there twice")


def _check_profile(where: str, profile: Profile) -> None:
    _check_names(f"{where}.operators", [operator.name for operator in profile.operators])
    known = {operator.name for operator in profile.operators}
    for number, part in enumerate(profile.graph):
        if not part or not all(part):
            raise InputError(f"{where}.graph[{number}] has one branch or more, each with an operator")
        for name in chain.from_iterable(part):
            if name not in known:
                raise InputError(f"{where}.graph[{number}]: there is no operator {name!r:.60} in {where}.operators")


def describes_cluster(path: Path) -> bool:
    return CLUSTER in read_tables(path, _MAX_CLUSTER_BYTES)


def read_cluster(path: Path) -> ClusterScenario:
    return parse_file(path, parse_cluster, read_tables(path, _MAX_CLUSTER_BYTES))
