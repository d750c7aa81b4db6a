"""Operator costs on one vCPU: coefficients fitted to measurements, added up along a task (INFless, section 3.3).

An operator's time is the sum of its counts (multiply-accumulates, elements read, calls of the innermost loop, ...)
times the coefficients of its kind. A coefficient is never negative and every count grows with the region, so a larger
region never costs less. Along a task all operators add up, branches too: ONNX Runtime runs a task's operators one after
another.
The tiles of a stage run side by side, so among them the maximum is taken; the planner does that.

More images at once cost more of everything but weights. What vCPUs change is in
vcpus.py: part of each kind's time is divided among threads. One and two threads were measured, what more
bring is modelled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.resources import files
from typing import Annotated

from serfer.core.costs.vcpus import compute_seconds
from serfer.core.dataclass_codec import Bounds, structure, unstructure
from serfer.core.errors import InputError

FORMAT = 1
BLOCK = 16
"""Channels that ONNX Runtime keeps together (AVX-512)."""
SAFETY = 0.1
"""INFless's margin on its predictions, so that objectives are kept despite prediction errors (section 3.3)."""
_SETS = 4  # blocks of output channels that the innermost loop of a convolution computes at once
_NEAR = 1 << 17  # elements that stay in the second-level cache on the way to the next operator
_NEAR_WEIGHTS = 1 << 20  # weights that are still in some cache when the next query comes
_MAX_CHARACTERS = 1 << 20
_NS = 1e9
_NAME = "the operator profiles"


class Kind(StrEnum):
    """Kinds of operators that differ in what their time depends on."""

    CONVOLUTION = "convolution"
    IMAGE_CONVOLUTION = "image convolution"
    POINTWISE = "pointwise convolution"
    DEPTHWISE = "depthwise convolution"
    GROUPED = "grouped convolution"
    OTHER_CONVOLUTION = "other convolution"
    FULLY_CONNECTED = "fully connected"
    PRODUCT = "product"
    POOL = "pool"
    REDUCE = "reduce"
    ELEMENTWISE = "elementwise"
    FUNCTION = "function"
    COPY = "copy"
    CROP = "crop"
    REORDER_INPUT = "into blocks"
    REORDER_OUTPUT = "into order"
    REORDER_TASK_INPUT = "input into blocks"


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one operator for one image on one region; sizes in elements, `rows` and `cols` those of its output.

    `taps` is the window's area, `edges` how many columns of the output have windows that leave the map. `bounded` and
    `curved` are the elements of the result that go through an activation inside the operator, one that compares or one
    that computes more (ReLU costs nothing there); `reordered` those that are brought `to` the other form: from blocks
    of channels into order, or back. A convolution's channels are all of them, whatever its groups. `measured_s`
    are seconds on one vCPU that were measured, of work that no profile knows: more threads shorten them as they do
    its kind. Work that has `parts` is their sum.
    """

    kind: Kind
    macs: int = 0
    read: int = 0
    written: int = 0
    weights: int = 0
    channels_in: int = 1
    channels_out: int = 1
    groups: int = 1
    rows: int = 1
    cols: int = 1
    taps: int = 1
    stride: int = 1
    edges: int = 0
    bounded: int = 0
    curved: int = 0
    reordered: int = 0
    to: Kind = Kind.REORDER_OUTPUT
    measured_s: float = 0.0
    parts: tuple[Work, ...] = ()


Counts = dict[str, float]
_ONCE = frozenset({"operator", "weights", "far weights"})  # what a batch does not repeat
_SAVED_IN_PARTS = frozenset({"far", "far weights", "edges"})
"""Counts of which the parts of a work may have less, together, than the whole."""


def counts(work: Work, batch: int = 1) -> Counts:
    one = _COUNTS.get(work.kind, _count_memory)(work)
    return {name: value if name in _ONCE else batch * value for name, value in one.items()}


def _without(several: Counts, names: frozenset[str]) -> Counts:
    return {name: value for name, value in several.items() if name not in names} if names else several


def _count_memory(work: Work) -> Counts:
    return {"operator": 1, "read": work.read, "written": work.written, "far": max(0, work.written - _NEAR)}


def _count_convolution(work: Work) -> Counts:
    """MLAS computes 4 blocks of 16 output channels at once, a row of the output and a block of the input at a time.

    It loads and stores the output once for each block of the input (`passes`), multiplies with padded channels, and
    loads each input value once for each set of 4 blocks (`broadcasts`); an image's channels are not padded. Without a
    window, stride 1, all rows are one row. At the map's edges it computes one column at a time.
    """
    whole_map = work.taps == 1 == work.stride
    rows, cols = (1, work.rows * work.cols) if whole_map else (work.rows, work.cols)
    blocks = -(-work.channels_out // work.groups // BLOCK)
    inputs = work.channels_in // work.groups
    in_blocks = -(-inputs // BLOCK)
    depth = inputs if work.kind == Kind.IMAGE_CONVOLUTION else in_blocks * BLOCK
    sets = -(-blocks // _SETS)
    area = rows * cols * work.groups
    macs = area * work.taps * blocks * BLOCK * depth
    return {
        **_count_memory(work),
        **_count_activations(work),
        "macs": macs,
        "edges": macs / cols * min(work.edges, cols),
        "strided": macs * (work.stride > 1),
        "broadcasts": area * work.taps * depth * sets,
        "calls": rows * sets * in_blocks * math.sqrt(work.taps) * work.groups,
        "passes": area * blocks * BLOCK * in_blocks,
        "weights": work.groups * blocks * BLOCK * depth * work.taps,
    }


def _count_depthwise(work: Work) -> Counts:
    blocks = -(-work.channels_out // BLOCK)
    taps = work.rows * work.cols * blocks * work.taps
    return {
        **_count_memory(work),
        **_count_activations(work),
        "taps": taps,
        "strided": taps * (work.stride > 1),
        "calls": work.rows * blocks * math.sqrt(work.taps),
    }


def _count_activations(work: Work) -> Counts:
    return {"bounded": work.bounded, "curved": work.curved}


def _count_product(work: Work) -> Counts:
    far = max(0, work.weights - _NEAR_WEIGHTS)
    return {**_count_memory(work), "macs": work.macs, "weights": work.weights, "far weights": far}


def _count_pool(work: Work) -> Counts:
    return {**_count_memory(work), "taps": work.written * work.taps}


_COUNTS: Mapping[Kind, Callable[[Work], Counts]] = {
    Kind.CONVOLUTION: _count_convolution,
    Kind.IMAGE_CONVOLUTION: _count_convolution,
    Kind.POINTWISE: _count_convolution,
    Kind.GROUPED: _count_convolution,
    Kind.OTHER_CONVOLUTION: _count_product,
    Kind.DEPTHWISE: _count_depthwise,
    Kind.FULLY_CONNECTED: _count_product,
    Kind.PRODUCT: _count_product,
    Kind.POOL: _count_pool,
}
COUNTED: Mapping[Kind, frozenset[str]] = {kind: frozenset(counts(Work(kind))) for kind in Kind}
"""The counts of each kind."""


Measure = Annotated[float, Bounds(0.0)]


@dataclass(frozen=True)
class Profile:
    """The nanoseconds of each count of a kind, how much of its time more threads divide, and the fit.

    It was fitted to `samples` measurements, from which it is off by `error` (median, a share).
    """

    samples: int
    error: Measure
    parallel: Annotated[float, Bounds(0.0, 1.0)]
    coefficients_ns: Mapping[str, Measure] = field(metadata={"key": "prices_ns"})

    def ns(self, counts: Counts) -> float:
        return sum([value * self.coefficients_ns[name] for name, value in counts.items()])


@dataclass(frozen=True)
class Profiles:
    """Prices of all kinds; `run_ns` is what a session's run costs besides its operators.

    `machine`, `runtime` and `date` say where they were measured. `safety` is a share that is added to every time.
    """

    machine: str
    runtime: str
    date: str
    run_ns: float
    kinds: Mapping[Kind, Profile]
    safety: float = 0.0
    _known: dict[tuple[Work, int], tuple[float, float]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def run_s(self) -> float:
        """Seconds that running a session costs once a task, however many operators it has."""
        return self.run_ns / _NS * (1 + self.safety)

    def parts(self, work: Work, batch: int = 1) -> tuple[float, float]:
        """Return seconds that threads do not shorten, and seconds that n threads divide by n."""
        key = work, batch
        if key not in self._known:
            self._known[key] = self._serial_and_parallel(work, batch)
        return self._known[key]

    def least(self, work: Work) -> tuple[float, float]:
        """Return the part of these seconds that no partition of the work into regions saves, over all of them.

        It grows with the work: the cache is no matter, nor are the map's edges.
        """
        return self._serial_and_parallel(work, 1, _SAVED_IN_PARTS)

    def seconds(self, work: Work, vcpus: float = 1.0, batch: int = 1) -> float:
        return float(compute_seconds(*self.parts(work, batch), vcpus))

    def _serial_and_parallel(
        self, work: Work, batch: int, without: frozenset[str] = frozenset()
    ) -> tuple[float, float]:
        if work.parts:
            serial_s, parallel_s = zip(
                *(self._serial_and_parallel(part, batch, without) for part in work.parts), strict=True
            )
            return sum(serial_s), sum(parallel_s)
        if work.measured_s:
            return self._shared(self.kinds[work.kind], batch * work.measured_s * _NS)
        profile = self.kinds[work.kind]
        serial, parallel = self._shared(profile, profile.ns(_without(counts(work, batch), without)))
        if work.reordered:
            reorder = self.kinds[work.to]
            moved = counts(Work(work.to, read=work.reordered, written=work.reordered), batch)
            more = self._shared(reorder, reorder.ns(_without(moved, without)))
            serial, parallel = serial + more[0], parallel + more[1]
        return serial, parallel

    def _shared(self, profile: Profile, ns: float) -> tuple[float, float]:
        scale = (1 + self.safety) / _NS
        return ns * (1 - profile.parallel) * scale, ns * profile.parallel * scale


@dataclass(frozen=True)
class _File:
    format: int
    machine: str
    runtime: str
    date: str
    run_ns: Measure
    kinds: Mapping[str, Profile]


def dump_profiles(profiles: Profiles) -> str:
    """Write profiles as JSON that a reader can follow: coefficients with four digits, in nanoseconds."""
    kinds = {
        str(kind): Profile(
            profile.samples,
            _short(profile.error),
            _short(profile.parallel),
            {name: _short(ns) for name, ns in profile.coefficients_ns.items()},
        )
        for kind, profile in profiles.kinds.items()
    }
    file = _File(FORMAT, profiles.machine, profiles.runtime, profiles.date, _short(profiles.run_ns), kinds)
    return json.dumps(unstructure(file), indent=2) + "\n"


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def parse_profiles(text: str, safety: float = 0.0) -> Profiles:
    """Read profiles from JSON text; raises InputError that names what is missing, unknown or out of bounds."""
    if len(text) > _MAX_CHARACTERS:
        raise InputError(f"the operator profiles have {len(text):,} characters, more than {_MAX_CHARACTERS:,}")
    if not 0 <= safety < math.inf:
        raise InputError(f"the safety offset is a share from 0 up, not {safety}")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the operator profiles are not JSON: {error}") from error
    if isinstance(document, dict) and document.get("format", FORMAT) != FORMAT:
        raise InputError(f"the operator profiles have format {document['format']!r}; this version reads {FORMAT}")
    file = structure(_File, document, _NAME, error=InputError)
    _check_names("kinds", file.kinds.keys(), {str(kind) for kind in Kind})
    for kind in Kind:
        _check_names(f"kinds.{kind}.prices_ns", file.kinds[kind].coefficients_ns.keys(), COUNTED[kind])
    if not (file.machine and file.runtime and file.date):
        raise InputError(f"{_NAME} should name their machine, runtime and date")
    kinds = {kind: file.kinds[kind] for kind in Kind}
    return Profiles(file.machine, file.runtime, file.date, file.run_ns, kinds, safety)


def _check_names(where: str, names: AbstractSet[str], expected: AbstractSet[str]) -> None:
    if names != expected:
        missing, extra = sorted(expected - names), sorted(names - expected)
        raise InputError(f"{_NAME}.{where} lacks {missing} or has unknown {extra}")


def shipped_profiles(safety: float = 0.0) -> Profiles:
    return parse_profiles(files("serfer.core.costs").joinpath("profiles.json").read_text(encoding="utf-8"), safety)
