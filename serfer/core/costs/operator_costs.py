"""What operators cost on one vCPU: prices fitted to measurements, added up along a task (INFless, section 3.3).

An operator's time is the sum of its counts (multiply-accumulates, elements read, calls of the innermost loop, ...)
times the prices of its kind. A price is never negative and every count grows with the region, so a larger region never
costs less. Along a task all operators add up, branches too: ONNX Runtime runs a task's operators one after another.
The tiles of a stage run side by side, so among them the maximum is taken; the planner does that.

More images at once cost more of everything but weights. What vCPUs change is in
vcpus.py: part of each kind's time is divided among threads. One and two threads were measured, what more
bring is modelled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.resources import files
from typing import Any

from serfer.core.costs.vcpus import compute_seconds
from serfer.core.errors import InputError

FORMAT = 1
BLOCK = 16
"""Channels that ONNX Runtime keeps together (AVX-512)."""
SAFETY = 0.1
"""What INFless adds to its predictions, so that objectives are kept though predictions are not exact (section 3.3)."""
_SETS = 4  # blocks of output channels that the innermost loop of a convolution computes at once
_NEAR = 1 << 17  # elements that stay in the second-level cache on the way to the next operator
_NEAR_WEIGHTS = 1 << 20  # weights that are still in some cache when the next query comes
_MAX_CHARACTERS = 1 << 20
_NS = 1e9


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
    INTO_BLOCKS = "into blocks"
    INTO_ORDER = "into order"
    INPUT_INTO_BLOCKS = "input into blocks"


@dataclass(frozen=True, slots=True)
class Work:
    """What one operator does for one image on one region; sizes in elements, `rows` and `cols` those of its output.

    `taps` is the window's area, `edges` how many columns of the output have windows that leave the map. `bounded` and
    `curved` are the elements of the result that go through an activation inside the operator, one that compares or one
    that computes more (ReLU costs nothing there); `reordered` those that are brought `to` the other form: from blocks
    of channels into order, or back. A convolution's channels are all of them, whatever its groups.
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
    to: Kind = Kind.INTO_ORDER


Counts = dict[str, float]
_ONCE = frozenset({"operator", "weights", "far weights"})  # what a batch does not repeat


def counts(work: Work, batch: int = 1) -> Counts:
    """Return what a kind's prices are multiplied with, for `batch` images."""
    one = _COUNTS.get(work.kind, _moved)(work)
    return {name: value if name in _ONCE else batch * value for name, value in one.items()}


def _moved(work: Work) -> Counts:
    """Memory in and out, near and far: what does not fit in the second-level cache costs more."""
    return {
        "operator": 1,
        "read": work.read,
        "written": work.written,
        "far": max(0, work.written - _NEAR),
    }


def _convolution(work: Work) -> Counts:
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
        **_moved(work),
        **_activated(work),
        "macs": macs,
        "edges": macs / cols * min(work.edges, cols),
        "strided": macs * (work.stride > 1),
        "broadcasts": area * work.taps * depth * sets,
        "calls": rows * sets * in_blocks * math.sqrt(work.taps) * work.groups,
        "passes": area * blocks * BLOCK * in_blocks,
        "weights": work.groups * blocks * BLOCK * depth * work.taps,
    }


def _depthwise(work: Work) -> Counts:
    blocks = -(-work.channels_out // BLOCK)
    taps = work.rows * work.cols * blocks * work.taps
    return {
        **_moved(work),
        **_activated(work),
        "taps": taps,
        "strided": taps * (work.stride > 1),
        "calls": work.rows * blocks * math.sqrt(work.taps),
    }


def _activated(work: Work) -> Counts:
    return {"bounded": work.bounded, "curved": work.curved}


def _product(work: Work) -> Counts:
    far = max(0, work.weights - _NEAR_WEIGHTS)
    return {**_moved(work), "macs": work.macs, "weights": work.weights, "far weights": far}


def _pool(work: Work) -> Counts:
    return {**_moved(work), "taps": work.written * work.taps}


_COUNTS: Mapping[Kind, Callable[[Work], Counts]] = {
    Kind.CONVOLUTION: _convolution,
    Kind.IMAGE_CONVOLUTION: _convolution,
    Kind.POINTWISE: _convolution,
    Kind.GROUPED: _convolution,
    Kind.OTHER_CONVOLUTION: _product,
    Kind.DEPTHWISE: _depthwise,
    Kind.FULLY_CONNECTED: _product,
    Kind.PRODUCT: _product,
    Kind.POOL: _pool,
}
PRICED: Mapping[Kind, frozenset[str]] = {kind: frozenset(counts(Work(kind))) for kind in Kind}
"""The counts of each kind."""


@dataclass(frozen=True)
class Profile:
    """The prices of a kind in nanoseconds, how much of its time more threads divide, and what it was fitted to."""

    prices_ns: Mapping[str, float]
    parallel: float
    samples: int
    error: float


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
            self._known[key] = self._parts(work, batch)
        return self._known[key]

    def seconds(self, work: Work, vcpus: float = 1.0, batch: int = 1) -> float:
        """Predict an operator's time."""
        return float(compute_seconds(*self.parts(work, batch), vcpus))

    def _parts(self, work: Work, batch: int) -> tuple[float, float]:
        profile = self.kinds[work.kind]
        serial, parallel = self._shared(profile, sum(self._priced(profile, counts(work, batch))))
        if work.reordered:
            reorder = self.kinds[work.to]
            moved = counts(Work(work.to, read=work.reordered, written=work.reordered), batch)
            more = self._shared(reorder, sum(self._priced(reorder, moved)))
            serial, parallel = serial + more[0], parallel + more[1]
        return serial, parallel

    @staticmethod
    def _priced(profile: Profile, found: Counts) -> list[float]:
        return [value * profile.prices_ns[name] for name, value in found.items()]

    def _shared(self, profile: Profile, ns: float) -> tuple[float, float]:
        scale = (1 + self.safety) / _NS
        return ns * (1 - profile.parallel) * scale, ns * profile.parallel * scale


def dump_profiles(profiles: Profiles) -> str:
    """Write profiles as JSON that a reader can follow: prices with four digits, in nanoseconds."""
    kinds = {
        str(kind): {
            "samples": one.samples,
            "error": _short(one.error),
            "parallel": _short(one.parallel),
            "prices_ns": {name: _short(price) for name, price in one.prices_ns.items()},
        }
        for kind, one in profiles.kinds.items()
    }
    document = {
        "format": FORMAT,
        "machine": profiles.machine,
        "runtime": profiles.runtime,
        "date": profiles.date,
        "run_ns": _short(profiles.run_ns),
        "kinds": kinds,
    }
    return json.dumps(document, indent=2) + "\n"


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def parse_profiles(text: str, safety: float = 0.0) -> Profiles:
    """Read profiles from JSON text; raises InputError that names what is missing, unknown or no sensible number."""
    if len(text) > _MAX_CHARACTERS:
        raise InputError(f"the operator profiles have {len(text):,} characters, more than {_MAX_CHARACTERS:,}")
    if not 0 <= safety < math.inf:
        raise InputError(f"the safety offset is a share from 0 up, not {safety}")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the operator profiles are not JSON: {error}") from error
    table = _table(document, "", {"format", "machine", "runtime", "date", "run_ns", "kinds"})
    if table["format"] != FORMAT:
        raise InputError(f"the operator profiles have format {table['format']!r}; this version reads {FORMAT}")
    kinds = _table(table["kinds"], "kinds", {str(kind) for kind in Kind})
    return Profiles(
        machine=_text(table, "machine"),
        runtime=_text(table, "runtime"),
        date=_text(table, "date"),
        run_ns=_number(table["run_ns"], "run_ns"),
        kinds={kind: _profile(kind, kinds[kind]) for kind in Kind},
        safety=safety,
    )


def shipped_profiles(safety: float = 0.0) -> Profiles:
    """Return the profiles that ship with SerFer."""
    return parse_profiles(files("serfer.core.costs").joinpath("profiles.json").read_text(encoding="utf-8"), safety)


def _profile(kind: Kind, value: object) -> Profile:
    where = f"kinds.{kind}"
    table = _table(value, where, {"samples", "error", "parallel", "prices_ns"})
    prices = _table(table["prices_ns"], f"{where}.prices_ns", PRICED[kind])
    parallel = _number(table["parallel"], f"{where}.parallel")
    if parallel > 1:
        raise InputError(f"the operator profiles give {where}.parallel as {parallel}: it is a share, at most 1")
    return Profile(
        prices_ns={name: _number(price, f"{where}.prices_ns.{name}") for name, price in prices.items()},
        parallel=parallel,
        samples=int(_number(table["samples"], f"{where}.samples")),
        error=_number(table["error"], f"{where}.error"),
    )


def _table(value: object, where: str, names: set[str] | frozenset[str]) -> dict[str, Any]:
    what = f"{where} of the operator profiles" if where else "the operator profiles' document"
    if not isinstance(value, dict):
        raise InputError(f"{what} is not a JSON object")
    if set(value) != names:
        missing, extra = sorted(names - set(value)), sorted(set(value) - names)
        raise InputError(f"{what} lacks {missing} or has unknown {extra}")
    return value


def _text(table: dict[str, Any], name: str) -> str:
    value = table[name]
    if not isinstance(value, str) or not value:
        raise InputError(f"the operator profiles give no {name}")
    return value


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise InputError(f"the operator profiles give {where} no number from 0 up")
    return float(value)
