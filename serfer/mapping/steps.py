"""A pass over an image, or its map: what its windows read, send as a query, and make of the answer; nothing is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import PlanError
from serfer.core.geometry import Rect, Span
from serfer.core.passes import window_statistics
from serfer.core.plan import Plan
from serfer.core.plan.image_normalisation import ImageStatistics
from serfer.core.plan.windows import ImageWindows, StatisticsPass, Windows
from serfer.drivers.driver import RequestContext
from serfer.mapping.input import WindowInput, padded
from serfer.mapping.kept_maps import KeptInput
from serfer.mapping.no_data import Gaps
from serfer.mapping.options import WindowOptions
from serfer.pipeline.blocking import Pipeline
from serfer.pipeline.result import Result
from serfer.raster import RasterSource

DEADLINE_S = 900.0
"""Seconds that a window may take, with what it waits for other queries."""


class WindowForm(Protocol):
    """What a window's answer becomes, by the window's number."""

    def covered(self, number: int, size: tuple[int, int]) -> Rect: ...

    def empty(self, missing: NDArray[np.bool_], read: Rect, number: int) -> NDArray[np.bool_]:
        """Return which of a window's pixels have no data, where `missing` ones of `read`, all they cover, have none."""
        ...

    def part(
        self, number: int, outputs: Mapping[str, NDArray[Any]], empty: NDArray[np.bool_] | None
    ) -> NDArray[Any]: ...

    def empty_part(self, number: int) -> NDArray[Any]: ...


@dataclass(frozen=True)
class WindowQuery:
    """A window's batch, None where no part of its results has data, and which pixels of these have none.

    Of the pixels that are the window's own, `missing` hold no data, and `partly_missing` in some bands alone.
    """

    batch: NDArray[Any] | None
    empty: Sequence[NDArray[np.bool_]] | None = None
    missing: int = 0
    partly_missing: int = 0


@dataclass(frozen=True)
class MapStep:
    """The windows of an image in one pass, number `number`, or in the map (None), and what they compute.

    `statistics` are those of the whole image that they take. With `kept` they read maps of earlier passes in place of
    the image. Each of `forms` makes a part of a result of a window's outputs.
    """

    known: Windows
    windows: ImageWindows
    source: RasterSource
    input: WindowInput
    gaps: Gaps
    forms: Sequence[WindowForm]
    statistics: bytes = b""
    number: int | None = None
    kept: KeptInput | None = None

    def in_pass(self, number: int) -> MapStep:
        windows, known = self.known.passes[number].of(*self.source.size), self.known.passes[number]
        return replace(self, windows=windows, forms=[PassForm(windows, known)], number=number)

    @property
    def _reads_image(self) -> bool:
        return self.kept is None or self.kept.with_image

    @property
    def _looks_for_gaps(self) -> bool:
        return self.gaps.possible and (self._reads_image or self.number is None)

    def reads(self, number: int) -> Rect | None:
        """Return the pixels of the image that a window looks at, None for none."""
        if not self._looks_for_gaps:
            return self.windows[number].read if self._reads_image else None
        covered = [form.covered(number, self.source.size) for form in self.forms]
        return Rect(_hull([rect.rows for rect in covered]), _hull([rect.cols for rect in covered]))

    def query(self, number: int) -> WindowQuery:
        """Read a window's pixels, and return what it sends of them; raises what reading does."""
        window, looked_at = self.windows[number], self.reads(number)
        if looked_at is None:
            return WindowQuery(self.kept.batch(window, None) if self.kept else None)
        pixels, masked = self.source.read_masked(looked_at)
        missing, empty, counts = None, None, (0, 0)
        if self._looks_for_gaps:
            found, partly = self.gaps.missing(pixels, masked)
            own = self.windows.own(number).within(looked_at).slices
            counts = int(found[own].sum()), 0 if partly is None else int(partly[own].sum())
            if found.any():
                missing, empty = found, [form.empty(found, looked_at, number) for form in self.forms]
                if all(mask.all() for mask in empty):
                    return WindowQuery(None, empty, *counts)
        image = None
        if self._reads_image:
            seen = window.read.within(looked_at).slices
            hidden = None if missing is None or not missing[seen].any() else missing[seen]
            image = self.input.batch(pixels[:, *seen], hidden)
        return WindowQuery(image if self.kept is None else self.kept.batch(window, image), empty, *counts)

    def submit(self, pipeline: Pipeline, number: int, batch: NDArray[Any]) -> Future[Result]:
        window = self.windows[number]
        statistics = self.statistics if self.number is None else window_statistics(self.statistics, window)
        vector = self.known.vector(statistics, window)
        asked = RequestContext(window=window.tile, background=True, statistics=vector, levels=self.input.levels)
        return pipeline.submit(batch, deadline_s=DEADLINE_S, context=asked)

    def parts(
        self, number: int, query: WindowQuery, outputs: Mapping[str, NDArray[Any]] | None = None
    ) -> list[NDArray[Any]]:
        """Return a window's part of each result, of its query's outputs; None where it had no batch."""
        if outputs is None:
            return [form.empty_part(number) for form in self.forms]
        window = self.windows[number]
        if self.number is None and window.made != window.written:  # of a plan for images of any size
            outputs = {
                name: values[..., *self.windows.of_output(place)[number].kept]
                for place, (name, values) in enumerate(outputs.items())
            }
        return [
            form.part(number, outputs, query.empty[place] if query.empty else None)
            for place, form in enumerate(self.forms)
        ]


@dataclass(frozen=True)
class MappedImage:
    """An image that fits its plan: `known` are the plan's windows, `windows` those of the image.

    `size` is the image's own, of which `source` may be larger.
    """

    plan: Plan
    known: Windows
    options: WindowOptions
    source: RasterSource
    size: tuple[int, int]
    windows: ImageWindows
    input: WindowInput
    gaps: Gaps

    @classmethod
    def of(cls, plan: Plan, source: RasterSource, options: WindowOptions) -> MappedImage:
        """Return an image as a plan maps it; raises InputError for one that the plan is not for, UsageError."""
        known, size, source = windows_of(plan), source.size, padded(source, plan, options)
        windows = known.of(*source.size, source.name)
        window_input = WindowInput.of(plan, source, options)
        gaps = Gaps.of(source, window_input.bands, options)
        return cls(plan, known, options, source, size, windows, window_input, gaps)

    def measured(self, statistics: ImageStatistics | None) -> Self:
        return replace(self, input=self.input.measured(statistics, self.source.dtype))

    def step(self, forms: Sequence[WindowForm]) -> MapStep:
        return MapStep(self.known, self.windows, self.source, self.input, self.gaps, forms)


def windows_of(plan: Plan) -> Windows:
    if known := plan.windows:
        return known
    raise PlanError("this is not a map plan, its queries are whole images: make one with serfer map-plan")


@dataclass(frozen=True)
class PassForm:
    """The vector of what a window of a pass computes: its partial result, and behind it its parts of kept maps.

    Pixels without data are 0 here as they are in the map: the network sees them so, and so do its statistics.
    """

    windows: ImageWindows
    known: StatisticsPass

    def covered(self, number: int, _size: tuple[int, int]) -> Rect:
        return self.windows[number].read

    def empty(self, _missing: NDArray[np.bool_], _read: Rect, _number: int) -> NDArray[np.bool_]:
        return np.zeros(1, np.bool_)

    def part(
        self, _number: int, outputs: Mapping[str, NDArray[Any]], _empty: NDArray[np.bool_] | None
    ) -> NDArray[np.float32]:
        [values] = outputs.values()
        return np.ascontiguousarray(values.reshape(-1), np.float32)

    def empty_part(self, number: int) -> NDArray[np.float32]:
        """Never called: `empty` says of every window that there is something in it."""
        raise AssertionError(number)


def _hull(spans: Sequence[Span]) -> Span:
    return Span(min(span.start for span in spans), max(span.stop for span in spans))
