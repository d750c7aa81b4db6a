"""The sessions of an environment: built when first needed, kept for its life, over weights that are read once."""

from __future__ import annotations

import mmap
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from serfer.core.costs.sessions import set_threads
from serfer.core.errors import PlanError
from serfer.core.plan import Function, Stage, Tile

MAX_SESSIONS = 16
_FATAL = 4  # of ONNX Runtime's severities: all others are also exceptions
_SHOWN = 300  # characters of what ONNX Runtime says
_NO_MEMORY = re.compile(r"Failed to allocate memory for requested buffer of size (\d+)")
Array = NDArray[np.float32]


class SessionCache:
    """ONNX Runtime sessions of one or more stages, by tile graph; the least recently used goes when it is full.

    Sessions of a stage share one mapping of its weights file, so that the file is read once however many tile shapes
    an environment meets.
    """

    def __init__(self, directory: Path, threads: int, limit: int = MAX_SESSIONS) -> None:
        self._directory = directory
        self._threads = threads
        self._limit = limit
        self._lock = threading.Lock()
        self._weights: dict[str, mmap.mmap | bytes] = {}
        self._sessions: OrderedDict[str, ort.InferenceSession] = OrderedDict()
        self.weight_loads = 0
        self.built = 0

    def get(self, stage: Stage, tile: Tile) -> ort.InferenceSession:
        """Return the session of a tile of a stage; raises PlanError for a missing file."""
        graph = tile.graph
        with self._lock:
            session = self._sessions.get(graph)
            if session is None:
                session = self._sessions[graph] = self._build(stage.functions[tile.function], graph)
                self.built += 1
                if len(self._sessions) > self._limit:
                    self._sessions.popitem(last=False)
            else:
                self._sessions.move_to_end(graph)
            return session

    def run(self, stage: Stage, tile: Tile, inputs: Mapping[str, Array]) -> list[Array]:
        """Compute a tile's outputs from its inputs; raises PlanError where its graph cannot be."""
        session = self.get(stage, tile)
        try:
            outputs: list[Array] = session.run(None, dict(inputs))
        except Exception as error:  # ONNX Runtime's errors have no base class of their own
            raise _not_computed(tile.graph, error) from error
        return outputs

    def _build(self, function: Function, graph: str) -> ort.InferenceSession:
        try:
            weights = self._load(function.weights.path)
            model = (self._directory / graph).read_bytes()
        except OSError as error:
            raise PlanError(
                f"{error.filename} cannot be read: {error.strerror}; is this the stage's function?"
            ) from error
        options = ort.SessionOptions()
        options.log_severity_level = _FATAL
        set_threads(options, self._threads)
        if weights:
            name = Path(function.weights.path).name
            options.add_external_initializers_from_files_in_memory([name], [weights], [len(weights)])
        try:
            return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise _not_computed(graph, error) from error

    def _load(self, path: str) -> mmap.mmap | bytes:
        if path not in self._weights:
            file = self._directory / path
            with file.open("rb") as handle:
                empty = file.stat().st_size == 0  # an empty file cannot be mapped
                self._weights[path] = b"" if empty else mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
            self.weight_loads += 1
        return self._weights[path]


def _not_computed(graph: str, error: Exception) -> PlanError:
    """Return in one line why ONNX Runtime does not take a graph, or could not run it."""
    text = str(error)
    if match := _NO_MEMORY.search(text):
        return PlanError(
            f"{graph} cannot be computed: one of its tensors takes {int(match[1]):,} bytes, more memory than there is; "
            "ask about fewer images, or split the model again with more --memory"
        )
    return PlanError(f"{graph} cannot be computed: {' '.join(text.split())[:_SHOWN]}; split the model again")
