"""Windows in this process, without a driver: what a check and a sample are computed by."""

from __future__ import annotations

import numpy as np
from onnxruntime import InferenceSession

from serfer.splitter.network.onnx_models import session_of
from serfer.splitter.network.source import Array
from serfer.splitter.plan_dir.emit import input_name, output_name
from serfer.splitter.windows.map_plan import WindowTiles


class WindowSessions:
    """Computes images window by window in this process, with a session for each kind that they have."""

    def __init__(self, cut: WindowTiles) -> None:
        self._cut = cut
        self._sessions: dict[int, InferenceSession] = {}  # each has the weights: a plan may have hundreds of kinds

    def run(self, image: Array) -> Array:
        """Return the whole map (1, K, H, W) of an image (1, C, H, W)."""
        windows = self._cut.windows.of(*image.shape[2:])
        graph = self._cut.tiles[0].graph
        channels = graph.shape(graph.output).channels
        result = np.empty((1, channels, windows.height, windows.width), dtype=np.float32)
        for window in windows:
            part = np.ascontiguousarray(image[:, :, *window.read.slices])
            if window.tile not in self._sessions:
                self._sessions[window.tile] = session_of(self._cut.tiles[window.tile].write().model({}))
            [values] = self._sessions[window.tile].run([output_name(0)], {input_name(0): part})
            result[:, :, *window.written.slices] = values[..., *window.kept]
        return result
