"""What passes over an image keep on the disk: partial results of statistics, and maps that later passes read (ADR 64).

    RESULT.parts.pass-1           partial results of the first pass
    RESULT.parts.kept-1           the first kept map: a chunk for each window of its pass; or in work

Each is a directory as that of the result's parts is, under the same identity, and stays until the result is written. A
kept map goes earlier, as soon as no pass that is left reads it.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import InputError, UnavailableError
from serfer.core.passes import packed
from serfer.core.plan.windows import IMAGE_READ, ImageWindow, ImageWindows, Windows
from serfer.core.zarr import Axis, ChunkedArray
from serfer.raster import ResultParts

_CHUNKS = "c.*"
_DIGITS = 8


@dataclass(frozen=True)
class KeptInput:
    """What windows of a pass, or of the map, read in place of the image: the maps of some `numbers`."""

    numbers: tuple[int, ...]
    parts: Mapping[int, ResultParts]
    channels: int

    @property
    def with_image(self) -> bool:
        return IMAGE_READ in self.numbers

    def batch(self, window: ImageWindow, image: NDArray[Any] | None) -> NDArray[np.float32]:
        """Return a window's input, of its batch of the `image` (1, channels, rows, cols) float32 where that is read."""
        parts = [
            image[0] if image is not None and number == IMAGE_READ else self.parts[number].area(rect)
            for number, rect in zip(self.numbers, window.reads, strict=True)
        ]
        return packed(parts, self.channels)


@dataclass(frozen=True)
class PassFiles:
    """The directories of the passes over an image of a `size`, beside the parts of its map at `place`.

    Kept maps lie there as well, or in the folder `work`.
    """

    windows: Windows
    size: tuple[int, int]
    place: Path
    work: Path | None
    identity: Mapping[str, Any]

    @property
    def partial(self) -> list[Path]:
        return [self._beside(f"pass-{number + 1}") for number in range(len(self.windows.passes))]

    @property
    def kept(self) -> list[Path]:
        return [self._beside(f"kept-{number + 1}", self.work) for number in range(len(self.windows.kept))]

    def _beside(self, what: str, work: Path | None = None) -> Path:
        if work is None:
            return self.place.with_name(f"{self.place.name}.{what}")
        # A folder of work is for several results, perhaps of one name.
        digest = hashlib.sha256(str(self.place.absolute()).encode()).hexdigest()[:_DIGITS]
        return work / f"{self.place.name}.{digest}.{what}"

    @property
    def kept_where(self) -> str:
        return str(self.kept[0].parent.absolute()) if self.windows.kept else ""

    def of(self, number: int) -> ImageWindows:
        return self.windows.passes[number].of(*self.size)

    def opened(self, stack: ExitStack) -> tuple[list[ResultParts], list[ResultParts]]:
        self._check_work()
        partial = [stack.enter_context(self._partial(number)) for number in range(len(self.windows.passes))]
        return partial, [stack.enter_context(self._open_kept_map(number)) for number in range(len(self.windows.kept))]

    def left(self, *, mapped: bool) -> list[list[int]]:
        partial = [_there(place, self._partial, number) for number, place in enumerate(self.partial)]
        kept = [_there(place, self._open_kept_map, number) for number, place in enumerate(self.kept)]
        return self.missing(partial, kept, mapped=mapped)

    def missing(self, partial: Sequence[set[int]], kept: Sequence[set[int]], *, mapped: bool) -> list[list[int]]:
        """Return the windows of each pass that are missing; a kept map is missing only if what is left reads it."""
        found, read = list[list[int]](), set[int]() if mapped else {*self.windows.reads}
        for number in reversed(range(len(partial))):
            done = partial[number].intersection(
                *(kept[kept_number] for kept_number in self.windows.kept_by(number) if kept_number in read)
            )
            found.append([] if mapped else sorted({*range(len(self.of(number)))} - done))
            read |= {*self.windows.passes[number].reads} if found[-1] else set()
        return found[::-1]

    def discard(self) -> None:
        for place in (*self.partial, *self.kept):
            ResultParts.discard(place)

    def in_words(self) -> str:
        places = (self.place, *self.partial, *self.kept)
        found = [place for place in places if any(place.glob(_CHUNKS))] or [self.place]
        beside = sum(path.parent == self.place.parent for path in found[1:])
        elsewhere = len(found[1:]) - beside
        more = [f"{beside} more beside it"] if beside else []
        more += [f"{elsewhere} in {self.work}"] if elsewhere else []
        return " and ".join([str(found[0]), *more])

    def most_bytes(self) -> int:
        windows, arrays = self.windows, [self._array(number) for number in range(len(self.windows.kept))]
        changes = [0] * (len(windows.passes) + 2)
        for number in range(len(windows.passes)):
            for kept in windows.kept_by(number):
                size = arrays[kept].chunk_bytes * arrays[kept].rows.count * arrays[kept].cols.count
                changes[number] += size
                changes[windows.last_reader(kept) + 1] -= size
        return max(accumulate(changes))

    def check_room(self, parts: ResultParts | None = None) -> None:
        if not self.windows.kept:
            return
        self._check_work()
        folder = self.kept[0].parent.absolute()
        folder = next(
            parent for parent in (folder, *folder.parents) if parent.exists()
        )  # of a result whose folder is to be
        there = sum(file.stat().st_size for place in self.kept for file in place.glob("c.*"))
        needed, free, more = self.most_bytes() - there, shutil.disk_usage(folder).free, 0
        if parts is not None and parts.directory.stat().st_dev == folder.stat().st_dev:
            more = (parts.count - len(parts.done())) * parts.array.chunk_bytes
        if needed + more > free:
            also = f", parts of the result {more:,}" if more else ""
            raise UnavailableError(
                f"maps that are kept between passes take {needed:,} bytes more in {folder}{also}, and its disk has "
                f"{free:,} free: make room, name a folder of another disk with work, or make the plan with "
                "kept_maps=never"
            )

    def _check_work(self) -> None:
        if self.windows.kept and self.work is not None and not self.work.is_dir():
            raise InputError(f"work {self.work} is not a folder: make it, or name another one")

    def _partial(self, number: int) -> ResultParts:
        one, windows = self.windows.passes[number], self.of(number)
        height, width = (len(axis.windows) for axis in (windows.rows, windows.cols))
        rows, cols = (Axis(tuple(range(size + 1))) for size in (height, width))
        dims = one.partial_size, height, width
        array = ChunkedArray("statistics", "float32", dims, 1, one.partial_size, rows, cols, flat=False)
        return ResultParts.create_or_resume(self.partial[number], {**self.identity, "pass": number + 1}, array)

    def _open_kept_map(self, number: int) -> ResultParts:
        identity = {**self.identity, "kept": number + 1}
        return ResultParts.create_or_resume(self.kept[number], identity, self._array(number))

    def _array(self, kept: int) -> ChunkedArray:
        number = next(
            pass_number for pass_number in range(len(self.windows.passes)) if kept in self.windows.kept_by(pass_number)
        )
        place, windows = kept - self.windows.kept_by(number).start, self.of(number)
        rows, cols = (
            Axis((0, *(window.keeps[place].stop for window in axis.windows))) for axis in (windows.rows, windows.cols)
        )
        channels = self.windows.kept[kept].channels
        return ChunkedArray("kept", "float32", (channels, rows.size, cols.size), 1, channels, rows, cols, flat=False)


def _there(place: Path, of: Callable[[int], ResultParts], number: int) -> set[int]:
    if not place.exists():
        return set()
    with of(number) as parts:
        return parts.done()
