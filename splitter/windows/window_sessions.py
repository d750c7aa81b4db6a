"""Windows in this process, without a driver: what a check and a sample are computed by."""

from __future__ import annotations

import numpy as np

from serfer.core.plan import ImageWindow
from serfer.core.statistics_sum import StatisticsSum
from serfer.splitter.network.onnx_models import session_of
from serfer.splitter.network.source import Array
from serfer.splitter.plan_dir.emit import input_name, output_name
from serfer.splitter.windows.map_plan import WindowTiles


class WindowSessions:
    """Computes images window by window in this process, with a session for each kind."""

    def __init__(self, cut: WindowTiles) -> None:
        self._cut = cut
        self._sessions = [session_of(graph.model({})) for graph in cut.graphs]
        self._statistics = np.zeros((1, cut.windows.statistics), np.float32)

    def run(self, image: Array) -> Array:
        """Return the whole map (1, K, H, W) of an image (1, C, H, W)."""
        windows = self._cut.windows.of(*image.shape[2:])
        self._add_up(image)
        graph = self._cut.tiles[0].graph
        channels = graph.shape(graph.output).channels
        result = np.empty((1, channels, windows.height, windows.width), dtype=np.float32)
        for window in windows:
            result[:, :, *window.written.slices] = self._compute(image, window)
        return result

    def _add_up(self, image: Array) -> None:
        """Run the passes before the map."""
        for one in self._cut.windows.passes:
            total = StatisticsSum(one.maps)
            for window in one.of(*image.shape[2:]):
                total.add(self._compute(image, window).reshape(-1))
            values = total.values()
            self._statistics[0, one.maps[0].start :][: values.size] = values

    def _compute(self, image: Array, window: ImageWindow) -> Array:
        inputs = {input_name(0): np.ascontiguousarray(image[:, :, *window.read.slices])}
        if self._statistics.size:
            inputs[input_name(1)] = self._statistics
        [values] = self._sessions[window.tile].run([output_name(0)], inputs)
        return values
