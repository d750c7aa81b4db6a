"""Windows in this process, without a driver: what a check and a sample are computed by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnxruntime import InferenceSession

from serfer.core.plan import ImageWindow
from serfer.core.statistics_sum import StatisticsSum
from serfer.splitter.network.onnx_models import session_of
from serfer.splitter.network.source import Array
from serfer.splitter.plan_dir.emit import input_name, output_name
from serfer.splitter.windows.map_plan import WindowTiles


class WindowSessions:
    """Computes images window by window in this process, with a session for each kind that they have."""

    def __init__(self, cut: WindowTiles) -> None:
        self._cut = cut
        self._sessions: dict[int, InferenceSession] = {}  # each has the weights: a plan may have hundreds of kinds

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
        for number, window in enumerate(windows):
            values = self._compute(image, window, statistics, len(views))
            for result, view, value in zip(results, views, values, strict=True):
                part = view[number]
                result[:, :, *part.written.slices] = value if len(views) > 1 else value[..., *part.kept]
        return results

    def statistics_of(self, images: Sequence[Array]) -> Array:
        """Run the passes before the map over images, as if they were parts of one; return its statistics."""
        statistics = np.zeros(self._cut.windows.statistics, np.float32)
        for one in self._cut.windows.passes:
            total = StatisticsSum(one.maps)
            for image in images:
                for window in one.of(*image.shape[2:]):
                    total.add(self._compute(image, window, statistics)[0].reshape(-1))
            values, start = total.values(), one.maps[0].start
            statistics[start : start + values.size] = values
        return statistics

    def _compute(self, image: Array, window: ImageWindow, statistics: Array, outputs: int = 1) -> list[Array]:
        inputs = {input_name(0): np.ascontiguousarray(image[:, :, *window.read.slices])}
        if statistics.size:
            inputs[input_name(1)] = statistics[None]
        if window.tile not in self._sessions:
            self._sessions[window.tile] = session_of(self._cut.tiles[window.tile].write().model({}))
        values: list[Array] = self._sessions[window.tile].run([output_name(each) for each in range(outputs)], inputs)
        return values
