"""The sessions of an environment: built when first needed, kept for its life, over weights that are read once.

ONNX Runtime maps weights in files itself, and gives each tensor back once the session has its own form of it ("packed",
for fully connected layers and most convolutions). Of fetched weights, which it takes from memory, it makes a copy. Most
resident memory in MB while a session is built, and after it, in a fresh process, of which interpreter and imports have
55 (ONNX Runtime 1.31, two threads):

    network    weights   in files         fetched: as a buffer   streamed             in pieces and parts
    AlexNet        233   378, then 303    689, then 312          456, then 312        359, then 295
    ResNet152      229   440, then 433    807, then 567          577 to 663, then 652 468 to 476, then 296
    VGG16          528   980, then 652    1631, then 711         1044, then 652       673, then 590

As a buffer there are three copies at once: what was fetched, ONNX Runtime's own and the packed ones. As a stream
(model_stream.py) a tensor leaves the buffer while ONNX Runtime reads it: two, until the packed ones are complete. In
pieces and parts (model_parts.py) only 64 MB of a fully connected layer or a part's convolutions are there twice, and
meanwhile the C library's heap gives back what ONNX Runtime has freed. So a worker takes 126 to 247 MB above its
weights while it starts, 300 at most being aimed at; a network whose convolutions leave no place for a cut takes its
weights 2.2 times (ResNet152 so: 540 MB). Outputs are the same bits. The price, against a buffer, is processor time:
0.3 s for AlexNet, 0.2 s for ResNet152, 0.6 s for VGG16. A function of several graphs has the buffer until the last one
has its session.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from serfer.core.costs.sessions import run_within, session_bytes, set_threads, share_arena, watched_runs
from serfer.core.errors import PlanError, TaskFailedError
from serfer.core.plan import Function, Stage, Tile

if TYPE_CHECKING:
    from concurrent.futures import Future

    from serfer.lambdas.weights import WeightSource

_TRIM: Callable[[int], object] = getattr(ctypes.CDLL(None), "malloc_trim", int)
"""Gives free blocks of the C library's heap back to the system, where the library is GNU's."""
_TRIM_S = 0.05
_WEIGHTS_IN = "session.model_external_initializers_file_folder_path"
_FATAL = 4  # of ONNX Runtime's severities: all others are also exceptions
_SHOWN = 300  # characters of what ONNX Runtime says
_NO_MEMORY = re.compile(r"Failed to allocate memory for requested buffer of size (\d+)")
_NO_ROOM = "std::bad_alloc"
Array = NDArray[np.float32]


class Session(Protocol):
    """What computes a tile: an ONNX Runtime session, or several."""

    def run(self, names: None, inputs: dict[str, Array], options: ort.RunOptions | None = None) -> list[Array]: ...


class _Chain:
    def __init__(self, sessions: Sequence[ort.InferenceSession]) -> None:
        self._sessions = sessions
        self._reads = [session.get_inputs()[0].name for session in sessions]

    def run(self, names: None, inputs: dict[str, Array], options: ort.RunOptions | None = None) -> list[Array]:
        outputs: list[Array] = self._sessions[0].run(names, inputs, options)
        for session, name in zip(self._sessions[1:], self._reads[1:], strict=True):
            outputs = session.run(names, {name: outputs[0]}, options)
        return outputs


class SessionCache:
    """ONNX Runtime sessions of one or more stages, by tile graph; the least recently used goes where memory ends.

    All together take about `most_bytes` (`session_bytes`), the newest one in any case. A run may take `longest_run_s`;
    None: as long as the function's own timeout, which Lambda keeps. With `one_block` a session computes in one block
    of memory from its second run on: 0.1 ms less for a network of 350 operators, but that block comes on top of what
    the first run took, a gigabyte for windows of 2,400 pixels. Graphs are in `directory`, and so are weights,
    unless `source` fetches them. Any number of threads may use it: a thread that needs a session which is being built
    waits for that one, and no other thread waits. Over fetched weights one session is built at a time.
    """

    def __init__(
        self,
        directory: Path,
        threads: int,
        most_bytes: float = math.inf,
        source: WeightSource | None = None,
        longest_run_s: float | None = None,
        *,
        one_block: bool = True,
    ) -> None:
        self._directory = directory
        self._threads = threads
        self._one_block = one_block
        self._most_bytes = most_bytes
        self._source = source
        self._longest_run_s = longest_run_s
        if longest_run_s is not None:
            watched_runs(longest_run_s)  # starts its thread now: with no memory for one, a run would wait for ever
        self._lock = threading.Lock()  # of the sessions, never held while one is built
        self._weights_lock = threading.RLock()  # of weights, held while a session is built over fetched ones
        self._in_files: set[str] = set()
        self._fetched: dict[str, mmap.mmap | bytes] = {}
        self._arriving: dict[str, Future[mmap.mmap | bytes]] = {}
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._bytes: dict[str, int] = {}
        self._being_built: dict[str, threading.Lock] = {}
        self.weight_loads = 0
        self.built = 0

    def disconnect(self) -> None:
        if self._source is not None:
            self._source.close()

    def get(self, stage: Stage, tile: Tile) -> Session:
        return self._get(stage.functions[tile.function], tile.graph)

    def load(self, functions: Sequence[Function]) -> float:
        """Fetch the weights of functions, and build the session of one with a single graph while the next arrive.

        What is there already stays. Returns the seconds that were waited for weights. Raises PlanError or
        StoreUnavailableError where weights cannot be had.
        """
        source, waited = self._source, 0.0
        if source is None:
            return waited
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - for fetched weights alone

        with self._weights_lock, ThreadPoolExecutor(1, "fetching") as thread:
            missing = [
                function
                for function in functions
                if function.weights.path not in self._fetched and not self._has_all_sessions(function)
            ]
            for function, following in zip_longest(missing, missing[1:]):
                started = time.perf_counter()
                self._load_weights(function)
                waited += time.perf_counter() - started
                if following:
                    self._arriving[following.weights.path] = thread.submit(source.fetch, following.weights)
                if len(function.graphs) == 1:
                    self._get(function, function.graphs[0].path)
        return waited

    def run(self, stage: Stage, tile: Tile, inputs: Mapping[str, Array]) -> list[Array]:
        session = self._get(stage.functions[tile.function], tile.graph)
        try:
            if self._longest_run_s is not None:
                return run_within(ort, session, inputs, self._longest_run_s)
            outputs: list[Array] = session.run(None, dict(inputs))
        except TimeoutError as error:
            raise TaskFailedError(f"{tile.graph}: {error}") from error
        except Exception as error:  # ONNX Runtime's errors have no base class of their own
            raise _failure_text(tile.graph, error) from error
        return outputs

    def _get(self, function: Function, graph: str) -> Session:
        with self._lock:
            if graph in self._sessions:
                self._sessions.move_to_end(graph)
                return self._sessions[graph]
            being_built = self._being_built.setdefault(graph, threading.Lock())
        with self._weights_lock if self._source else nullcontext(), being_built:
            with self._lock:
                session = self._sessions.get(graph)  # there by now if this thread was not the first
            return session or self._add(function, graph)

    def _add(self, function: Function, graph: str) -> Session:
        session = self._build(function, graph)
        with self._lock:
            self._sessions[graph] = session
            self._bytes[graph] = session_bytes(function, graph)
            self.built += 1
            while len(self._sessions) > 1 and sum(self._bytes.values()) > self._most_bytes:
                oldest, _ = self._sessions.popitem(last=False)
                del self._bytes[oldest]
        weights = self._fetched.pop(function.weights.path, None) if self._has_all_sessions(function) else None
        if isinstance(weights, mmap.mmap):
            weights.close()
        return session

    def _has_all_sessions(self, function: Function) -> bool:
        with self._lock:
            return all(graph.path in self._sessions for graph in function.graphs)

    def _build(self, function: Function, graph: str) -> Session:
        try:
            weights = self._load_weights(function)
            model = (self._directory / graph).read_bytes()
        except OSError as error:
            raise PlanError(
                f"{error.filename} cannot be read: {error.strerror}; is this the stage's function?"
            ) from error
        try:
            if weights:
                last = all(other.path in self._sessions for other in function.graphs if other.path != graph)
                return self._session_over_weights(weights, function, model, give_back=last)
            options = self._options()
            if function.weights.bytes:
                options.add_session_config_entry(_WEIGHTS_IN, str((self._directory / function.weights.path).parent))
            session: Session = _session(model, options)
        except Exception as error:  # as in `run`
            raise _failure_text(graph, error) from error
        _TRIM(0)  # a few MB of what ONNX Runtime has freed, in half a millisecond
        return session

    def _session_over_weights(
        self, weights: mmap.mmap | bytes, function: Function, model: bytes, *, give_back: bool
    ) -> Session:
        from serfer.lambdas.model_parts import parts  # noqa: PLC0415 - for fetched weights alone
        from serfer.lambdas.model_stream import MOST_BYTES, streamed  # noqa: PLC0415 - same

        sessions: list[ort.InferenceSession] = []
        found = parts(model)
        streams = all(part.weight_bytes <= MOST_BYTES for part in found)
        with _heap_trimmed():
            for part in found if streams else parts(model, streams=False):
                options, source = self._options(), part.model(sessions[-1].get_outputs()[0].shape if sessions else ())
                if streams:
                    with streamed(source, weights, give_back=give_back) as readable:
                        sessions.append(_session(readable, options))
                else:
                    name = Path(function.weights.path).name
                    options.add_external_initializers_from_files_in_memory([name], [weights], [len(weights)])
                    sessions.append(_session(source, options))
        return _Chain(sessions) if sessions[1:] else sessions[0]

    def _options(self) -> ort.SessionOptions:
        options = ort.SessionOptions()
        options.log_severity_level = _FATAL
        options.enable_mem_pattern = self._one_block
        set_threads(options, self._threads)
        share_arena(options)
        return options

    def _load_weights(self, function: Function) -> mmap.mmap | bytes:
        path = function.weights.path
        if self._source is None:
            with self._weights_lock:
                if path not in self._in_files:
                    with (self._directory / path).open("rb"):
                        self._in_files.add(path)
                    self.weight_loads += 1
            return b""
        if path not in self._fetched:
            arriving = self._arriving.pop(path, None)
            self._fetched[path] = arriving.result() if arriving else self._source.fetch(function.weights)
            self.weight_loads += 1
        return self._fetched[path]


def _session(model: bytes | str, options: ort.SessionOptions) -> ort.InferenceSession:
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@contextmanager
def _heap_trimmed() -> Iterator[None]:
    """Of blocks that ONNX Runtime frees meanwhile, the heap kept up to 75 MB more in one start of four."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(_TRIM_S):
            _TRIM(0)

    thread = threading.Thread(target=repeat, name="heap")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        _TRIM(0)


def _failure_text(graph: str, error: Exception) -> PlanError:
    text = str(error)
    if match := _NO_MEMORY.search(text):
        return PlanError(
            f"{graph} cannot be computed: one of its tensors takes {int(match[1]):,} bytes, more memory than there is; "
            "ask about fewer images, or split the model again with more --memory"
        )
    if _NO_ROOM in text:
        return PlanError(
            f"{graph} cannot be computed: the function has too little memory; make the plan again with more --memory, "
            "or with a smaller --window for a map"
        )
    return PlanError(f"{graph} cannot be computed: {' '.join(text.split())[:_SHOWN]}; split the model again")
