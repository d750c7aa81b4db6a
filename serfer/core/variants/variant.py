"""A variant: one way of answering a network's queries, what it costs, takes and gets right, and why it is selected."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final

from serfer.core.dataclass_codec import Bounds

_Z: Final = 1.959963984540054  # of the standard normal distribution: 95% lie within
PRECISIONS: Final = ("fp32", "fp16", "int8")
INSTRUCTION_SETS: Final = (
    *("sse4_1", "avx2", "avx_vnni", "avx512bw", "avx512_vnni", "amx_int8"),
    *("asimd", "asimddp", "i8mm", "sve"),
)
"""What the kernel calls them, of x86 and of ARM, the oldest first."""
CUDA: Final = "cuda"
"""In place of them, for a network on a GPU."""
_LINES: Final = ("flags", "Features")


class Place(StrEnum):
    """Where a variant runs."""

    FUNCTIONS = "functions"
    """The Lambda functions of a plan."""
    INSTANCE = "instance"
    """The whole network on instances of a type, batched."""


class Source(StrEnum):
    """Where a figure comes from."""

    MEASURED = "measured"
    PREDICTED = "predicted"


@dataclass(frozen=True, slots=True)
class Figure:
    """A number and where it comes from."""

    value: Annotated[float, Bounds(0.0)]
    source: Source

    @classmethod
    def measured(cls, value: float) -> Figure:
        return cls(value, Source.MEASURED)

    @classmethod
    def predicted(cls, value: float) -> Figure:
        return cls(value, Source.PREDICTED)


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How many of a validation set's images a variant classified correctly (first class)."""

    correct: Annotated[int, Bounds(0)]
    images: Annotated[int, Bounds(1)]

    @property
    def share(self) -> float:
        return self.correct / self.images

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% confidence interval of the share: Wilson's score interval (JASA 22, 1927), which stays in [0, 1]."""
        share, images = self.share, self.images
        middle = share + _Z**2 / (2 * images)
        spread = _Z * math.sqrt(share * (1 - share) / images + _Z**2 / (4 * images**2))
        scale = 1 + _Z**2 / images
        return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)

    @property
    def low(self) -> float:
        """The interval's lower end, by which a variant meets an accuracy that is asked for."""
        return self.interval[0]


@dataclass(frozen=True, slots=True)
class Variant:
    """One way of answering the queries of a network version.

    `name` is unique in the application. `artefact` is the digest of the plan directory in the registry, `plan` the
    digest of its plan. On functions, `kind` is empty, `batch` is 1 and `memory_mb` the largest function's; on instances
    `kind` is the type of the scenario, and `batch` the largest batch. `made` says in words how it was made.
    `measured_on` are the instruction sets with which the accuracy of a network on instances was measured, or "cuda";
    empty where they are not known.

    `latency_ms` is the 95th percentile of a query of one image where it is warm or loaded, with a full batch on
    instances (measured), or the predicted time. `load_ms` is what a query waits in addition where it is not (a cold
    start, or the loading of the network), `peak_mb` the memory that it takes, `qps` the images a second that one
    instance answers, or all functions that the account may run at once. `usd` are the dollars of a query: on instances
    those of its share of a saturated one.
    """

    name: str
    network: str
    version: Annotated[int, Bounds(1)]
    place: Place
    precision: str
    artefact: str
    plan: str
    accuracy: Accuracy | None
    latency_ms: Figure
    load_ms: Figure
    peak_mb: Figure
    qps: Figure
    usd: Figure
    kind: str = ""
    batch: Annotated[int, Bounds(1)] = 1
    memory_mb: Annotated[int, Bounds(0)] = 0
    tasks: Annotated[int, Bounds(1)] = 1
    made: str = ""
    measured_on: tuple[str, ...] = ()

    @property
    def least_accuracy(self) -> float:
        """The accuracy that the variant has for sure, at 95%; 0 where none was measured."""
        return self.accuracy.low if self.accuracy else 0.0


class VariantState(StrEnum):
    """The state of a variant at a place (INFaaS, section 4, figure 4)."""

    INACTIVE = "inactive"
    """Not loaded: its functions are cold, or no instance has it."""
    ACTIVE = "active"
    """Loaded, and serving less than its peak throughput."""
    OVERLOADED = "overloaded"
    """Serving at its peak throughput."""
    INTERFERED = "interfered"
    """Not overloaded, but slower than profiled."""


class SelectionReason(StrEnum):
    """Why a variant was selected; the values are labels of metrics."""

    ACTIVE = "the cheapest active variant that meets the objectives"
    INACTIVE = "the inactive variant that meets them soonest, loading included"
    NEAREST = "no variant meets the objectives: the nearest one"
    BUSY = "the variants that meet the objectives are overloaded, interfered or full: the least loaded first"
    NAMED = "named by the query"


@dataclass(frozen=True, slots=True)
class Selection:
    """The variant that answers a query, and why.

    `missed` says by how much it misses each objective, by the objective's name and in its unit; empty where it meets
    all of them. `place` is where it runs or is to be loaded: an instance, or "functions"; empty for a variant of
    instances where none is on that could load it.
    """

    variant: str
    reason: SelectionReason
    missed: dict[str, float] = field(default_factory=dict)
    place: str = ""


def instruction_sets_in(cpuinfo: str) -> tuple[str, ...]:
    """Return those of INSTRUCTION_SETS that the text of /proc/cpuinfo has of its first processor."""
    for line in cpuinfo.splitlines():
        name, _, flags = line.partition(":")
        if name.strip() in _LINES:
            has = set(flags.split())
            return tuple(known for known in INSTRUCTION_SETS if known in has)
    return ()


def caution(measured_on: Sequence[str], here: Sequence[str]) -> str:
    """Return why an accuracy in 8 bits that was measured elsewhere may be another here; empty where it is not."""
    if not measured_on:
        return f"on which processor its accuracy was measured is not known, this one has {_join_names(here)}"
    if not here:
        return f"its accuracy was measured with {_join_names(measured_on)}, what this processor has is not known"
    lacks = [known for known in measured_on if known not in here]
    adds = [known for known in here if known not in measured_on]
    differs = [*([f"lacks {_join_names(lacks)}"] if lacks else []), *([f"adds {_join_names(adds)}"] if adds else [])]
    own = " and ".join(differs)
    return f"its accuracy was measured with {_join_names(measured_on)}, this processor {own}" if own else ""


def _join_names(names: Sequence[str]) -> str:
    return ", ".join(names) or "none that are known"
