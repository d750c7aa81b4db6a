"""What INFless' authors published: profiles, the cluster, two applications, and the figures to hold against.

Numbers of figures 11, 12b and 18 are those of the plotting scripts in the authors' repository (the paper has bars), all
others of the paper's text and tables. Times of ResNet-50, SSD, MobileNet and TextCNN-69 are fitted, by non-negative
least squares of relative errors, to the profiles there; LSTM-2365 and DSSM-2389 have none: theirs are constructed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Final

from serfer.core.dataclass_codec import structure
from serfer.core.errors import InputError
from serfer_bench.study.policies.infless.profiles import Operator, Times
from serfer_bench.study.policies.infless.scenario import (
    ClusterFacts,
    ClusterScenario,
    FunctionSpec,
    PolicyFacts,
    Profile,
    ServerKind,
)

CLUSTER: Final = ClusterFacts(
    core_gflops=64.0,  # of a hardware thread, and 142 of 1% of a 2080 Ti, in the authors' code
    gpu_gflops=14_200.0,
    usd_per_core_hour=0.034,
    usd_per_gpu_hour=2.5,
    batches=(1, 2, 4, 8, 16, 32),
    cores=(2, 4, 8, 16),
    shares=(0, 10, 20, 30, 40, 50),
    images_per_core=2.0,  # larger batches take 8 s and more in the authors' profiles
)
SERVER: Final = ServerKind(count=8, cores=32, gpus=2, usd_per_hour=32 * 0.034 + 2 * 2.5)
"""Table 2: 32 hardware threads and 16 GPUs on 8 machines; the price is that of its parts."""


def _network(name: str, cpu: Times, gpu: Times) -> Profile:
    return Profile(name, (Operator("network", cpu, gpu),))


PROFILES: Final = (
    _network("resnet-50", Times(61.17, 15.13, 144.68), Times(39.82, 6.77, 5.36, 0.613)),
    _network("ssd", Times(111.8, 18.98, 134.69), Times(91.5, 44.28, 0.0, 0.537)),
    _network("mobilenet", Times(89.55, 10.72, 63.21), Times(77.56, 7.88, 7.8, 0.142)),
    _network("textcnn-69", Times(2.377, 0.137, 0.691), Times(2.748, 0.106, 0.027, 0.012)),
    _network("lstm-2365", Times(4.0, 0.137, 0.691), Times(4.5, 0.106, 0.027, 0.012)),
    _network("dssm-2389", Times(1.5, 0.07, 0.35), Times(1.8, 0.05, 0.015, 0.006)),
)
GFLOPS: Final = {
    "resnet-50": 3.89,
    "ssd": 2.02,
    "mobilenet": 0.05,
    "textcnn-69": 0.53,
    "lstm-2365": 0.10,
    "dssm-2389": 0.13,
}
"""Table 1 (the text's DSSM-2389 is its DSSM-2365)."""


def _of_flops(name: str, gflops: float) -> Profile:
    """Return times by FLOPS alone: half of a core's peak, 30% of a GPU's, and a few ms for each batch and image."""
    core, gpu = gflops / CLUSTER.core_gflops / 0.5, gflops / CLUSTER.gpu_gflops / 0.3
    return _network(name, Times(5.0, 0.5, 1000 * core), Times(8.0, 0.5, 0.5, 1000 * gpu))


OSVT, QA_ROBOT = "OSVT", "Q&A robot"
NETWORKS: Final = {
    OSVT: ("ssd", "mobilenet", "resnet-50"),
    QA_ROBOT: ("textcnn-69", "lstm-2365", "dssm-2389"),
}
SLO_MS: Final = {OSVT: 200.0, QA_ROBOT: 50.0}
COLD_MS: Final = 3000.0
"""Constructed: the paper has no time of a cold start."""
_ERROR: Final = 0.1
"""Constructed: execution times are up to 10% from their profiles."""

FIGURE_11: Final = {
    OSVT: {
        "openfaas-plus": 567,
        "batch": 1151,
        "infless": 2952,
        "without BB": 1604,
        "without RS": 2305,
        "OP1.5": 1905,
        "OP2": 836,
    },
    QA_ROBOT: {
        "openfaas-plus": 736,
        "batch": 1932,
        "infless": 4602,
        "without BB": 1816,
        "without RS": 4475,
        "OP1.5": 3021,
        "OP2": 2552,
    },
}
"""Requests a second at most, on the cluster of 8."""
FIGURE_12B: Final = {150: (48, 80), 200: (52, 126), 250: (54, 144), 300: (54, 168), 350: (54, 189), 400: (54, 171)}
"""Requests per resource by SLO in ms, of BATCH and INFless, in ten-thousandths."""
FIGURE_18A: Final = {
    10: (0.215, 0.333, 0.968),
    20: (0.226, 0.349, 1.0),
    30: (0.237, 0.376, 0.968),
    40: (0.237, 0.419, 0.935),
}
"""Throughput by the number of functions, normalized: OpenFaaS+, BATCH, INFless."""
FIGURE_18B: Final = {
    150: (0.206, 0.294, 0.706),
    200: (0.206, 0.319, 0.912),
    250: (0.206, 0.333, 0.929),
    300: (0.211, 0.343, 1.0),
}
"""The same by SLO in ms, of 20 functions."""
FIGURE_12A: Final = {"sporadic": (4.3, 2.6), "periodic": (3.4, 1.8), "bursty": (3.6, 2.2)}
"""Requests per resource of INFless over those of OpenFaaS+ and of BATCH, by load (5.2)."""
TABLE_4: Final = {
    "openfaas-plus": (55.63, 2.13, 2e-5),
    "batch": (41.45, 1.34, 1.32e-5),
    "infless": (13.91, 0.51, 1.6e-6),
}
"""CPUs and GPUs per 100 requests/s, and dollars per request."""
FRAGMENTS: Final = {"infless": 0.15}
"""Figure 17b, as far as the text has it."""
VIOLATIONS: Final = {("sporadic", "openfaas-plus"): "8%", ("sporadic", "infless"): "below 5%"}
"""Figure 15a, as far as the text has it; 3.1% at most on average for INFless."""


AUTHORS, BY_FLOPS, OPERATORS = "authors", "flops", "operators"
"""Profiles fitted to the authors' measurements, constructed ones, and those combined from profiles of operators."""
_OPERATOR_GFLOPS: Final = {"resnet18": 1.8, "mobilenet-v2": 0.3, "resnet50": 4.1}
"""Networks of the zoo that stand for SSD, MobileNet and ResNet-50; no operator profiles are of the robot's."""
_OPERATOR_ERROR: Final = 0.2
"""Figure 8: combined profiles are off by 19% at most on one thread, on the machine that they are of."""


@cache
def _of_operators() -> tuple[Profile, ...]:
    """Return profiles combined from those of operators, on cores (3.3), with the constructed times of a GPU.

    The file is what `serfer study cluster-profile PLAN` writes by the shipped operator profiles.
    """
    text = (files(__package__) / "operators.toml").read_text()
    known = structure(_Profiles, tomllib.loads(text), "operators.toml", error=InputError)
    return tuple(_on_gpus(one) for one in known.profiles)


@dataclass(frozen=True)
class _Profiles:
    profiles: tuple[Profile, ...]


def _on_gpus(profile: Profile) -> Profile:
    """Return a profile whose first operator has the whole network's times on a GPU, and the others none."""
    first, *others = profile.operators
    gpu = _of_flops(profile.name, _OPERATOR_GFLOPS[profile.name]).operators[0].gpu
    made = (replace(first, gpu=gpu), *(replace(one, gpu=Times(0.0)) for one in others))
    return replace(profile, operators=made)


_PROFILES: Final[Mapping[str, Callable[[], tuple[Profile, ...]]]] = {
    AUTHORS: lambda: PROFILES,
    BY_FLOPS: lambda: tuple(_of_flops(*each) for each in GFLOPS.items()),
    OPERATORS: _of_operators,
}


@dataclass(frozen=True)
class World:
    """A set of profiles, and beta: by FLOPS as in the paper, or such that a cluster's cores are worth its GPUs."""

    profiles: str = AUTHORS
    by_scarcity: bool = False

    @property
    def beta(self) -> str:
        return "scarcity" if self.by_scarcity else "FLOPS"

    @property
    def networks(self) -> Mapping[str, tuple[str, ...]]:
        """The networks of each application; one whose networks have no such profiles is left out."""
        return NETWORKS if self.profiles != OPERATORS else {OSVT: tuple(_OPERATOR_GFLOPS)}

    def cluster(self, functions: tuple[FunctionSpec, ...], servers: int = SERVER.count) -> ClusterScenario:
        policy = PolicyFacts(exec_error=_OPERATOR_ERROR if self.profiles == OPERATORS else _ERROR)
        made = _PROFILES[self.profiles]()
        facts = CLUSTER if self.profiles == AUTHORS else replace(CLUSTER, cores=(1, 2, 4, 8), images_per_core=1e9)
        if self.by_scarcity:
            facts = replace(facts, core_gflops=facts.gpu_gflops * SERVER.gpus / SERVER.cores)
        return ClusterScenario(facts, (replace(SERVER, count=servers),), made, functions, policy)

    def application(self, name: str, slo_ms: float | None = None) -> ClusterScenario:
        slo = SLO_MS[name] if slo_ms is None else slo_ms
        return self.cluster(tuple(FunctionSpec(each, each, slo, COLD_MS) for each in self.networks[name]))


WORLDS: Final = tuple(
    World(profiles, scarce) for profiles in (AUTHORS, BY_FLOPS, OPERATORS) for scarce in (False, True)
)
SHOWN: Final = (World(AUTHORS), World(BY_FLOPS, by_scarcity=True), World(OPERATORS, by_scarcity=True))
"""The worlds of figures that are not in all of them: the paper's beta with the authors' profiles, else ours."""
