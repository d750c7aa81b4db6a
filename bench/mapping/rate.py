"""How fast this machine's cores compute a map plan's windows in ONNX Runtime alone, a process of one thread on each."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from serfer.core.costs.sessions import register_arena, set_threads, share_arena
from serfer.core.plan import Plan
from serfer.splitter.network.onnx_models import session_of
from serfer.splitter.plan_dir.emit import input_name

_START_S = 300.0


@dataclass(frozen=True)
class Rate:
    """Multiply-accumulates a second of all processes at once, and of a second of processor time.

    The latter does not depend on what share of the cores other programs have.
    """

    per_s: float
    per_processor_s: float


class WindowRate:
    """Processes that hold a session for each kind of windows of a plan, and compute nothing until they are asked."""

    def __init__(self, plan: Plan, size: tuple[int, int], sample: int, pipes: Sequence[Any]) -> None:
        assert plan.windows is not None  # noqa: S101 - of a map plan
        tiles = [window.tile for window in plan.windows.of(*size)]
        self._macs = [plan.stages[0].tiles[tile].macs for tile in tiles]
        step = max(1, len(tiles) // sample)
        self._chosen = tiles[::step]
        self._chosen_macs = sum(self._macs[::step])
        self._pipes = pipes

    @property
    def macs(self) -> int:
        """The multiply-accumulates of all windows of the image, those of overlaps as well."""
        return sum(self._macs)

    def measure(self) -> Rate:
        for number, pipe in enumerate(self._pipes):
            pipe.send(self._chosen[number :: len(self._pipes)])
        times = [pipe.recv() for pipe in self._pipes]
        starts, ends, used = zip(*times, strict=True)
        return Rate(self._chosen_macs / (max(ends) - min(starts)), self._chosen_macs / sum(used))


@contextmanager
def window_rate(
    plan: Plan, directory: Path, size: tuple[int, int], processes: int, sample: int
) -> Iterator[WindowRate]:
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(processes)
    started, pipes = [], []
    graphs = [directory / tile.graph for tile in plan.stages[0].tiles]
    rects = [tile.inputs[0] for tile in plan.stages[0].tiles]
    shapes = [(1, plan.input.channels, rect.rows.size, rect.cols.size) for rect in rects]
    try:
        for _ in range(processes):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=_serve, args=(theirs, barrier, graphs, shapes), daemon=True)
            process.start()
            theirs.close()
            started.append(process)
            pipes.append(ours)
        for pipe in pipes:
            pipe.recv()
        yield WindowRate(plan, size, sample, pipes)
    finally:
        for pipe in pipes:
            pipe.close()
        for process in started:
            process.kill()
            process.join()


def _serve(pipe: Any, barrier: Barrier, graphs: Sequence[Path], shapes: Sequence[tuple[int, ...]]) -> None:  # noqa: ANN401
    sessions, batches = [], []
    for graph, shape in zip(graphs, shapes, strict=True):
        options = ort.SessionOptions()
        set_threads(options, 1)
        register_arena()
        share_arena(options)
        sessions.append(session_of(graph, options))
        batches.append(np.random.default_rng(0).standard_normal(shape, dtype=np.float32))
        sessions[-1].run(None, {input_name(0): batches[-1]})
    pipe.send(None)
    while True:
        try:
            tiles = pipe.recv()
        except EOFError:
            return
        barrier.wait(_START_S)
        start, used = time.monotonic(), time.process_time()
        for tile in tiles:
            sessions[tile].run(None, {input_name(0): batches[tile]})
        pipe.send((start, time.monotonic(), time.process_time() - used))
