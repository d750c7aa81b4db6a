"""The result of a map beside the network itself, run in one piece on parts of the image before the result is written.

unsplit.onnx computes a part of the image at once. What it makes there, but for what lies near the part's own ends, is
compared with what windows made, as it is kept for the result: what was read of the image, the windows' graphs, the
workers and the way of their values are all in it. Statistics of the whole image are those that the passes found.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.costs.sessions import set_threads
from serfer.core.errors import PlanError
from serfer.core.exactness import TOLERANCE, runtime_noise
from serfer.core.geometry import Rect, Span
from serfer.core.plan import Plan
from serfer.core.plan.crops import compared_part, places_of
from serfer.core.plan.windows import ImageWindows, Windows
from serfer.mapping.boxes import BoxFile
from serfer.mapping.job import Job
from serfer.mapping.report import MapComparison
from serfer.mapping.results import ResultFile
from serfer.plan_directory import file_sha256
from serfer.raster import ResultParts

MOST_S = 5.0
"""Seconds after which no other part is begun."""
_MOST_THREADS = 4
_NO_CROPS = (
    "its plan has no network for parts of an image: it was made by an earlier version, or what a pixel becomes depends "
    "on where in the image it is, or on the image's size (serfer map-plan says of which operator)"
)
_NO_PIXELS = "no part has a pixel with data, which depends on nothing beyond that part"
_Array = NDArray[Any]
Whole = Callable[..., Sequence[_Array]]
"""The network on a part of an image (1, C, H, W) float32, with statistics (S,) float32: its outputs, and scores.

With `optimized=False` other kernels of ONNX Runtime compute it, which round otherwise.
"""


class NotComparedError(PlanError):
    """There is nothing to compare a map with; says why."""


def whole_of(plan: Plan, directory: Path) -> Whole:
    """Open a map plan's unsplit.onnx; that, and what is returned, raises NotComparedError where it does not run."""
    import onnxruntime  # noqa: PLC0415 - takes a while

    path = directory / plan.unsplit.path
    if not path.is_file() or file_sha256(path) != plan.unsplit.sha256:
        raise NotComparedError(f"{path} is missing, or was changed")
    levels = onnxruntime.GraphOptimizationLevel

    @cache
    def session(optimized: bool) -> onnxruntime.InferenceSession:  # noqa: FBT001 - a key of the cache
        options = onnxruntime.SessionOptions()
        set_threads(options, threads=min(_MOST_THREADS, os.cpu_count() or 1))
        options.enable_cpu_mem_arena = False  # the process goes on without it
        options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(image: _Array, statistics: _Array, *, optimized: bool = True) -> Sequence[_Array]:
        given = {"input0": image} | ({"input1": statistics[None]} if statistics.size else {})
        with _naming_failure():
            values: Sequence[_Array] = session(optimized).run(None, given)
        return [value.reshape(-1, *value.shape[-2:]) for value in values]

    return run


@contextmanager
def _naming_failure() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # ONNX Runtime's errors have no base class of their own
        reason = " ".join(str(error).split())
        raise NotComparedError(f"the network did not run in one piece: {reason:.300}") from error


def compare(
    job: Job, parts: Sequence[ResultParts], windows: Windows, whole: Callable[[], Whole], statistics: _Array | None
) -> MapComparison:
    """Compare what is kept of an image with the network on parts of it, for about MOST_S seconds."""
    started = time.monotonic()
    try:
        outputs = [*_outputs(job, parts)]
        places = _places(job, windows, statistics)
        network = whole()
    except NotComparedError as error:
        return MapComparison(skipped=str(error))
    assert statistics is not None  # noqa: S101 - else it is not compared
    done = 0
    for place in places:
        image, hidden = _read_part(job, place)
        if hidden is not None and hidden.all():
            continue
        try:
            part = _Part(place, image, statistics, network, network(image, statistics))
        except NotComparedError as error:
            if not done:
                return MapComparison(skipped=str(error))
            break
        for output in outputs:
            output.add(part, windows.stride)
        done += 1
        if time.monotonic() - started > MOST_S:
            break
    worst = max(outputs, key=lambda output: (output.wrong, output.error))
    if not (pixels := sum(output.pixels for output in outputs)):
        return MapComparison(skipped=_NO_PIXELS)
    return MapComparison(
        parts=done,
        pixels=pixels,
        error=max((output.error for output in outputs if output.of_floats), default=None),
        other_classes=sum(output.other_classes for output in outputs),
        seconds=time.monotonic() - started,
        wrong=worst.wrong,
        worst_window=worst.window if worst.wrong else None,
    )


def _places(job: Job, windows: Windows, statistics: _Array | None) -> Sequence[Rect]:
    if windows.crops is None:
        raise NotComparedError(_NO_CROPS)
    if statistics is None:
        raise NotComparedError("what was added up of the whole image is gone")
    places = places_of(job.windows, windows.crops, windows.stride)
    if not places:
        height, width = windows.crops
        raise NotComparedError(f"the image is smaller than the {height:,} x {width:,} pixels that are compared at once")
    return places


def _read_part(job: Job, place: Rect) -> tuple[_Array, NDArray[np.bool_] | None]:
    pixels, masked = job.source.read_masked(place)
    hidden = job.gaps.missing(pixels, masked)[0] if job.gaps.possible else None
    taken = replace(job.input, bytes_as_they_are=False)  # normalised here, whatever workers do
    return taken.batch(pixels, hidden if hidden is not None and hidden.any() else None), hidden


def _outputs(job: Job, parts: Sequence[ResultParts]) -> Iterator[_Output]:
    tensors = job.plan.output_tensors
    names, scores = [tensor.name for tensor in tensors], len(tensors)
    of_scores = {}
    for tensor in tensors:
        if not tensor.dtype.startswith("float"):
            of_scores[tensor.name] = scores
            scores += 1
    for file, own in zip(job.files, parts, strict=True):
        if isinstance(file, BoxFile) or not isinstance(file, ResultFile):
            raise NotComparedError("boxes are compared when a plan is made, and not on each image")
        first = 0
        for name in file.form.outputs:
            number = names.index(name)
            channels = job.plan.stages[0].outputs[number].channels
            kept = _StoredOutput(own, first, channels, file.form.no_data)
            yield _Output(number, job.windows.of_output(number), kept, of_scores.get(name))
            first += channels


@dataclass(frozen=True)
class _StoredOutput:
    """An output as windows made it, in some channels of the parts of a file; `no_data` stands for pixels without."""

    parts: ResultParts
    first: int
    channels: int
    no_data: float | None

    def values(self, channel: int, place: Rect) -> _Array:
        number = self.first + channel
        values: _Array = self.parts.area(place, number, number + 1)[0]
        return values

    def missing(self, values: _Array) -> NDArray[np.bool_]:
        if self.no_data is None:
            return np.zeros(values.shape, bool)
        found: NDArray[np.bool_] = np.isnan(values) if np.isnan(self.no_data) else values == self.no_data
        return found


@dataclass(frozen=True)
class _Part:
    """A place of the image, and what the network makes of it."""

    place: Rect
    image: _Array
    statistics: _Array
    network: Whole
    values: Sequence[_Array]

    @cached_property
    def _again(self) -> Sequence[_Array]:
        try:
            return self.network(self.image, self.statistics, optimized=False)
        except NotComparedError:
            return self.values

    def noise(self, number: int, kind: type = np.float32) -> float:
        """Return how much of an output is rounding, or of whole numbers which share of them is other for it."""
        whole, again = (np.rint(v[number]) if kind is int else v[number] for v in (self.values, self._again))
        return runtime_noise(whole.astype(kind), again.astype(kind), self.image)[0]


@dataclass
class _Output:
    """An output of the network: how far what is kept of it is from what the network makes of parts of the image.

    `scores` is the number of the values, behind the outputs, whose largest channel it names, if it is of classes.
    """

    number: int
    windows: ImageWindows
    kept: _StoredOutput
    scores: int | None
    pixels: int = 0
    other_classes: int = 0
    largest: float = 0.0
    window: int | None = None
    noise: float = 0.0
    _ends: tuple[float, float] = field(default=(np.inf, -np.inf))

    @property
    def of_floats(self) -> bool:
        return self.scores is None

    @property
    def error(self) -> float:
        return self.largest / (max(_range(*self._ends), self.noise / TOLERANCE) or 1.0)

    @property
    def wrong(self) -> bool:
        return self.error > TOLERANCE or self.other_classes > 0

    def add(self, part: _Part, unit: int) -> None:
        place, values = part.place, part.values
        own = values[self.number]
        told, inside = compared_part(self.windows, place, own.shape[1:], unit)
        if not told.area:
            return
        first = self.kept.values(0, told)
        there = ~self.kept.missing(first)
        self.pixels += int(there.sum())
        if self.of_floats:
            for channel in range(self.kept.channels):
                kept = first if channel == 0 else self.kept.values(channel, told)
                self._add_values(kept, own[channel][inside.slices], there, told)
            if self.wrong or (self.largest and not _range(*self._ends)):
                self.noise = max(self.noise, part.noise(self.number))
        elif self.scores is not None and self.scores < len(values):
            self._add_classes(first, own[0][inside.slices], values[self.scores][:, *inside.slices], there, told, part)
        else:
            other = there & (first != np.rint(own[0][inside.slices]))
            if (share := (int(other.sum()) - 1) / other.size) > TOLERANCE and share > part.noise(self.number, int):
                self._count(other, told)

    def _add_values(self, kept: _Array, own: _Array, there: NDArray[np.bool_], told: Rect) -> None:
        seen = own[there & np.isfinite(own)]
        if seen.size:
            low, high = self._ends
            self._ends = min(low, float(seen.min())), max(high, float(seen.max()))
        with np.errstate(invalid="ignore"):  # infinity less infinity
            far = np.abs(np.subtract(kept, own, dtype=np.float64))
        far[(kept == own) | (np.isnan(kept) & np.isnan(own)) | ~there] = 0.0
        far[np.isnan(far)] = np.inf
        if (largest := float(far.max())) > self.largest:
            self.largest = largest
            self._at(told, int(far.argmax()))

    def _add_classes(
        self, kept: _Array, own: _Array, scores: _Array, there: NDArray[np.bool_], told: Rect, part: _Part
    ) -> None:
        """Count pixels of another class whose score is less than the largest one by more than rounding."""
        other = there & (kept != np.rint(own))
        if not other.any():
            return
        known = np.clip(kept.astype(np.int64), 0, len(scores) - 1)
        chosen = np.take_along_axis(scores, known[None], axis=0)[0]
        gap = scores.max(axis=0) - chosen
        wrong = other & ((gap > TOLERANCE * _range(float(scores.min()), float(scores.max()))) | (known != kept))
        if wrong.any() and self.scores is not None:
            self._count(wrong & ((gap > 2 * part.noise(self.scores)) | (known != kept)), told)

    def _count(self, wrong: NDArray[np.bool_], told: Rect) -> None:
        if wrong.any():
            self.other_classes += int(wrong.sum())
            self._at(told, int(wrong.argmax()))

    def _at(self, told: Rect, place: int) -> None:
        row, col = divmod(place, told.cols.size)
        pixel = Rect(
            Span(told.rows.start + row, told.rows.start + row + 1),
            Span(told.cols.start + col, told.cols.start + col + 1),
        )
        self.window = next(number for number, rect in enumerate(self.kept.parts.rects) if rect.overlap(pixel))


def _range(low: float, high: float) -> float:
    return high - low if low <= high else 1.0
