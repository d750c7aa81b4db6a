"""The ways to run a network over a page, each in its own process: at once, in SAHI's and MONAI's windows, by SerFer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

import serfer
from serfer.core.errors import UnavailableError
from serfer.core.plan import Preprocess
from serfer.local.process_pool import process_pool
from serfer.splitter.network.onnx_models import session_of
from serfer_bench.mapping.images import normalised
from serfer_bench.mapping.page import read
from serfer_bench.mapping.runs import command, kept_parts, kill, peak_bytes, run
from serfer_bench.mapping.text_boxes import Boxes, merged, text_boxes

SAHI_OVERLAP, MONAI_OVERLAP = 0.2, 0.25
_MONAI_SIGMA, _MONAI_LEAST = 0.125, 1e-3

Image = NDArray[np.uint8]
Map = NDArray[np.float32]
Network = Callable[[Image], Map]
Blending = Literal["constant", "gaussian"]


def starts(size: int, side: int, step: int) -> list[int]:
    """Return where windows start along an axis; the last one is moved inward, to end with the image."""
    last = max(0, size - side)
    return [*range(0, last, step), last]


def windows(size: tuple[int, int], side: int, step: int) -> Iterator[tuple[slice, slice]]:
    for top in starts(size[0], side, step):
        for left in starts(size[1], side, step):
            yield slice(top, min(top + side, size[0])), slice(left, min(left + side, size[1]))


def sliced(network: Network, image: Image, side: int) -> Boxes:
    found = []
    for rows, cols in windows(image.shape[1:], side, side - int(SAHI_OVERLAP * side)):
        boxes = text_boxes(network(image[:, rows, cols]))
        boxes[:, :4] += np.array([rows.start, cols.start] * 2, np.float32)
        found.append(boxes)
    return merged(np.concatenate(found))


def blended(network: Network, image: Image, side: int, blendings: Sequence[Blending]) -> list[Map]:
    """Return a map for each blending of the same windows, as MONAI does: the weighted mean of a pixel's windows."""
    size = image.shape[1:]
    totals = [np.zeros(size, np.float32) for _ in blendings]
    weights = [np.zeros(size, np.float32) for _ in blendings]
    for rows, cols in windows(size, side, int(side * (1 - MONAI_OVERLAP))):
        values = network(image[:, rows, cols])
        for blending, total, weight in zip(blendings, totals, weights, strict=True):
            share = importance(values.shape, blending)
            total[rows, cols] += values * share
            weight[rows, cols] += share
    return [np.divide(total, weight, out=total) for total, weight in zip(totals, weights, strict=True)]


def importance(size: tuple[int, ...], blending: Blending) -> Map:
    """Return the weights of a window's pixels (rows, cols): equal, or a bell of an eighth of each side."""
    if blending == "constant":
        return np.ones(size, np.float32)
    rows, cols = (np.exp(-0.5 * ((np.arange(side) - (side - 1) / 2) / (_MONAI_SIGMA * side)) ** 2) for side in size)
    bell = np.outer(rows, cols).astype(np.float32)
    return np.maximum(bell, max(bell.min(), _MONAI_LEAST))


PREPROCESS = Preprocess(
    resize=None, interpolation="bilinear", channels="BGR", scale=1 / 255, mean=(0.5,) * 3, std=(0.5,) * 3
)
_KILLED_AT = 0.6


@dataclass(frozen=True)
class Found:
    """What a way made of a page: boxes, the map (None where it has boxes alone), resident bytes at their peak, seconds.

    Both are of all its processes, from their start to their end.
    """

    boxes: Boxes
    values: Map | None
    peak_bytes: int
    seconds: float


@dataclass(frozen=True)
class Killed:
    """A map that was killed with `kept` of `windows` there, those of all passes; the next run found `resumed`."""

    kept: int
    windows: int
    resumed: int


def at_once(page: Path, network: Path, home: Path) -> Found:
    return _apart(_at_once, page, network, [home / "whole.npy"])[0]


def sliced_boxes(page: Path, network: Path, home: Path, side: int) -> Found:
    place = home / "sliced.npy"
    peak, seconds = _measured(_sliced, page, network, side, place)
    return Found(np.load(place), None, peak, seconds)


def blended_maps(page: Path, network: Path, home: Path, side: int) -> list[Found]:
    places = [home / "constant.npy", home / "gaussian.npy"]
    return _apart(_blended, page, network, places, side)


def planned(network: Path, home: Path, size: tuple[int, int]) -> int:
    plan = serfer.map_plan(network, [size], home / "plan", preprocess=PREPROCESS)
    assert plan.windows is not None  # noqa: S101 - of a map plan
    return len(plan.windows.of(*size)) + sum(len(one.of(*size)) for one in plan.windows.passes)


def by_serfer(page: Path, home: Path, windows: int, progress: Callable[[str], None]) -> tuple[Found, Killed]:
    result = home / "map.tif"
    parts, words = home / "map.tif.parts", command(page, home / "plan", result, ["--set", "compression=none"])
    started = time.monotonic()
    progress(f"serfer map, which is killed at {_KILLED_AT:.0%} of {windows} windows")
    kill(words, parts, round(_KILLED_AT * windows), 0)
    killed_s, kept = time.monotonic() - started, kept_parts(parts)
    progress(f"serfer map again, which has {kept} of {windows} windows")
    done = run(words)
    values = read(result)[0]
    found = Found(text_boxes(values), values, done.all_bytes, killed_s + done.seconds)
    return found, Killed(kept, windows, int(done.report["resumed"]))


def _apart(work: Callable[..., None], page: Path, network: Path, places: list[Path], *more: int) -> list[Found]:
    peak, seconds = _measured(work, page, network, places, *more)
    maps = [np.load(place) for place in places]
    return [Found(text_boxes(values), values, peak, seconds) for values in maps]


def _measured(work: Callable[..., None], *arguments: object) -> tuple[int, float]:
    started = time.monotonic()
    try:
        with process_pool(1) as pool:
            peak = pool.submit(_peak_of, work, arguments).result()
    except BrokenProcessPool as error:
        raise UnavailableError(
            "a process ended before its result was there, as one does that has no memory: give a smaller page"
        ) from error
    return peak, time.monotonic() - started


def _peak_of(work: Callable[..., None], arguments: tuple[object, ...]) -> int:
    work(*arguments)
    return peak_bytes(os.getpid())


def _at_once(page: Path, network: Path, places: list[Path]) -> None:
    np.save(places[0], _network(network)(read(page)))


def _sliced(page: Path, network: Path, side: int, place: Path) -> None:
    np.save(place, sliced(_network(network), read(page), side))


def _blended(page: Path, network: Path, places: list[Path], side: int) -> None:
    for place, values in zip(
        places, blended(_network(network), read(page), side, ("constant", "gaussian")), strict=True
    ):
        np.save(place, values)


def _network(path: Path) -> Network:
    session = session_of(path)
    name = session.get_inputs()[0].name

    def run(image: Image) -> Map:
        values: Map = session.run(None, {name: normalised(image, PREPROCESS)})[0][0, 0]
        return values

    return run
