"""Windows in this process, without a driver: what a check and a sample are computed by."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from onnxruntime import OrtValue

from serfer.core.passes import StatisticsSum, packed, unpacked, window_statistics
from serfer.core.plan import IMAGE_READ, ImageWindow
from serfer.core.units import MIB
from serfer.splitter.network.onnx_models import naming_failure, plain_options, session_of
from serfer.splitter.network.source import Array
from serfer.splitter.plan_dir.emit import TileGraph, input_name, output_name
from serfer.splitter.plan_dir.weights import WeightsFile
from serfer.splitter.windows.map_plan import WindowTiles

_WEIGHTS = "weights"
_NOTHING: Mapping[int, Array] = {}
_MOST_BYTES = 512 * MIB
"""Of models whose sessions stay open: a plan for images of any size has hundreds of kinds of windows."""


class WindowSessions:
    """Computes images window by window in this process, with a session for each kind that they have."""

    def __init__(self, cut: WindowTiles) -> None:
        self._cut = cut
        self._sessions: dict[int, _Session] = {}
        self._bytes = 0

    def run(self, image: Array) -> list[Array]:
        kept: dict[int, Array] = {}
        return self.map(image, self.statistics_of([image], [kept]), kept)

    def map(
        self,
        image: Array,
        statistics: Array,
        kept: Mapping[int, Array] = _NOTHING,
        *,
        chosen: Collection[int] | None = None,
    ) -> list[Array]:
        """Return the same with given statistics over the whole image, one vector, and the maps that passes kept.

        It is of `chosen` windows alone, if these are given.
        """
        windows = self._cut.windows.of(*image.shape[2:])
        graph = self._cut.tiles[0].graph
        views = [windows.of_output(number) for number in range(len(graph.outputs))]
        results = [
            np.zeros((1, graph.shape(name).channels, view.height, view.width), dtype=np.float32)
            for name, view in zip(graph.outputs, views, strict=True)
        ]
        numbers = range(len(windows)) if chosen is None else chosen
        for number, window in sorted(((index, windows[index]) for index in numbers), key=lambda pair: pair[1].tile):
            values = self._compute(image, window, statistics, self._cut.windows.reads, kept, len(views))
            for result, view, value in zip(results, views, values, strict=True):
                part = view[number]
                result[:, :, *part.written.slices] = value[..., *part.kept]
        return results

    def statistics_of(self, images: Sequence[Array], kept: Sequence[dict[int, Array]] = ()) -> Array:
        """Run the passes before the map over images, as if they were parts of one; return its statistics.

        The maps that passes keep of each image, (channels, rows, cols), are put into `kept` by their numbers.
        """
        statistics = np.zeros(self._cut.windows.statistics, np.float32)
        kept = kept or [{} for _ in images]
        for pass_ in self._cut.windows.passes:
            total, first = StatisticsSum(pass_.maps), len(kept[0])
            for image, maps in zip(images, kept, strict=True):
                windows = pass_.of(*image.shape[2:])
                for number, (kept_map, rect) in enumerate(
                    zip(pass_.keeps, windows[len(windows) - 1].keeps, strict=True)
                ):
                    maps[first + number] = np.empty((kept_map.channels, rect.rows.stop, rect.cols.stop), np.float32)
                for window in sorted(windows, key=lambda window: window.tile):
                    known = np.frombuffer(window_statistics(statistics.tobytes(), window), np.float32)
                    values = self._compute(image, window, known, pass_.reads, maps)[0].reshape(-1)
                    total.add(values)
                    shapes = [keep.shape(rect) for keep, rect in zip(pass_.keeps, window.keeps, strict=True)]
                    parts = unpacked(values[pass_.partial_size :], shapes)
                    for number, (rect, part) in enumerate(zip(window.keeps, parts, strict=True)):
                        maps[first + number][:, *rect.slices] = part
            found, start = total.values(), pass_.maps[0].start
            statistics[start : start + found.size] = found
        return statistics

    def _compute(
        self,
        image: Array,
        window: ImageWindow,
        statistics: Array,
        reads: Sequence[int],
        kept: Mapping[int, Array],
        outputs: int = 1,
    ) -> list[Array]:
        maps = {IMAGE_READ: image[0], **kept}
        parts = [maps[number][:, *rect.slices] for number, rect in zip(reads, window.reads, strict=True)]
        batch = packed(parts, image.shape[1]) if reads else np.ascontiguousarray(image[:, :, *window.read.slices])
        inputs = {input_name(0): batch}
        if self._cut.windows.values:
            vector = self._cut.windows.vector(statistics.tobytes(), window)
            inputs[input_name(1)] = np.frombuffer(vector, np.float32)[None]
        names = [output_name(output) for output in range(outputs)]
        with naming_failure(f"a window of {window.read.rows.size} x {window.read.cols.size} pixels"):
            return self._session(window.tile).run(names, inputs)

    def _session(self, tile: int) -> _Session:
        if tile not in self._sessions:
            graph = self._cut.tiles[tile].write()
            size = sum(value.nbytes for value in graph.weights.values())
            if self._bytes + size > _MOST_BYTES:
                self._sessions.clear()
                self._bytes = 0
            self._bytes += size
            self._sessions[tile] = _Session(graph)
        return self._sessions[tile]


class _Session:
    """Runs a graph, with large weights as they lie in memory: writing them into a model takes most time."""

    def __init__(self, tile: TileGraph) -> None:
        inside = {name for names in tile.inside.values() for name in names}
        file = WeightsFile(_WEIGHTS, {name: tile.weights[name] for name in tile.weights.keys() - inside}, frozenset())
        names = [name for name in tile.weights if name in file]
        self._weights = [np.ascontiguousarray(tile.weights[name]) for name in names]  # of which a session has no copy
        options = plain_options()
        options.add_external_initializers(names, [OrtValue.ortvalue_from_numpy(weight) for weight in self._weights])
        self._session = session_of(tile.model({_WEIGHTS: file}), options)

    def run(self, names: Sequence[str], inputs: Mapping[str, Array]) -> list[Array]:
        values: list[Array] = self._session.run(names, inputs)
        return values
