"""An execution environment of a baseline's function: its plan and its sessions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.costs.sessions import register_arena
from serfer.core.costs.vcpus import threads
from serfer.core.errors import InputError
from serfer.core.plan import Plan, Stage
from serfer.core.wire import Task
from serfer.lambdas.cell_codec import crop_to_input
from serfer.lambdas.sessions import SessionCache
from serfer.plan_directory import load_plan

Array = NDArray[np.float32]


class Environment:
    """Computes tiles of a plan out of `root`, a directory with some of its stages' files, on so many threads."""

    def __init__(self, plan: Plan, root: Path, threads: int) -> None:
        self.plan = plan
        self._root = root
        self._threads = threads
        register_arena()
        self._sessions = SessionCache(root, threads)

    @classmethod
    def of_this_process(cls) -> Environment:
        root = Path(os.environ["LAMBDA_TASK_ROOT"])
        plan, memory_mb = load_plan(root), int(os.environ["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"])
        return cls(plan, root, threads(memory_mb, plan.memory_per_vcpu))

    def without_sessions(self) -> Environment:
        return Environment(self.plan, self._root, self._threads)

    def holds(self, stage: Stage, tile: int) -> bool:
        return (self._root / stage.functions[stage.tiles[tile].function].weights.path).is_file()

    def compute(self, number: int, index: int, arrays: Sequence[NDArray[Any]]) -> list[Array]:
        """Return what tile `index` of stage `number` writes, from what it reads: float32, or an image's uint8 pixels.

        Raises InputError for a tile that the plan does not have, and for pixels of another size than the tile's.
        """
        stages = self.plan.stages
        if not (0 <= number < len(stages) and 0 <= index < len(stages[number].tiles)):
            raise InputError(f"the plan has no tile {index} of stage {number}")
        stage = stages[number]
        values = [self._normalised(number, index, one) if one.dtype == np.uint8 else one for one in arrays]
        feed = {f"input{place}": np.ascontiguousarray(value) for place, value in enumerate(values)}
        outputs: list[Array] = self._sessions.get(stage, stage.tiles[index]).run(None, feed)
        return outputs

    def _normalised(self, number: int, index: int, pixels: NDArray[Any]) -> Array:
        stage = self.plan.stages[number]
        task = Task(self.plan.digest, "", number, index, len(pixels), 0.0)
        crop = "uint8", np.ascontiguousarray(pixels).data.cast("B")
        return crop_to_input(crop, task, stage, stage.tiles[index], self.plan.preprocess)


def merge(stage: Stage, outputs: Sequence[Sequence[Array]]) -> list[Array]:
    batch = len(outputs[0][0])
    merged = [np.empty(shape.of(shape.whole, batch), dtype=np.float32) for shape in stage.outputs]
    for tile, values in zip(stage.tiles, outputs, strict=True):
        for whole, shape, rect, value in zip(merged, stage.outputs, tile.outputs, values, strict=True):
            whole[shape.slices(rect)] = value
    return merged
