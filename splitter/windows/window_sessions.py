"""Windows in this process, without a driver: what a check and a sample are computed by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnxruntime import InferenceSession

from serfer.core.plan import ImageWindow
from serfer.core.statistics_sum import StatisticsSum, told
from serfer.core.units import MIB
from serfer.splitter.network.onnx_models import session_of
from serfer.splitter.network.source import Array
from serfer.splitter.plan_dir.emit import input_name, output_name
from serfer.splitter.windows.map_plan import WindowTiles

_MOST_BYTES = 512 * MIB
"""Of models whose sessions stay open: a plan for images of any size has hundreds of kinds of windows."""


class WindowSessions:
    """Computes images window by window in this process, with a session for each kind that they have."""

    def __init__(self, cut: WindowTiles) -> None:
        self._cut = cut
        self._sessions: dict[int, InferenceSession] = {}
        self._bytes = 0

    def run(self, image: Array) -> list[Array]:
        """Return the whole map (1, K, H, W) of each output for an image (1, C, H, W)."""
        return self.map(image, self.statistics_of([image]))

    def map(self, image: Array, statistics: Array) -> list[Array]:
        """Return the same with given statistics over the whole image, one vector."""
        windows = self._cut.windows.of(*image.shape[2:])
        graph = self._cut.tiles[0].graph
        views = [windows.of_output(number) for number in range(len(graph.outputs))]
        results = [
            np.empty((1, graph.shape(name).channels, view.height, view.width), dtype=np.float32)
            for name, view in zip(graph.outputs, views, strict=True)
        ]
        for number, window in sorted(enumerate(windows), key=lambda each: each[1].tile):
            values = self._compute(image, window, statistics, len(views))
            for result, view, value in zip(results, views, values, strict=True):
                part = view[number]
                result[:, :, *part.written.slices] = value[..., *part.kept]
        return results

    def statistics_of(self, images: Sequence[Array]) -> Array:
        """Run the passes before the map over images, as if they were parts of one; return its statistics."""
        statistics = np.zeros(self._cut.windows.statistics, np.float32)
        for one in self._cut.windows.passes:
            total = StatisticsSum(one.maps)
            for image in images:
                for window in sorted(one.of(*image.shape[2:]), key=lambda each: each.tile):
                    known = np.frombuffer(told(statistics.tobytes(), window), np.float32)
                    total.add(self._compute(image, window, known)[0].reshape(-1))
            values, start = total.values(), one.maps[0].start
            statistics[start : start + values.size] = values
        return statistics

    def _compute(self, image: Array, window: ImageWindow, statistics: Array, outputs: int = 1) -> list[Array]:
        inputs = {input_name(0): np.ascontiguousarray(image[:, :, *window.read.slices])}
        if statistics.size:
            inputs[input_name(1)] = statistics[None]
        names = [output_name(each) for each in range(outputs)]
        values: list[Array] = self._session(window.tile).run(names, inputs)
        return values

    def _session(self, tile: int) -> InferenceSession:
        """Return the session of a tile, one that is open or a new one; each has all weights, so few stay open."""
        if tile not in self._sessions:
            model = self._cut.tiles[tile].write().model({})
            if self._bytes + model.ByteSize() > _MOST_BYTES:
                self._sessions.clear()
                self._bytes = 0
            self._bytes += model.ByteSize()
            self._sessions[tile] = session_of(model)
        return self._sessions[tile]
