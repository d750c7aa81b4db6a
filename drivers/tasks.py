"""The tasks of a query, from its plan and the reports so far: what each carries by value, and what it must answer with.

Pure: it waits for nothing and changes nothing but its own records. Whether a task that failed is tried again is decided
in serfer/core/run_machine.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from drivers.driver import TTL_MARGIN_S, RequestContext
from serfer.core.inline import inline_stages
from serfer.core.keys import input_key, query_keys
from serfer.core.plan import Plan
from serfer.core.run_machine import Failure, FailureKind, StageRun
from serfer.core.wire import Buffer, Crop, Report, Task

ONE_SLOT = 1 << 20
"""Bytes of a query up to which one node of a cluster serves it with fewer round trips than several."""


@dataclass(frozen=True)
class DataPaths:
    """The transport of a query's tensors: stages whose outputs go by value; whether its keys share a cluster slot."""

    by_value: tuple[bool, ...]
    one_slot: bool


def data_paths(plan: Plan, batch: int, limit: int) -> DataPaths:
    """Return the paths of a query of `batch` images, where payloads and answers carry at most `limit` bytes."""
    by_value = inline_stages(plan, batch, limit)
    stored = sum(
        stage.written(tile, batch)
        for stage, inline in zip(plan.stages, by_value, strict=True)
        for tile in stage.tiles
        if not inline
    )
    return DataPaths(by_value, one_slot=stored <= ONE_SLOT)


@dataclass(frozen=True)
class QueryRequest:
    """The input of a query: `batch` images in the `crops` of the first stage's tiles, between two times of the clock.

    The lowest `age` is that of the oldest query.
    """

    crops: Sequence[Crop]
    batch: int
    started: float
    deadline: float
    age: int
    context: RequestContext

    @property
    def ttl(self) -> float:
        """The time to live of its values in a store, in seconds."""
        return self.deadline - self.started + TTL_MARGIN_S


@dataclass
class QueryTasks:
    """The tasks of a query called `name`, each built once, however often it is tried."""

    plan: Plan
    name: str
    request: QueryRequest
    paths: DataPaths
    _tasks: dict[tuple[int, int], Task] = field(default_factory=dict)
    _stored_crops: frozenset[int] = frozenset()

    def store_crops(self, limit: int) -> dict[str, Buffer]:
        """Return the crops of more than `limit` bytes, by key: their tasks will read them from the store."""
        crops = enumerate(self.request.crops)
        large = {tile: crop.data for tile, crop in crops if crop.data and len(crop.data) > limit}
        self._stored_crops = frozenset(large)
        return {input_key(self.name, tile): data for tile, data in large.items()}

    def task(self, stage: int, tile: int, stages: Sequence[StageRun]) -> Task:
        """Return a tile's task, where `stages` have run."""
        task = self._tasks.get((stage, tile))
        if task is None:
            task = self._tasks[stage, tile] = Task(
                plan=self.plan.digest,
                query=self.name,
                stage=stage,
                tile=tile,
                batch=self.request.batch,
                ttl=self.request.ttl,
                crop=self._crop(tile) if stage == 0 else None,
                inline=self.paths.by_value[stage],
                parts=self._parts(stage, tile, stages),
                request=self.request.context.request,
            )
        return task

    def _crop(self, tile: int) -> Crop:
        crop = self.request.crops[tile]
        return Crop(crop.dtype, None) if tile in self._stored_crops else crop

    def _parts(self, stage: int, tile: int, stages: Sequence[StageRun]) -> tuple[Buffer | None, ...]:
        """Cut what a tile reads of by-value stages out of their answers, without copying it."""
        parts: list[Buffer | None] = []
        batch = self.request.batch
        for piece in self.plan.stages[stage].tiles[tile].pieces:
            if self.paths.by_value[piece.stage]:
                report = stages[piece.stage].tiles[piece.tile].report
                value = memoryview((report.output if report else None) or b"")
                places = [(part.start(batch), part.length(batch)) for part in piece.ranges]
                parts.extend(value[start : start + length] for start, length in places)
            else:
                parts.extend([None] * len(piece.ranges))
        return tuple(parts)

    def answer_bytes(self, task: Task) -> int:
        """Return how many bytes of tensors a task answers with."""
        stage = self.plan.stages[task.stage]
        return stage.written(stage.tiles[task.tile], task.batch) if task.inline else 0

    def payload_bytes(self, stages: int) -> list[int]:
        """Return the bytes of tensors in the payloads of the tasks of each of the first `stages` stages."""
        sizes = [0] * stages
        for task in self._tasks.values():
            sizes[task.stage] += task.payload_bytes
        return sizes

    def keys(self, stages: int) -> list[str]:
        """Return what the query may have left in the store, of which the first `stages` stages were released."""
        tiles = [stage.grid.tiles for stage in self.plan.stages]
        stored = [stage for stage in range(stages) if not self.paths.by_value[stage]]
        return query_keys(self.name, tiles, stored, sorted(self._stored_crops))


def checked(result: Report | Failure, answer_bytes: int) -> Report | Failure:
    """Return a result, or a failure for a report whose output has not the size that the plan says, if it says any."""
    if not answer_bytes or isinstance(result, Failure):
        return result
    size = len(result.output or b"")
    if size == answer_bytes:
        return result
    message = f"answered with {size} bytes, the plan says {answer_bytes}"
    return Failure(FailureKind.FAILED_IN_CODE, "PlanError", message)
