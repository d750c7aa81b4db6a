"""The passes over an image that add up statistics of the whole of it, before its map.

Partial results are kept as the map's parts are, each pass in a directory of its own beside theirs, until the result is
written: a map that was stopped goes on in its pass, and never with the statistics of another image, plan or option.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.geometry import Rect
from serfer.core.plan.windows import ImageWindows, StatisticsPass, Windows
from serfer.core.statistics_sum import StatisticsSum
from serfer.core.zarr import Axis, ChunkedArray
from serfer.mapping.engine import Engine, MapTask, Outcome
from serfer.raster import ResultParts


@dataclass(frozen=True)
class PartialForm:
    """The form of partial results: one position of an `array` for each window, the values in its channels.

    Pixels without data are 0 here as they are in the map: the network sees them so, and so do its statistics.
    """

    array: ChunkedArray

    @classmethod
    def of(cls, one: StatisticsPass, windows: ImageWindows) -> PartialForm:
        """Return the form of a pass over an image with such windows."""
        height, width = (len(axis.windows) for axis in (windows.rows, windows.cols))
        rows, cols = (Axis(tuple(range(size + 1))) for size in (height, width))
        dims = one.partial_size, height, width
        return cls(ChunkedArray("statistics", "float32", dims, 1, one.partial_size, rows, cols, flat=False))


@dataclass(frozen=True)
class PartialTarget:
    """Keeps the partial results of a pass; of every window, whatever data its pixels have."""

    windows: ImageWindows
    parts: ResultParts

    def covered(self, number: int, _size: tuple[int, int]) -> Rect:
        """Return the pixels that a window reads."""
        return self.windows[number].read

    def empty(self, _missing: NDArray[np.bool_], _read: Rect, _number: int) -> NDArray[np.bool_]:
        """Return that there is something in every window."""
        return np.zeros(1, np.bool_)

    def keep(self, number: int, outputs: Mapping[str, NDArray[Any]], _empty: NDArray[np.bool_] | None) -> None:
        """Keep a window's partial result: the first values of its output, (1, channels, rows, cols)."""
        [values] = outputs.values()
        channels = self.parts.array.channels
        self.parts.put(number, np.ascontiguousarray(values.reshape(-1)[:channels, None, None], np.float32))

    def keep_empty(self, number: int) -> None:
        """Never called: `empty` says of every window that there is something in it."""
        raise AssertionError(number)


@dataclass(frozen=True)
class ImagePass:
    """A pass over an image, number `number` of those before its map, and what is kept of it."""

    number: int
    windows: ImageWindows
    known: StatisticsPass
    parts: ResultParts

    @property
    def missing(self) -> list[int]:
        """The windows whose partial results are not there."""
        return sorted({*range(len(self.windows))} - self.parts.done())

    def run(self, task: MapTask, statistics: bytes, watch: Callable[[Outcome], None]) -> Outcome:
        """Compute the windows that are missing, with the statistics of the passes before."""
        targets = [PartialTarget(self.windows, self.parts)]
        task = replace(task, windows=self.windows, targets=targets, statistics=statistics, number=self.number)
        return Engine(task, watch).run(self.missing)

    def add_up(self, statistics: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        """Write the statistics of the pass to their place; windows are added in their order, whenever they came."""
        total = StatisticsSum(self.known.maps)
        for number in range(len(self.windows)):
            total.add(self.parts.values(number).reshape(-1))
        values, start = total.values(), self.known.maps[0].start
        statistics[start : start + values.size] = values


class ImagePasses:
    """The passes over an image before its map; none for a network that looks at neighbourhoods alone."""

    def __init__(self, passes: Sequence[ImagePass], windows: Windows) -> None:
        self._passes, self._windows = passes, windows

    @classmethod
    def open(
        cls, windows: Windows, size: tuple[int, int], place: Path, identity: Mapping[str, Any], stack: ExitStack
    ) -> ImagePasses:
        """Open, or make, what is kept of the passes beside the parts of the map at `place`, until `stack` is closed.

        Raises as `ResultParts.create_or_resume`.
        """
        passes = []
        for number, one in enumerate(windows.passes):
            parts = stack.enter_context(_parts(one, number, size, place, identity))
            passes.append(ImagePass(number, one.of(*size), one, parts))
        return cls(passes, windows)

    @staticmethod
    def left_of(
        windows: Windows, size: tuple[int, int], place: Path, identity: Mapping[str, Any]
    ) -> list[tuple[ImageWindows, list[int]]]:
        """Return what `left` will be, without making anything."""
        found = []
        for number, one in enumerate(windows.passes):
            missing = [*range(len(one.of(*size)))]
            if _directory(place, number).exists():
                with _parts(one, number, size, place, identity) as parts:
                    missing = sorted({*missing} - parts.done())
            found.append((one.of(*size), missing))
        return found

    @staticmethod
    def discard(windows: Windows, place: Path) -> None:
        """Delete what is kept of passes, of whatever job; raises as `ResultParts.discard`."""
        for number in range(len(windows.passes)):
            ResultParts.discard(_directory(place, number))

    @property
    def left(self) -> list[tuple[ImageWindows, list[int]]]:
        """The windows of each pass, and the numbers of those that are missing."""
        return [(each.windows, each.missing) for each in self._passes]

    def run(self, task: MapTask, missing: Sequence[int], watch: Callable[[Outcome], None]) -> Outcome:
        """Compute what is missing of each pass, and then the `missing` windows of the map, which is `task`.

        All ends with the pass in which windows fail, or the dollars are spent.
        """
        known = self._windows.known or [0.0] * self._windows.statistics
        statistics, outcome = np.array(known, np.float32), Outcome()
        for each in self._passes:
            outcome += each.run(task, statistics.tobytes(), _behind(outcome, watch))
            if outcome.failures or outcome.over_ceiling:
                return outcome
            each.add_up(statistics)
        return outcome + Engine(replace(task, statistics=statistics.tobytes()), _behind(outcome, watch)).run(missing)

    def statistics(self) -> np.ndarray[Any, np.dtype[np.float32]] | None:
        """Return the statistics of the whole image, empty where the network takes none; None where some are missing."""
        if any(each.missing for each in self._passes):
            return None
        statistics = np.array(self._windows.known or [0.0] * self._windows.statistics, np.float32)
        for each in self._passes:
            each.add_up(statistics)
        return statistics

    def remove(self) -> None:
        """Delete what is kept."""
        for each in self._passes:
            each.parts.remove()


def kept_in(windows: Windows, place: Path) -> str:
    """Return in words where windows of a map and of its passes are kept, if any are; empty where none are."""
    places = [place, *(_directory(place, number) for number in range(len(windows.passes)))]
    found = [str(each) for each in places if each.exists()]
    return " and ".join([*found[:1], *([f"{len(found) - 1} more beside it"] if len(found) > 1 else [])])


def _behind(before: Outcome, watch: Callable[[Outcome], None]) -> Callable[[Outcome], None]:
    """Return what watches a pass behind others."""
    return lambda now: watch(before + now)


def _parts(
    one: StatisticsPass, number: int, size: tuple[int, int], place: Path, identity: Mapping[str, Any]
) -> ResultParts:
    array = PartialForm.of(one, one.of(*size)).array
    return ResultParts.create_or_resume(_directory(place, number), {**identity, "pass": number + 1}, array)


def _directory(place: Path, number: int) -> Path:
    return place.with_name(f"{place.name}.pass-{number + 1}")
