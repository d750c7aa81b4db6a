"""Exact windows beside the habit: windows with a fixed overlap, each taken for an image of its own, blended linearly.

The network is a U-Net with random weights, so its maps mean nothing; how far they are from its map of the whole image
does. All of it runs in this process, on ONNX Runtime's own threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from serfer.cli.shared.options import JsonOption, status_line
from serfer.cli.shared.tables import Results, Table, publish
from serfer.core.errors import UsageError
from serfer.core.exactness import relative_error
from serfer.splitter.network.graph import Graph
from serfer.splitter.network.onnx_models import session_of
from serfer.splitter.network.source import load
from serfer.splitter.plan_dir.emit import in_one_piece, input_name
from serfer.splitter.tiling.from_onnx import from_onnx
from serfer.splitter.tiling.regions import tile_macs, whole_regions
from serfer.splitter.windows.map_plan import Network, WindowTile, window_tiles
from serfer.splitter.windows.pass_windows import PassTile
from serfer.splitter.windows.window_sessions import WindowSessions

Array = NDArray[np.float32]
_SMALL, _SAMPLE = 64, 256
_OVERLAPS = (32, 64, 128)


@dataclass(frozen=True)
class Way:
    """A way to compute the map of an image: its largest error relative to the range, and what it took.

    `differs` is the share of pixels with another best class, `work` the multiply-accumulates relative to the network's
    on the whole image, `seconds` the median of the rounds.
    """

    what: str
    error: float
    differs: float
    work: float
    seconds: float


def network(size: tuple[int, int], width: int) -> Network:
    """Return a U-Net of three halvings that can be read at any size; its weights are random."""
    import torch  # noqa: PLC0415 - slow to import

    from serfer_bench.pipeline.unet import Unet  # noqa: PLC0415 - imports torch

    torch.manual_seed(0)
    unet = Unet(width).eval()
    unet.centre(torch.from_numpy(picture((_SAMPLE, _SAMPLE))))
    example = np.zeros((1, 3, *(min(_SMALL, side) for side in size)), dtype=np.float32)
    source, _ = load(unet, example, any_size=size)

    def at(height: int, wide: int, like: tuple[int, int] | None = None) -> Graph:
        return from_onnx(source.at(like or (height, wide)), height, wide, source.outputs, any_size=True)

    return Network(source, at)


def picture(size: tuple[int, int]) -> Array:
    """Return a generated image (1, 3, H, W): waves and noise, the same each time."""
    rows, cols = np.indices(size, dtype=np.float32)
    waves = np.stack([np.sin(rows / (37 + band)) * np.cos(cols / (53 - band)) for band in (0, 5, 10)])
    noise = np.random.default_rng(0).normal(0, 0.2, waves.shape)
    return (waves + noise)[None].astype(np.float32)


def measure(
    size: tuple[int, int], window: int, width: int, rounds: int, progress: Callable[[str], None]
) -> tuple[list[Way], dict[str, Array]]:
    """Compute an image's map in one piece, by exact windows and with fixed overlaps; returns the maps, too."""
    progress("reading the network")
    net = network(size, width)
    image, graph = picture(size), net.checked(size)
    cut = window_tiles(net, [size], window)
    whole = session_of(in_one_piece(graph).model({}))
    macs = tile_macs(graph, graph.nodes, whole_regions(graph, graph.nodes))
    exact = sum(tile_macs(*_of(cut.tiles[each.tile])) for each in cut.windows.of(*size))
    windows = WindowSessions(cut)
    ways: dict[str, tuple[Callable[[], Array], float]] = {
        "the whole image at once": (lambda: whole.run(None, {input_name(0): image})[0], 1.0),
        f"exact windows of {window}": (lambda: windows.run(image)[0], exact / macs),
    }
    for overlap in _OVERLAPS:
        blended = Blended(net.at(window, window), window, overlap)
        ways[f"overlap {overlap}, blended"] = (lambda run=blended: run(image), blended.macs(size) / macs)  # type: ignore[misc]
    maps: dict[str, Array] = {}
    seconds: dict[str, list[float]] = {what: [] for what in ways}
    for number in range(rounds):
        for what, (run, _) in ways.items():
            progress(f"round {number + 1} of {rounds}: {what}")
            started = time.perf_counter()
            maps[what] = run()
            seconds[what].append(time.perf_counter() - started)
    [truth, *_] = maps.values()
    return [
        Way(what, relative_error(maps[what], truth), _differs(maps[what], truth), work, median(seconds[what]))
        for what, (_, work) in ways.items()
    ], maps


def _of(tile: WindowTile | PassTile) -> tuple[Graph, Any, Any]:
    return tile.graph, tile.graph.nodes, tile.regions


def _differs(one: Array, truth: Array) -> float:
    return float((one.argmax(axis=1) != truth.argmax(axis=1)).mean())


class Blended:
    """Windows of a fixed size and overlap, weighted by a ramp over the overlap and averaged."""

    def __init__(self, graph: Graph, window: int, overlap: int) -> None:
        if not 0 < overlap < window:
            raise UsageError(f"an overlap of {overlap} is not less than windows of {window}")
        self._session = session_of(in_one_piece(graph).model({}))
        self._graph, self._window, self._overlap = graph, window, overlap
        ramp = np.minimum(np.arange(1, window + 1), np.arange(window, 0, -1)) / (overlap + 1)
        side = np.minimum(ramp, 1).astype(np.float32)
        self._weights = side[:, None] * side

    def _starts(self, size: int) -> list[int]:
        step = self._window - self._overlap
        last = max(0, size - self._window)
        return sorted({*range(0, last, step), last})

    def macs(self, size: tuple[int, int]) -> int:
        """Count the multiply-accumulates of all windows."""
        each = tile_macs(self._graph, self._graph.nodes, whole_regions(self._graph, self._graph.nodes))
        return each * len(self._starts(size[0])) * len(self._starts(size[1]))

    def __call__(self, image: Array) -> Array:
        """Return the map (1, K, H, W) of an image (1, C, H, W) that is no smaller than a window."""
        height, width = image.shape[2:]
        total = np.zeros((1, self._graph.shape(self._graph.output).channels, height, width), dtype=np.float32)
        weight = np.zeros((height, width), dtype=np.float32)
        for row in self._starts(height):
            for col in self._starts(width):
                place = slice(row, row + self._window), slice(col, col + self._window)
                part = np.ascontiguousarray(image[:, :, *place])
                total[:, :, *place] += self._session.run(None, {input_name(0): part})[0] * self._weights
                weight[place] += self._weights
        total /= weight
        return total


def results(ways: list[Way]) -> Results:
    """Return the ways side by side."""
    head = ("way", "largest error / range", "pixels of another class", "multiply-accumulates", "seconds")
    body = [
        (way.what, f"{way.error:.1e}", f"{way.differs:.2%}", f"x{way.work:.3f}", f"{way.seconds:.2f}") for way in ways
    ]
    return Results([asdict(way) for way in ways], [Table(head, body)], ["The network's weights are random."])


def draw(image: Array, maps: dict[str, Array], path: Path) -> None:
    """Draw the image, its classes, and where exact windows and a fixed overlap have another value than the whole."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to import

    [truth, exact, habit, *_] = maps.values()
    names = list(maps)
    span = float(np.ptp(truth))
    figure = Figure(figsize=(12, 3.2), layout="constrained")
    axes = figure.subplots(1, 4)
    shown = np.clip((image[0].transpose(1, 2, 0) + 1.5) / 3, 0, 1)
    axes[0].imshow(shown)
    axes[1].imshow(truth[0].argmax(axis=0), cmap="tab10", interpolation="nearest")
    for axis, values in zip(axes[2:], (exact, habit), strict=True):
        error = np.abs(values - truth)[0].max(axis=0) / span
        drawn = axis.imshow(np.log10(error + 1e-9), cmap="magma", vmin=-8, vmax=0)
    figure.colorbar(drawn, ax=axes[2:], label="log10 of error / range", shrink=0.8)
    titles = ("image", "classes (random weights)", names[1], names[2])
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title, fontsize=9)
        axis.set_axis_off()
    figure.savefig(path, dpi=110)


def command(
    rows: Annotated[int, typer.Option(min=128, help="The image's height in pixels, a multiple of 8.")] = 2200,
    cols: Annotated[int, typer.Option(min=128, help="The image's width in pixels, a multiple of 8.")] = 3000,
    window: Annotated[int, typer.Option(min=136, help="The side of windows in pixels, a multiple of 8.")] = 512,
    width: Annotated[int, typer.Option(min=1, max=256, help="Channels of the U-Net's first map.")] = 16,
    rounds: Annotated[int, typer.Option(min=1, help="How often each way is timed, in turn.")] = 3,
    draw_to: Annotated[Path | None, typer.Option("--draw", help="Draw image, classes and errors to this file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare exact windows of an image with windows of fixed overlaps that are blended."""
    if rows % 8 or cols % 8 or window % 8:
        raise UsageError("the network halves maps three times: give sizes that are multiples of 8")
    with status_line() as progress:
        ways, maps = measure((rows, cols), window, width, rounds, progress)
        if draw_to is not None:
            draw(picture((rows, cols)), maps, draw_to)
    publish(results(ways), as_json=as_json)
