"""The passes over an image that add up statistics of the whole of it, before its map.

What they compute is kept until the result is written (kept_maps.py): a map that was stopped goes on in its pass, and
never with the statistics of another image, plan or option.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.passes import add_up, unpacked
from serfer.mapping.engine import Engine, MapTask, Outcome
from serfer.mapping.kept_maps import KeptInput, PassFiles
from serfer.mapping.steps import MapStep
from serfer.raster import ResultParts


@dataclass(frozen=True)
class PassParts:
    """Keeps what windows of a pass compute: parts of kept maps, and last, by which a window is done, partial results.

    A partial result is one position of an array for each window, the values in its channels.
    """

    step: MapStep
    parts: ResultParts
    kept: Sequence[ResultParts]

    def put(self, number: int, values: NDArray[Any]) -> None:
        known = self.step.known.passes[self.step.number or 0]
        rects, size = self.step.windows[number].keeps, known.partial_size
        shapes = [keep.shape(rect) for keep, rect in zip(known.keeps, rects, strict=True)]
        for kept, part in zip(self.kept, unpacked(values[size:], shapes), strict=True):
            kept.put(number, part)
        self.parts.put(number, values[:size, None, None])


class ImagePasses:
    """The passes over an image before its map; none for a network that looks at neighbourhoods alone."""

    def __init__(self, files: PassFiles, stack: ExitStack) -> None:
        """Open, or make, what is kept of the passes, until `stack` is closed; raises as `PassFiles.opened`."""
        self._files = files
        self._partial, self._kept = files.opened(stack)
        self._there = {*range(len(self._kept))}

    def missing(self, *, mapped: bool) -> list[list[int]]:
        partial, kept = ([part.done() for part in parts] for parts in (self._partial, self._kept))
        return self._files.missing(partial, kept, mapped=mapped)

    def run(self, task: MapTask, missing: Sequence[int], watch: Callable[[Outcome], None]) -> Outcome:
        """Compute what is missing of each pass, then of the map; ends where windows fail or the dollars are spent."""
        windows, statistics, outcome = self._files.windows, self._initial_statistics(), Outcome()
        for number, (known, left) in enumerate(zip(windows.passes, self.missing(mapped=False), strict=True)):
            self._delete_unread(number)
            one = self._task(task, known.reads, statistics)
            outcome += Engine(self._of(one, number), _behind(outcome, watch)).run(left)
            if outcome.failures or outcome.over_ceiling:
                return outcome
            self._add_up(number, statistics)
        self._delete_unread(len(windows.passes))
        one = self._task(task, windows.reads, statistics)
        return outcome + Engine(one, _behind(outcome, watch)).run(missing)

    def _task(self, task: MapTask, reads: tuple[int, ...], statistics: NDArray[np.float32]) -> MapTask:
        step = replace(task.step, statistics=statistics.tobytes())
        if reads:
            kept = KeptInput(reads, dict(enumerate(self._kept)), len(step.input.bands))
            step = replace(step, kept=kept, input=step.input.as_values())
        return replace(task, step=step)

    def _of(self, task: MapTask, number: int) -> MapTask:
        step = task.step.in_pass(number)
        kept = [self._kept[kept_number] for kept_number in self._files.windows.kept_by(number)]
        return replace(task, step=step, parts=[PassParts(step, self._partial[number], kept)])

    def _add_up(self, number: int, statistics: NDArray[np.float32]) -> None:
        parts = self._partial[number]
        partial = (parts.values(window).reshape(-1) for window in range(parts.count))
        add_up(self._files.windows.passes[number].maps, partial, statistics)

    def _delete_unread(self, number: int) -> None:
        """Delete the kept maps that no pass from `number` on reads; the map counts as one behind the passes."""
        for kept in [
            kept_number for kept_number in self._there if self._files.windows.last_reader(kept_number) < number
        ]:
            self._kept[kept].remove()
            self._there.remove(kept)

    def statistics(self) -> NDArray[np.float32] | None:
        """Return the statistics of the whole image, empty where the network takes none; None where some are missing."""
        if any(len(parts.done()) < parts.count for parts in self._partial):
            return None
        statistics = self._initial_statistics()
        for number in range(len(self._partial)):
            self._add_up(number, statistics)
        return statistics

    def _initial_statistics(self) -> NDArray[np.float32]:
        windows = self._files.windows
        return np.zeros(windows.statistics, np.float32)

    def remove(self) -> None:
        for parts in (*self._partial, *(self._kept[number] for number in self._there)):
            parts.remove()


def _behind(before: Outcome, watch: Callable[[Outcome], None]) -> Callable[[Outcome], None]:
    return lambda now: watch(before + now)
