"""A task from payload to report: read the pieces, compute the tile, write its cells.

A task is a pure function of (plan digest, query, stage, tile): it may run twice, anywhere, and writes the same bytes
under the same key, or answers with them. Tasks of several queries for one tile may run as one batch; what each writes
stays its own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from serfer.core.checksum import protect, verified
from serfer.core.errors import InputError, NotFiniteError, PlanError, StoreError, StoreUnavailableError
from serfer.core.keys import NO_QUERY, ResultPlace, StoreCounts, input_key, output_key, query_keys, reply_key
from serfer.core.plan import Function, Piece, Plan, Stage, Tile
from serfer.core.retry import Backoff, RetryPolicy, retry
from serfer.core.units import FLOAT_BYTES, MS_PER_S
from serfer.core.wire import (
    Buffer,
    CleanUp,
    Crop,
    Report,
    Task,
    TaskError,
    WarmUp,
    WarmUpAnswer,
    decode_clean_up,
    decode_task,
    decode_tasks,
    decode_warm_up,
    encode_report,
    encode_reports,
    encode_warmed,
    is_shared,
    pack_result,
)
from serfer.lambdas.cell_codec import Array, cells_to_bytes, crop_to_input, pieces_to_inputs
from serfer.lambdas.sessions import SessionCache
from serfer.lambdas.stage_share import StageShare
from serfer.storage.exchange import Exchange
from serfer.storage.store import Range as ByteRange
from serfer.storage.store import Store

if TYPE_CHECKING:
    from serfer.core.plan.borders import Member
    from serfer.lambdas.weights import WeightSource

_REPLY = RetryPolicy("reply", StoreUnavailableError, Backoff(base=0.05, longest=0.8), attempts=6)


class _Read(NamedTuple):
    task: Task
    data: list[Array]
    counts: StoreCounts


class _Start(NamedTuple):
    init_ms: float
    fetch_ms: float


_WARM = _Start(0.0, 0.0)


class Worker:
    """Runs tasks of a plan's stages out of a plan directory; `environment` is its name in reports.

    `init_ms` is what it cost to get here; the first report carries it. Weights are in the directory, unless `source`
    fetches them. Answers that are kept go to the store `results`; tasks cannot name another. Sessions take about
    `session_bytes` at most; one run may take `longest_run_s`, None where a function's timeout bounds it.
    """

    def __init__(  # noqa: PLR0913 - what an environment has, of which the last ones are rare
        self,
        plan: Plan,
        directory: Path,
        store: Store,
        environment: str,
        threads: int,
        init_ms: float,
        source: WeightSource | None = None,
        results: Store | None = None,
        *,
        session_bytes: float = math.inf,
        longest_run_s: float | None = None,
    ) -> None:
        self._plan = plan
        self._store = store
        self._results = results
        small = plan.windows is None  # windows are as large as memory allows, and take seconds
        self._sessions = SessionCache(directory, threads, session_bytes, source, longest_run_s, one_block=small)
        self._exchange: Exchange | None = None
        self._members: dict[tuple[int, int], Member] = {}
        self._environment = environment
        self._start = _Start(init_ms, 0.0)

    def load(self, functions: Sequence[Function]) -> float:
        """Fetch the weights of functions, and build what sessions are needed anyway; return the milliseconds taken.

        The next report counts them as part of the cold start. Raises PlanError or StoreUnavailableError where weights
        cannot be had.
        """
        started = time.perf_counter()
        waited_s = self._sessions.load(functions)
        taken_ms = (time.perf_counter() - started) * MS_PER_S
        self._start = _Start(self._start.init_ms + taken_ms, self._start.fetch_ms + waited_s * MS_PER_S)
        return taken_ms

    def restore(self, environment: str, store: Store, started: float, results: Store | None = None) -> None:
        """Become another environment, with stores of its own: the next report is the first after a cold start.

        It began at `started`, on the clock of time.perf_counter. Sessions that are there stay.
        """
        for old in filter(None, (self._store, self._results)):
            old.close()
        self.close()
        self._sessions.disconnect()
        self._store, self._results = store, results
        self._environment = environment
        self._start = _Start((time.perf_counter() - started) * MS_PER_S, 0.0)

    def close(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange:
            exchange.close()

    def handle(self, event: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever an invoker sent
        if is_shared(event):
            return encode_reports(self.run_shared(decode_tasks(event)))
        if warm_up := decode_warm_up(event):
            return encode_warmed(self.warm(warm_up))
        if clean_up := decode_clean_up(event):
            self.clean_up(clean_up)
            return {}
        task = decode_task(event)
        if task.reply is None:
            return encode_report(self.run(task))
        self.reply(task)
        return {}

    def run(self, task: Task) -> Report:
        started = time.perf_counter()
        stage, tile = self._find(task)
        if task.gang:
            return self._run_gang(task, started)
        [report] = self._compute(self._read([task], stage), stage, tile, started)
        return report

    def _run_gang(self, task: Task, started: float) -> Report:
        from serfer.lambdas.gang import GangRun  # noqa: PLC0415 - few plans have gangs

        member = self._member(task)
        if task.result is not None:
            self._check_answer(task)
        wanted = self._missing_pieces(task, member.before)
        stored = self._store.get_many(wanted) if wanted else []
        counts = StoreCounts(bytes_get=sum(map(len, stored)), gets=len(stored))
        first = [self._crop_input(task, stored, self._plan.stages[0])] if task.stage == 0 else []
        values = [] if first else self._assemble_pieces(task, stored)
        run = GangRun(member, task, self._sessions, self._open_exchange(), self._write)
        shares = [StageShare(started, counts), *(StageShare() for _ in member.stages[1:])]
        run.run(first, values, shares)
        start, self._start = self._start, _WARM
        first_report, *later = (
            self._report(share, _WARM if number else start, shared=len(shares)) for number, share in enumerate(shares)
        )
        return replace(first_report, later=tuple(later))

    def _member(self, task: Task) -> Member:
        gang = self._plan.gang_of(task.stage)
        if gang is None or task.gang is None or (gang.start, gang.stop) != (task.stage, task.gang.stop):
            raise InputError(f"the plan has no gang that begins with stage {task.stage} and ends where the task says")
        from serfer.core.plan.borders import Member  # noqa: PLC0415 - as above

        place = task.stage, task.tile
        if place not in self._members:
            self._members[place] = Member(self._plan, gang, task.tile)
        return self._members[place]

    def _open_exchange(self) -> Exchange:
        if self._exchange is None:
            self._exchange = self._store.exchange()
        if self._exchange is None:
            raise PlanError("the store has no inboxes for a gang: let its stages run one by one, or change --store")
        return self._exchange

    def run_shared(self, tasks: Sequence[Task]) -> list[Report | TaskError]:
        """Run tasks of a stage one tile after the other, those of several queries for one tile as one batch.

        Returns the outcome of each, in their order. A task whose input is wrong or gone fails alone; what all have in
        common is raised, as by `run`.
        """
        started = time.perf_counter()
        if any(task.size for task in tasks):
            raise InputError("tasks of queries with sizes of their own share no invocation")
        for task in tasks:
            stage, _ = self._find(task)
        inputs = self._read_tasks(tasks, stage)
        results: dict[int, Report | TaskError] = {
            place: task_input for place, task_input in enumerate(inputs) if isinstance(task_input, TaskError)
        }
        for number in dict.fromkeys(task.tile for task in tasks):
            reads = {
                place: task_input
                for place, task_input in enumerate(inputs)
                if isinstance(task_input, _Read) and task_input.task.tile == number
            }
            if reads:
                reports = self._compute([*reads.values()], stage, stage.tiles[number], started)
                results |= dict(zip(reads, reports, strict=True))
                started = time.perf_counter()
        shared = sum(isinstance(result, Report) for result in results.values())
        ordered = (results[place] for place in range(len(tasks)))
        return [replace(result, shared=shared) if isinstance(result, Report) else result for result in ordered]

    def reply(self, task: Task) -> None:
        """Run an event's task and put its result under its reply key, which the poll driver polls.

        An error that is put there is not raised: Lambda would retry the event, minutes later. Raises InputError for a
        task that is not an event.
        """
        if task.reply is None:
            raise InputError("the task is not an event: it has no reply key")
        try:
            result: Report | TaskError = self.run(task)
        except Exception as error:  # noqa: BLE001 - whatever it is, the driver has to know
            result = _task_error(error)
        key = reply_key(task.query, task.stage, task.tile, task.reply)
        value = protect(pack_result(result), key)
        # whatever it raises has Lambda try the event again
        retry(lambda: self._store.put(key, value, task.ttl), _REPLY, time.sleep)

    def clean_up(self, request: CleanUp) -> None:
        """Delete the keys of a query: its crops, what every stage wrote and, unless it is to be kept, its answer."""
        self._check(request.plan)
        tiles = [len(stage.tiles) for stage in self._plan.stages]
        stages = range(len(tiles) - 1 if request.keep_answer else len(tiles))
        self._store.delete(query_keys(request.query, tiles, stages, range(tiles[0])))

    def warm(self, request: WarmUp) -> WarmUpAnswer:
        """Build the sessions of a function's tiles, or of one; reach the store; stay busy for the time requested."""
        started = time.monotonic()
        self._check(request.plan)
        stages = self._plan.stages
        if not (request.stage < len(stages) and request.part < len(stages[request.stage].functions)):
            raise InputError(f"the plan has no function {request.part} of stage {request.stage}")
        gang = self._plan.gang_of(request.stage)
        for stage in (stages[number] for number in (gang.stages if gang else (request.stage,))):
            for place, tile in enumerate(stage.tiles):
                if tile.function == request.part and request.tile in (None, place):
                    self._sessions.get(stage, tile)
        self._store.exists([output_key(NO_QUERY, number, 0) for number in range(len(stages))])
        start, self._start = self._start, _WARM
        time.sleep(max(0.0, started + request.hold_s - time.monotonic()))
        return WarmUpAnswer(self._environment, start.init_ms, self._sessions.built, start.fetch_ms)

    def _compute(self, reads: Sequence[_Read], stage: Stage, tile: Tile, started: float) -> list[Report]:
        read = time.perf_counter()
        arrays = reads[0].data
        if len(reads) > 1:
            arrays = [np.concatenate(values) for values in zip(*(task_input.data for task_input in reads), strict=True)]
        outputs = self._sessions.run(stage, tile, {f"input{number}": value for number, value in enumerate(arrays)})
        if reads[0].task.size:
            _check_shapes(outputs, stage, tile, reads[0].task)
        computed, images, shares = time.perf_counter(), 0, []
        for task, _, counts in reads:
            first, images = images, images + task.batch
            shares.append(StageShare(started, counts, read, computed))
            self._write(task, task.stage, tile, [output[first:images] for output in outputs], shares[-1])
        ended = time.perf_counter()
        start, self._start = self._start, _WARM
        reports = []
        for (task, _, _), share in zip(reads, shares, strict=True):
            share.ended = ended
            reports.append(self._report(share, start, task.batch / images))
        return reports

    def _write(
        self, task: Task, stage: int, tile: Tile, outputs: Sequence[Array], share: StageShare, *, answers: bool = True
    ) -> None:
        if answers and task.result is not None:
            self._check_answer(task)
            share.counts += self._write_result(task.result, tile, outputs)
            return
        key = output_key(task.query, stage, task.tile)
        value = cells_to_bytes(outputs, tile, key)
        if answers and task.inline:
            share.output = value
        else:
            self._store.put(key, value, task.ttl)
            share.counts += StoreCounts(bytes_put=len(value), puts=1)

    def _write_result(self, place: ResultPlace, tile: Tile, outputs: Sequence[Array]) -> StoreCounts:
        from serfer.core.plan.answers import answer_arrays  # noqa: PLC0415 - most answers are carried
        from serfer.core.zarr import encode_chunk  # noqa: PLC0415 - same

        if self._results is None:
            raise PlanError("SERFER_RESULTS is not set here: give workers and drivers the URL of the store of results")
        arrays = answer_arrays(self._plan, len(outputs[0]))
        for array, values in zip(arrays, outputs, strict=True):
            if not np.isfinite(values).all():
                raise NotFiniteError(
                    f"the network's output {array.name!r} has values that are NaN or infinite: look at the model, or "
                    "at the preprocessing, with this input"
                )
        counts = StoreCounts()
        for number, (array, values, rect) in enumerate(zip(arrays, outputs, tile.outputs, strict=True)):
            path = next(chunk.path for chunk in array.chunks if chunk.rect == rect)
            self._results.put(place.key(f"{number}/{path}"), encode_chunk(array, values), place.chunks_ttl)
            counts += StoreCounts(bytes_put=array.chunk_bytes, puts=1)
        return counts

    def _check_answer(self, task: Task) -> None:
        last = (task.gang.stop if task.gang else task.stage + 1) == len(self._plan.stages)
        if not last or self._plan.windows or self._plan.sizes:
            raise InputError("only what the last stage computes of whole images of one size is kept as a result")

    def _report(self, share: StageShare, start: _Start, part: float = 1.0, shared: int = 1) -> Report:
        part_ms = part * MS_PER_S
        return Report(
            environment=self._environment,
            init_ms=part * start.init_ms,
            fetch_ms=part * start.fetch_ms,
            read_ms=part_ms * (share.read - share.started),
            compute_ms=part_ms * (share.computed - share.read),
            write_ms=part_ms * (share.ended - share.computed),
            total_ms=part_ms * (share.ended - share.started),
            weight_loads=self._sessions.weight_loads,
            sessions=self._sessions.built,
            counts=share.counts,
            output=share.output,
            shared=shared,
            wait_ms=share.waited * MS_PER_S,
        )

    def _find(self, task: Task) -> tuple[Stage, Tile]:
        self._check(task.plan)
        stages = self._plan.stages
        if not (0 <= task.stage < len(stages) and 0 <= task.tile < len(stages[task.stage].tiles)):
            raise InputError(f"the plan has no tile {task.tile} of stage {task.stage}")
        stage = stages[task.stage]
        if task.size is not None or self._plan.sizes is not None:
            from serfer.core.plan.sized_plan import sized_plan  # noqa: PLC0415 - few plans have many sizes

            stage = sized_plan(self._plan, task.size).stages[task.stage]
        return stage, stage.tiles[task.tile]

    def _check(self, plan: str) -> None:
        if plan != self._plan.digest:
            raise InputError("the task belongs to another plan; deploy the functions of the plan that the driver runs")

    def _read_tasks(self, tasks: Sequence[Task], stage: Stage) -> list[_Read | TaskError]:
        try:
            return [*self._read(tasks, stage)]
        except (InputError, StoreError) as error:
            if len(tasks) == 1:
                return [_task_error(error)]
            return [outcome for task in tasks for outcome in self._read_tasks([task], stage)]

    def _read(self, tasks: Sequence[Task], stage: Stage) -> list[_Read]:
        wanted = [self._missing_pieces(task, stage.tiles[task.tile].pieces) for task in tasks]
        ranges = [place for places in wanted for place in places]
        values = self._store.get_many(ranges) if ranges else []
        reads, end = [], 0
        for task, places in zip(tasks, wanted, strict=True):
            start, end = end, end + len(places)
            stored = values[start:end]
            counts = StoreCounts(bytes_get=sum(map(len, stored)), gets=len(stored))
            reads.append(_Read(task, self._assemble_inputs(task, stored, stage), counts))
        return reads

    def _missing_pieces(self, task: Task, pieces: Sequence[Piece]) -> list[ByteRange]:
        if task.stage == 0:
            by_value = task.crop is not None and task.crop.data is not None
            return [] if by_value else [ByteRange(input_key(task.query, task.tile))]
        ranges = self._piece_ranges(task, pieces)
        if not task.parts:
            return ranges
        if len(task.parts) != len(ranges):
            raise InputError(f"the task carries {len(task.parts)} parts, its tile reads {len(ranges)}")
        return [place for place, part in zip(ranges, task.parts, strict=True) if part is None]

    def _assemble_inputs(self, task: Task, stored: Sequence[Buffer], stage: Stage) -> list[Array]:
        if task.stage == 0:
            return [self._crop_input(task, stored, stage), *self._statistics(task)]
        return pieces_to_inputs(self._assemble_pieces(task, stored), task, stage, stage.tiles[task.tile])

    def _statistics(self, task: Task) -> list[Array]:
        values = self._plan.windows.values if self._plan.windows else 0
        data = b"".join(filter(None, task.parts))
        if len(data) != FLOAT_BYTES * values:
            raise InputError(f"the task carries {len(data)} bytes of statistics, its plan has {values} values")
        return [np.frombuffer(data, "<f4").reshape(1, values).repeat(task.batch, 0)] if data else []

    def _crop_input(self, task: Task, stored: Sequence[Buffer], stage: Stage) -> Array:
        crop = task.crop or Crop("float32", None)
        data = verified(stored[0], input_key(task.query, task.tile)) if crop.data is None else crop.data
        levels = crop.levels or self._plan.workers_preprocess
        return crop_to_input((crop.dtype, data), task, stage, stage.tiles[task.tile], levels)

    @staticmethod
    def _assemble_pieces(task: Task, stored: Sequence[Buffer]) -> Sequence[Buffer]:
        values = iter(stored)
        return [next(values) if part is None else part for part in task.parts] if task.parts else stored

    def _piece_ranges(self, task: Task, pieces: Sequence[Piece]) -> list[ByteRange]:
        places = []
        for piece in pieces:
            key = output_key(task.query, piece.stage, piece.tile)
            cells = sum(len(part.cells) for part in piece.ranges)
            everything = cells == len(self._plan.stages[piece.stage].tiles[piece.tile].cells)
            for part in piece.ranges:
                length = None if everything and len(piece.ranges) == 1 else part.length(task.batch)
                places.append(ByteRange(key, part.start(task.batch), length))
        return places


def _task_error(error: Exception) -> TaskError:
    return TaskError(type(error).__name__, str(error).partition("\n")[0])


def _check_shapes(outputs: Sequence[Array], stage: Stage, tile: Tile, task: Task) -> None:
    for number, (output, shape, rect) in enumerate(zip(outputs, stage.outputs, tile.outputs, strict=True)):
        if output.shape != shape.of(rect, task.batch):
            raise PlanError(
                f"output {number} of images of {task.size} has shape {output.shape}, the plan says "
                f"{shape.of(rect, task.batch)}: make the plan again, with a larger multiple in --size"
            )
