"""The tasks of a query, from its plan and the reports so far: what each carries by value, and what it must answer with.

Pure: it waits for nothing and changes nothing but its own records. Whether a task that failed is tried again is decided
in serfer/core/run_machine.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from drivers.clock import LOOP_CLOCK, Clock
from drivers.driver import TTL_MARGIN_S, RequestContext
from serfer.core.inline import inline_stages
from serfer.core.keys import inbox_key, input_key, query_keys
from serfer.core.plan import Piece, Plan
from serfer.core.plan.borders import Member, read_outside
from serfer.core.plan.gang_times import patience_s
from serfer.core.run_machine import WRONG_ANSWER, Failure, FailureKind, StageRun
from serfer.core.wire import Buffer, Crop, Membership, Report, Task

_LEAST_PATIENCE_S = 0.001
ONE_SLOT = 1 << 20
"""Bytes of a query up to which one node of a cluster serves it with fewer round trips than several."""


@dataclass(frozen=True)
class DataPaths:
    """The transport of a query's tensors: stages whose outputs go by value; whether its keys share a cluster slot."""

    by_value: tuple[bool, ...]
    one_slot: bool


def data_paths(plan: Plan, batch: int, limit: int, *, gangs: bool = False) -> DataPaths:
    """Return the paths of a query of `batch` images, where payloads and answers carry at most `limit` bytes."""
    by_value = inline_stages(plan, batch, limit, gangs=gangs)
    kept = {stage for gang in plan.gangs for stage in gang.stages if stage not in read_outside(plan, gang)}
    stored = sum(
        stage.written(tile, batch)
        for number, stage in enumerate(plan.stages)
        for tile in stage.tiles
        if not by_value[number] and not (gangs and number in kept)
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
    def first(self) -> int:
        """The tile of the plan that the query's first one is: 0, or a window's."""
        return self.context.window or 0

    @property
    def ttl(self) -> float:
        """The time to live of its values in a store, in seconds."""
        return self.deadline - self.started + TTL_MARGIN_S


@dataclass
class QueryTasks:
    """The tasks of a query called `name`, each built once, however often it is tried.

    A member of a gang waits for a border until the deadline at most, less where serfer/core/plan/gang_times.py says so.
    """

    plan: Plan
    name: str
    request: QueryRequest
    paths: DataPaths
    clock: Clock = LOOP_CLOCK
    _tasks: dict[tuple[int, int, bool], Task] = field(default_factory=dict)
    _stored_crops: frozenset[int] = frozenset()
    _carried: bool = False

    def store_crops(self, limit: int) -> dict[str, Buffer]:
        """Return the crops of more than `limit` bytes, by key: their tasks will read them from the store."""
        crops = enumerate(self.request.crops, self.request.first)
        large = {tile: crop.data for tile, crop in crops if crop.data and len(crop.data) > limit}
        self._stored_crops = frozenset(large)
        return {input_key(self.name, tile): data for tile, data in large.items()}

    def carry_crops(self) -> None:
        """Let payloads carry all crops; what the store got of them is deleted with the query's other keys."""
        self._carried = True

    def task(self, stage: int, tile: int, stages: Sequence[StageRun]) -> Task:
        """Return the task of a query's tile, where `stages` have run; a member's, where its stage is run as a gang."""
        tile += self.request.first
        stop = stages[stage].gang_stop if stage < len(stages) else None
        place = stage, tile, stop is not None
        task = self._tasks.get(place)
        if task is None:
            end = stop or stage + 1
            result = self.request.context.result if end == len(self.plan.stages) else None
            task = self._tasks[place] = Task(
                plan=self.plan.digest,
                query=self.name,
                stage=stage,
                tile=tile,
                batch=self.request.batch,
                ttl=self.request.ttl,
                crop=self._crop(tile) if stage == 0 else None,
                inline=self.paths.by_value[end - 1] and result is None,
                parts=self._parts(self._pieces(stage, tile, gang=stop is not None), stages),
                request=self.request.context.request,
                gang=Membership(stop, self._patience_s(stage)) if stop else None,
                result=result,
            )
        return task

    def _crop(self, tile: int) -> Crop:
        crop = self.request.crops[tile - self.request.first]
        return Crop(crop.dtype, None) if tile in self._stored_crops and not self._carried else crop

    def _patience_s(self, stage: int) -> float:
        left_s = self.request.deadline - self.clock.time()
        gang = self.plan.gang_of(stage)
        return max(_LEAST_PATIENCE_S, min(left_s, patience_s(gang)) if gang else 0.0)

    def _pieces(self, stage: int, tile: int, *, gang: bool) -> Sequence[Piece]:
        """Return what a task reads of the stages before it."""
        known = self.plan.gang_of(stage)
        return Member(self.plan, known, tile).before if gang and known else self.plan.stages[stage].tiles[tile].pieces

    def _parts(self, pieces: Sequence[Piece], stages: Sequence[StageRun]) -> tuple[Buffer | None, ...]:
        """Cut what a task reads of by-value stages out of their answers, without copying it."""
        parts: list[Buffer | None] = []
        batch = self.request.batch
        for piece in pieces:
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
        stage = self.plan.stages[task.gang.stop - 1 if task.gang else task.stage]
        return stage.written(stage.tiles[task.tile], task.batch) if task.inline and task.tile < len(stage.tiles) else 0

    def payload_bytes(self, stages: int) -> list[int]:
        """Return the bytes of tensors in the payloads of the tasks of each of the first `stages` stages."""
        sizes = [0] * stages
        for task in self._tasks.values():
            sizes[task.stage] += task.payload_bytes
        return sizes

    def keys(self, stages: int) -> list[str]:
        """Return what the query may have left in the store, of which the first `stages` stages were released."""
        tiles = [stage.grid.tiles for stage in self.plan.stages]
        own = len(self.plan.stages) - (self.request.context.result is not None)  # the last one's is not the query's
        stored = [stage for stage in range(min(stages, own)) if not self.paths.by_value[stage]]
        gangs = {stage for stage, _, gang in self._tasks if gang}
        inboxes = [inbox for stage in sorted(gangs) for inbox in [*self.inboxes(stage), self.board(stage)]]
        return [*query_keys(self.name, tiles, stored, sorted(self._stored_crops)), *inboxes]

    def inboxes(self, stage: int) -> list[str]:
        """Return the keys of the inboxes of the gang that begins with a stage."""
        return [inbox_key(self.name, stage, member) for member in range(len(self.plan.stages[stage].tiles))]

    def board(self, stage: int) -> str:
        """Return the key of the board of the gang that begins with a stage: which member has sent which borders."""
        return inbox_key(self.name, stage, len(self.plan.stages[stage].tiles))

    def checked(self, task: Task, result: Report | Failure) -> Report | Failure:
        """Return a task's result, or a failure for a report that does not have the stages or bytes of the plan."""
        if isinstance(result, Failure):
            return result
        stages = range(task.stage, task.gang.stop if task.gang else task.stage + 1)
        expected = sum(task.tile < len(self.plan.stages[stage].tiles) for stage in stages)
        reports = [result, *result.later]
        if len(reports) != expected:
            return _wrong(f"reported on {len(reports)} stages, the plan says {expected}")
        answer_bytes = self.answer_bytes(task)
        size = len(reports[-1].output or b"")
        return (
            _wrong(f"answered with {size} bytes, the plan says {answer_bytes}")
            if answer_bytes and size != answer_bytes
            else result
        )


def _wrong(message: str) -> Failure:
    return Failure(FailureKind.FAILED_IN_CODE, WRONG_ANSWER, message)
