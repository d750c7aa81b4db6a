"""ONNX Runtime sessions: options of those of workers, profiles and checks, and the memory that they take."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final

from serfer.core.plan import Function, Plan
from serfer.core.units import MIB

WORKER_MB = 120
"""What a worker takes of its memory before it has any weights: interpreter, numpy, ONNX Runtime. Measured."""
LONGEST_RUN_S: Final = 60.0
"""Seconds that a run may take where nothing else ends it: as long as an invocation of a function may."""
_PADS_RIGHTLY = (1, 32)
_LOOKS = 8  # at a run, in the time that it may take
MAP_SESSIONS = 2
"""Sessions that a function of a map plan has memory for: the kind of most windows, and one at an edge of the image."""


def session_bytes(function: Function, graph: str) -> int:
    """Estimate the bytes of memory that the session of a function's graph keeps: twice those of weights and graph.

    Measured, those of weights 1.0 times for fully connected layers, 1.0 to 3.1 times and 1.7 on average for
    convolutions (AlexNet, VGG16 at 448 px, ResNet18 at 896 px); what ONNX Runtime has as pages of a file comes on top,
    which the system takes back.
    """
    return 2 * (
        function.weights.bytes + sum(tile_graph.bytes for tile_graph in function.graphs if tile_graph.path == graph)
    )


def function_session_bytes(plan: Plan, memory_mb: float) -> float:
    """Return what sessions may take of a function's memory: all but the worker's own, as the planner reckons.

    Of a map plan as much as MAP_SESSIONS take, since the maps of its windows have the rest.
    """
    if plan.windows:
        stage = plan.stages[0]
        return MAP_SESSIONS * max(session_bytes(stage.functions[tile.function], tile.graph) for tile in stage.tiles)
    return max(0.0, memory_mb - WORKER_MB) * MIB


def set_threads(options: Any, threads: int) -> None:  # noqa: ANN401 - an onnxruntime.SessionOptions
    """Make a session compute on `threads` threads (0: one for each core) that do not spin while they wait."""
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    keep_padding(options)


def keep_padding(options: Any) -> None:  # noqa: ANN401 - as above
    """Keep ONNX Runtime below 1.32 from merging a Pad of zeros into a MaxPool, where negative values lose it."""
    version = sys.modules["onnxruntime"].__version__  # whose options these are
    if tuple(map(int, version.split(".")[:2])) < _PADS_RIGHTLY:
        options.add_session_config_entry("optimization.disable_specified_optimizers", "Pad_Fusion")


@functools.cache
def register_arena() -> None:
    """Give this process the one arena in which sessions with `share_arena` work.

    It takes the place of an arena that the process had registered, limit included, and nothing tells whether there was
    one. So it is for processes of SerFer's own: sessions of a worker run one after the other, and each would keep an
    arena as large as its largest maps, for ResNet50 at 896 px in 14 stages of two tile shapes three times the memory.
    """
    runtime = sys.modules["onnxruntime"]
    memory = runtime.OrtMemoryInfo("Cpu", runtime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, runtime.OrtMemType.DEFAULT)
    runtime.create_and_register_allocator(memory, None)


def share_arena(options: Any) -> None:  # noqa: ANN401 - as above
    """Make a session work in the arena of `register_arena`, where that was called."""
    if register_arena.cache_info().currsize:
        options.add_session_config_entry("session.use_env_allocators", "1")


def run_within(
    runtime: ModuleType,
    session: Any,  # noqa: ANN401 - an onnxruntime.InferenceSession
    inputs: Mapping[str, Any],
    seconds: float = LONGEST_RUN_S,
) -> list[Any]:
    """Return a session's outputs; `runtime` is onnxruntime.

    Raises TimeoutError where that takes longer than about `seconds`: a network may have a loop whose turns its input
    decides, and no thread should compute for a query whose caller is gone. ONNX Runtime looks between operators.
    """
    options, looks = runtime.RunOptions(), watched_runs(seconds)
    looks[options] = [_LOOKS]
    try:
        outputs: list[Any] = session.run(None, dict(inputs), options)
    except Exception as error:  # ONNX Runtime's errors have no base class of their own
        if options.terminate:
            raise TimeoutError(f"one run takes more than {seconds:g} s") from error
        raise
    finally:
        del looks[options]
    return outputs


@functools.cache
def watched_runs(seconds: float) -> dict[Any, list[int]]:
    """Return the looks that are left at each run's options, for runs that end when they take longer than `seconds`.

    One thread looks at all of them, now and then: one for each run, or a lock or a timer, takes a sixth of a small
    network's time in process (measured).
    """
    looks: dict[Any, list[int]] = {}

    def look() -> None:
        while not pause.wait(seconds / _LOOKS):
            for options, left in looks.copy().items():  # other threads add and delete meanwhile
                left[0] -= 1
                options.terminate = left[0] < 0

    pause = threading.Event()
    threading.Thread(target=look, name="runs", daemon=True).start()
    return looks
