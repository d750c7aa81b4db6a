"""A plan's tiles computed by threads of one process, without any orchestration: the pipeline's reference.

Maps lie in memory, a stage's tiles are taken by whichever thread is free, and nothing is encoded, sent or stored.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from serfer.core.plan import IMAGE, Plan, Stage, Tile
from serfer.lambdas.sessions import SessionCache
from serfer.pipeline.reference import normalised

Array = NDArray[np.float32]
_Maps = dict[tuple[int, int], Array]


class Threads:
    """Runs a plan on `threads` threads, each a worker's session options with one thread."""

    def __init__(self, plan: Plan, directory: Path, threads: int) -> None:
        self._plan = plan
        self._sessions = SessionCache(directory, threads=1)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="serfer-bench")

    def __call__(self, pixels: NDArray[Any]) -> Array:
        maps: _Maps = {(IMAGE, IMAGE): normalised(self._plan, pixels)}
        for number, stage in enumerate(self._plan.stages):
            for output, shape in enumerate(stage.outputs):
                maps[number, output] = np.empty(shape.of(shape.whole, len(pixels)), dtype=np.float32)
            done = [self._pool.submit(self._tile, number, stage, tile, maps) for tile in stage.tiles]
            for future in done:
                future.result()
        return maps[len(self._plan.stages) - 1, 0]

    def _tile(self, number: int, stage: Stage, tile: Tile, maps: _Maps) -> None:
        given = {
            f"input{index}": np.ascontiguousarray(
                maps[source.stage, source.output][source.shape.slices(tile.inputs[index])]
            )
            for index, source in enumerate(stage.inputs)
        }
        outputs = self._sessions.get(stage, tile).run(None, given)
        for output, value in enumerate(outputs):
            maps[number, output][stage.outputs[output].slices(tile.outputs[output])] = value

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()
