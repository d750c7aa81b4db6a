"""Windows of a map as plain values, which any engine computes.

windows(image, plan) ──▶ MapWindow, as JSON or pickled ──▶ compute(pixels), run(): in any process that reaches both
passes before the map:   WindowSums of each window ──▶ combine ──▶ PassStatistics, which later windows take
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import pairwise
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.dataclass_codec import structure, unstructure
from serfer.core.detections import Boxes
from serfer.core.errors import InputError, UsageError
from serfer.core.geometry import Rect
from serfer.core.passes import add_up
from serfer.core.plan.answers import as_answer
from serfer.core.plan.image_normalisation import ImageStatistics
from serfer.core.units import FLOAT_BYTES, MIB
from serfer.core.zarr import Axis
from serfer.mapping.boxes import BoxForm, chosen, form_and_head
from serfer.mapping.image_job import measure
from serfer.mapping.input import GivenPixels, clipped, padded_size
from serfer.mapping.map_network import MapNetwork, image_sizes, kept_map_plan, with_map_values
from serfer.mapping.opened import Count, MapSpec, OpenImage, OpenPlan, open_image, open_plan
from serfer.mapping.options import WindowOptions
from serfer.mapping.output import ResultForm, result_forms
from serfer.mapping.report import MapResult
from serfer.mapping.steps import MappedImage, MapStep
from serfer.raster import RasterSource
from serfer.raster.place import parse_place
from serfer.settings import Settings, load_settings

_MOST_NAMED = 5
_VERSION: str = sys.modules["serfer"].__version__  # which imports this module
_MOST_JSON = 1 << 20


@dataclass(frozen=True, slots=True)
class PassStatistics:
    """Statistics of the whole image from its first `passes` passes: float32 `values`, which windows after them take."""

    spec: MapSpec
    passes: int
    values: bytes


@dataclass(frozen=True, slots=True, eq=False)
class WindowSums:
    """What a window of a pass adds to the statistics of the whole image, for `combine`."""

    spec: MapSpec
    in_pass: int
    number: int
    values: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class MapWindow:
    """A window of a map, or of pass `in_pass` over the image before it (None: the map), as plain values.

    It reads the pixels `reads` of the image, and writes `writes` of each result; both have `rows` and `cols` with
    `start` and `stop`, and `slices` for arrays. Windows of one `kind` are computed by one graph, in `macs`
    multiply-accumulates; their pixels are `read_bytes` as the network takes them, in float32.
    """

    spec: MapSpec
    number: Count
    in_pass: Count | None
    kind: Count
    reads: Rect
    writes: tuple[Rect, ...]
    macs: Count
    read_bytes: Count

    def compute(self, pixels: NDArray[Any], statistics: PassStatistics | None = None) -> Any:  # noqa: ANN401 - an array
        """Return the window's part of the result, (channels, rows, cols), or its `WindowSums` in a pass.

        Of a network with several outputs, parts are by the outputs' names; with `boxes` it is a table for
        `choose_boxes`. Plan and image are found where `spec` says, opened once in a process, and of the image's file
        only what it says of its pixels is read.

        Args:
            pixels: what the window `reads`, (bands, rows, cols) of the image's type; those that a masked array hides
                count as without data where the image has a mask.
            statistics: what `combine` made of the passes before, where there are any.

        Raises:
            InputError: other pixels or statistics than the window takes, a window of another version of SerFer, or an
                image that changed.
            PlanError: the plan is another one, or cannot be found.
        """
        plan, image = _opened(self.spec)
        size = self.reads.rows.size, self.reads.cols.size
        given = GivenPixels(pixels, size, self.spec.size, image.source if image else None)
        return self._compute(self._step(plan, given), plan, statistics)

    def read(self) -> NDArray[Any]:
        """Return the pixels of the image's file that `compute` takes, masked where the file has a mask.

        Raises UsageError where windows are of an array, and what reading an image raises.
        """
        source = self._image_step()[0].source
        pixels, hidden = source.read_masked(self.reads)
        source.check_unchanged()
        return pixels if hidden is None else np.ma.MaskedArray(pixels, np.broadcast_to(hidden, pixels.shape))

    def run(self, statistics: PassStatistics | None = None) -> Any:  # noqa: ANN401 - as compute
        """Read the window's pixels and return what `compute` does."""
        step, plan = self._image_step()
        value = self._compute(step, plan, statistics)
        step.source.check_unchanged()
        return value

    def to_json(self) -> str:
        return json.dumps(unstructure(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> MapWindow:
        """Return the window of a text; raises InputError for any other text."""
        try:
            value = json.loads(text[: _MOST_JSON + 1])
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"this is no window in JSON: {error}") from None
        window = structure(MapWindow, value, "the window", error=InputError)
        spans = [span for rect in (window.reads, *window.writes) for span in (rect.rows, rect.cols)]
        if min(min(span.start, span.stop) for span in spans) < 0:
            raise InputError("the window reads or writes where its image or result is not: make the windows again")
        return window

    def _image_step(self) -> tuple[MapStep, OpenPlan]:
        plan, image = _opened(self.spec)
        if image is None:
            raise UsageError("these windows are of an array: give compute() their pixels")
        return self._step(plan, image.source), plan

    def _compute(self, step: MapStep, plan: OpenPlan, statistics: PassStatistics | None) -> Any:  # noqa: ANN401 - as compute
        step = replace(step, statistics=self._vector(statistics, step))
        query, outputs = step.query(self.number), None
        if query.batch is not None:
            try:
                outputs = step.submit(plan.pipeline(), self.number, query.batch).result().outputs
            except InputError as error:
                row, col = self.reads.rows.start, self.reads.cols.start
                raise InputError(f"window {self.number}, from row {row} and column {col}: {error}") from error
        parts = step.parts(self.number, query, outputs)
        if self.in_pass is not None:
            known = step.known.passes[self.in_pass]
            return WindowSums(self.spec, self.in_pass, self.number, parts[0][: known.partial_size])
        named = {form.outputs[0]: part for form, part in zip(_forms(step), parts, strict=False)}  # of boxes none
        return as_answer(named) if named else parts[0]

    def _step(self, plan: OpenPlan, source: RasterSource) -> MapStep:
        if self.in_pass is None or 0 <= self.in_pass < len(plan.known.passes):
            step = _step(self.spec, plan, source, self.in_pass)
            if (
                source.size == self.spec.size
                and 0 <= self.number < len(step.windows)
                and _window(self.spec, plan, step, self.number) == self
            ):
                return step
        name = self.spec.image or "the array"
        raise InputError(f"window {self.number} of {name} is not one of its plan: make the windows again")

    def _vector(self, statistics: PassStatistics | None, step: MapStep) -> bytes:
        passes = len(step.known.passes) if self.in_pass is None else self.in_pass
        if statistics is None and not passes:
            return bytes(FLOAT_BYTES * step.known.statistics)
        if not isinstance(statistics, PassStatistics) or (statistics.spec, statistics.passes) != (self.spec, passes):
            what = "no statistics" if statistics is None else "statistics of another map, or of other passes"
            raise InputError(
                f"window {self.number} was given {what}: give it what serfer.combine returns of "
                f"{'the pass' if passes == 1 else f'all {passes} passes'} before it"
            )
        return statistics.values


class MapWindows(Sequence[MapWindow]):
    """The windows of a map, or of one of the passes before it, in their order; made by `serfer.windows`.

    Windows may be computed in any order, and again; each takes the statistics of the `passes` before.
    """

    def __init__(self, spec: MapSpec, in_pass: int | None = None) -> None:
        self.spec, self._in_pass, (self._plan, image) = spec, in_pass, _opened(spec)
        source = image.source if image else _blank(spec, self._plan)
        self._step = _step(spec, self._plan, source, in_pass)

    def __reduce__(self) -> tuple[Any, ...]:
        return MapWindows, (self.spec, self._in_pass)

    def __len__(self) -> int:
        return len(self._step.windows)

    def __getitem__(self, number: Any) -> Any:  # noqa: ANN401 - an index, or a slice
        numbers = range(len(self))[number]
        if isinstance(numbers, range):
            return [self[index] for index in numbers]
        return _window(self.spec, self._plan, self._step, numbers)

    @property
    def passes(self) -> tuple[MapWindows, ...]:
        """The windows of each pass before the map, in order; none of a pass."""
        before = len(self._plan.known.passes) if self._in_pass is None else 0
        return tuple(MapWindows(self.spec, number) for number in range(before))

    @property
    def results(self) -> tuple[MapResult, ...]:
        """The results, one for each part of a window: outputs, height, width, channels and type; none of a pass."""
        return tuple(form.result("") for form in _forms(self._step))

    @property
    def chunks(self) -> tuple[tuple[int, int, int], ...]:
        """Of each result as an array in zarr the chunks, channels x rows x columns, that most windows write alone."""
        arrays = (form.array for form in _forms(self._step))
        return tuple((array.channels, _commonest(array.rows), _commonest(array.cols)) for array in arrays)

    def groups(self) -> list[list[MapWindow]]:
        """Return the windows in groups, most of one, that share no chunk: any processes write groups at once."""
        if not (arrays := [form.array for form in _forms(self._step)]):
            return [[window] for window in self]
        rows, cols = (_runs([getattr(array, name) for array in arrays]) for name in ("rows", "cols"))
        width = arrays[0].cols.count
        return [[self[row * width + col] for row in down for col in across] for down in rows for across in cols]

    def choose_boxes(self, tables: Iterable[NDArray[np.float64]]) -> Boxes:
        """Return the boxes of the image, best first, of what all windows returned, in any order, with `boxes`.

        They have `corners` (K, 4) in pixels, left, top, right and bottom, `scores` (K,), and `classes` (K,) as indices.
        Raises UsageError for other windows, and where not all are given.
        """
        found, boxes = [*tables], self._plan.plan.boxes
        if boxes is None or not self.spec.boxes or len(found) != len(self):
            raise UsageError(
                f"boxes are chosen among what all {len(self):,} windows of serfer.windows(..., boxes=True) return, and "
                f"{len(found):,} tables were given"
            )
        return chosen(found, boxes.head, self.spec.size)

    @property
    def identity(self) -> str:
        """What tells the map from others, wherever its plan and image lie; of an array it knows the size alone."""
        found = unstructure(replace(self.spec, plan="", image=""))
        return sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()

    @property
    def overhead(self) -> float:
        """The pixels that all windows read over those of the image: 1.2 where a fifth is read twice."""
        axes = self._step.windows.rows, self._step.windows.cols
        rows, cols = (sum(window.read.size for window in axis.windows) / axis.size for axis in axes)
        return rows * cols

    @property
    def worker_bytes(self) -> int:
        """The memory that a worker needs for one window at a time: what the plan was made for (`memory_mb`)."""
        return self._plan.plan.stages[0].memory_mb * MIB


def windows(
    image: Path | str | tuple[int, int],
    plan: Path | str | None = None,
    *,
    network: Any = None,  # noqa: ANN401 - as MapNetwork.model, or one
    boxes: bool = False,
    normalisation: ImageStatistics | None = None,
    settings: Settings | None = None,
    options: WindowOptions | None = None,
    **values: Any,  # noqa: ANN401 - of WindowOptions
) -> MapWindows:
    """Return the windows of a map as plain values: any process that reaches plan and image computes them, in any order.

    What they compute is what `serfer.map` makes, bit for bit.

    Args:
        image: as `serfer.map` takes it, or the height and width of an array whose pixels are given with each window.
        plan: a map plan's directory, or `s3://BUCKET/PREFIX`, as the other processes find it.
        network: in place of a plan, as `serfer.map` takes it; its plan is in the cache of this machine.
        boxes: of a detector's plan, boxes and not the maps of its heads; they have at least the plan's least score.
        normalisation: what was measured of the image, where the plan normalises pixels by the whole of it; an image is
            measured here, an array is not.
        settings: instead of those of the environment, for a network's plan.
        options: what windows make of pixels.
        values: fields of `serfer.WindowOptions` by name, in place of those of `options`.

    Raises:
        InputError: image and plan do not go together.
        PlanError: the plan is no map plan, or cannot be found.
        UsageError: options that do not, or a plan that keeps maps between passes.
        ModelError: the network has no plan.
    """
    options = with_map_values(WindowOptions, options, values)
    size = None if isinstance(image, str | Path) else _size(image)
    if (plan is None) == (network is None):
        raise UsageError("windows are those of a plan or of a network: give one of the two")
    if network is not None:
        network = replace(network if isinstance(network, MapNetwork) else MapNetwork(network), kept_maps="never")
        sizes = [size] if size else image_sizes([str(image)])
        plan = kept_map_plan(network, lambda: sizes, settings or load_settings(), lambda _: None).directory
    place = _absolute(plan)
    found = OpenPlan(place)
    if found.known.kept:
        raise UsageError(
            f"the plan {place} keeps maps between passes, which windows elsewhere do not have: make it with "
            "kept_maps=never"
        )
    spec = MapSpec(_VERSION, place, found.plan.digest, size or (0, 0), json.dumps(options.values()), boxes=boxes)
    if size:
        source = _blank(spec, found)
    else:
        opened = OpenImage(_absolute(image))
        source = opened.source
        spec = replace(spec, image=_absolute(image), size=source.size, identity=opened.identity)
    mapped = MappedImage.of(found.plan, source, options)
    if how := mapped.input.by_image:
        if size and not normalisation:
            raise UsageError("the plan normalises pixels by the whole image: give normalisation, what was measured")
        spec = replace(spec, normalisation=normalisation or measure(mapped.source, mapped.gaps, how, lambda _: None))
        if not size:
            source.check_unchanged()
    return MapWindows(spec)


def combine(sums: Iterable[WindowSums], before: PassStatistics | None = None) -> PassStatistics:
    """Add up what all windows of a pass computed, in any order, and return what windows after it take.

    The result is the same bits whatever the order, for windows are added up by their numbers; of one that was computed
    twice, one counts. `before` are the statistics of the passes before. Raises UsageError where windows are missing, or
    of several passes or maps.
    """
    found: dict[int, NDArray[np.float32]] = {}
    first: WindowSums | None = None
    for part in sums:
        if not isinstance(part, WindowSums):
            raise UsageError(f"combine takes what windows of a pass returned, not {type(part).__name__}")
        first = first or part
        if (part.spec, part.in_pass) != (first.spec, first.in_pass):
            raise UsageError("sums of several maps or passes were given: combine those of one pass at a time")
        if not np.array_equal(found.setdefault(part.number, part.values), part.values, equal_nan=True):
            raise UsageError(f"window {part.number} of pass {part.in_pass + 1} was given twice, with other sums")
    if first is None:
        raise UsageError("no sums were given: combine what all windows of a pass computed")
    spec, number = first.spec, first.in_pass
    if (before.spec, before.passes) != (spec, number) if before else number:
        raise UsageError(f"sums of pass {number + 1} were given without the statistics of those before, or with others")
    plan = open_plan(spec.plan, spec.digest)
    known = plan.known.passes[number]
    wanted = {*range(len(known.of(*padded_size(plan.plan, spec.size))))}
    if strange := found.keys() - wanted:
        raise UsageError(f"pass {number + 1} has {len(wanted):,} windows, of which none has number {min(strange)}")
    if missing := sorted(wanted - found.keys()):
        named = ", ".join(map(str, missing[:_MOST_NAMED]))
        raise UsageError(f"{len(missing):,} windows of pass {number + 1} are missing, such as {named}")
    vector = np.frombuffer(before.values if before else bytes(FLOAT_BYTES * plan.known.statistics), np.float32).copy()
    add_up(known.maps, (found[place] for place in sorted(found)), vector)
    return PassStatistics(spec, number + 1, vector.tobytes())


def _size(image: Iterable[Any]) -> tuple[int, int]:
    with suppress(TypeError, ValueError):
        height, width = map(index, image)
        if height in (sides := range(1, 1 << 31)) and width in sides:
            return height, width
    raise UsageError("an image is a path, s3://BUCKET/KEY, or the height and width of an array in pixels")


def _absolute(place: Any) -> str:  # noqa: ANN401 - a path or a URL
    where = parse_place(place)
    return str(where.absolute()) if isinstance(where, Path) else str(place)


def _commonest(axis: Axis) -> int:
    return Counter(stop - start for start, stop in pairwise(axis.edges)).most_common(1)[0][0]


def _runs(axes: Sequence[Axis]) -> list[list[int]]:
    runs = [[0]]
    for number in range(1, axes[0].count):
        if all(axis.edges[number] % _commonest(axis) == 0 for axis in axes):
            runs.append([])
        runs[-1].append(number)
    return runs


def _opened(spec: MapSpec) -> tuple[OpenPlan, OpenImage | None]:
    if spec.version != _VERSION:
        raise InputError(
            f"the window is of SerFer {spec.version}, and this process has {_VERSION}: install one version where "
            "windows are made and where they are computed"
        )
    return open_plan(spec.plan, spec.digest), open_image(spec.image, spec.identity) if spec.image else None


def _blank(spec: MapSpec, plan: OpenPlan) -> RasterSource:
    bands = max((plan.plan.input.channels, *spec.window_options.bands))
    return GivenPixels(np.empty((bands, 0, 0), np.uint8), (0, 0), spec.size, None)


def _step(spec: MapSpec, plan: OpenPlan, source: RasterSource, in_pass: int | None) -> MapStep:
    mapped = MappedImage.of(plan.plan, source, spec.window_options).measured(spec.normalisation)
    if spec.boxes:
        form, head = form_and_head(mapped)
        step = mapped.step([BoxForm(form, plan.decoder, head.min_score)])
    else:
        step = mapped.step(result_forms(mapped))
    return step if in_pass is None else step.in_pass(in_pass)


def _window(spec: MapSpec, plan: OpenPlan, step: MapStep, number: int) -> MapWindow:
    window = step.windows[number]
    kind, reads = window.tile, clipped(step.reads(number) or window.read, spec.size)
    tile, writes = plan.plan.stages[0].tiles[kind], (form.windows[number].written for form in _forms(step))
    read_bytes = FLOAT_BYTES * plan.plan.input.channels * tile.inputs[0].area
    return MapWindow(spec, number, step.number, kind, reads, tuple(writes), tile.macs, read_bytes)


def _forms(step: MapStep) -> list[ResultForm]:
    return [form for form in step.forms if isinstance(form, ResultForm)]
