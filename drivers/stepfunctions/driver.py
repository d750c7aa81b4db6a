"""The Step Functions driver: the plan's state machine (drivers/stepfunctions/asl.py) takes a query through its stages.

    crops ──▶ store        execution ──▶ its workers read and write the store        answer ◀── store

The driver puts a query's crops into the store, has an execution run, and reads the answer. What happened in between it
takes from the execution's output: reports and times, of which it makes what the run machine would have recorded. A
query whose data the store has lost is restarted under another name, as with every driver.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from serfer.core.errors import DeadlineError, InputError, TaskFailedError, UsageError
from serfer.core.inline_outputs import ONE_SLOT
from serfer.core.keys import input_key, query_id, query_keys
from serfer.core.plan import Plan
from serfer.core.plan.answers import verified_parts
from serfer.core.plan.pixels import normalised_crop
from serfer.core.plan.sized_plan import check_one_size
from serfer.core.run_machine import FailureKind, Retry
from serfer.core.units import MS_PER_S
from serfer.core.wire import Crop
from serfer.drivers.clock import LOOP_CLOCK, Clock, timeout_at
from serfer.drivers.dispatching.priority_semaphore import PrioritySemaphore
from serfer.drivers.driver import NO_CONTEXT, Answer, Overheads, QueryDriver, QueryRequest, RequestContext
from serfer.drivers.query_store import STRAGGLER_S, QueryStore
from serfer.drivers.stepfunctions.client import CONCURRENCY, KINDS, Client, Executions, Outcome
from serfer.drivers.stepfunctions.result import error_of, parse_output, stage_runs
from serfer.storage.store import Store


class StepFunctionsDriver(QueryDriver):
    """Takes queries through one plan by the state machine `arn` of `kind` "standard" or "express".

    At most `concurrency` executions run at once, the oldest query's first. `client` belongs to the driver, which closes
    it; `retry` is that of the store's calls and of restarts, as the machine has its tasks' own.
    """

    def __init__(
        self,
        plan: Plan,
        store: Store,
        client: Client,
        arn: str,
        *,
        kind: str,
        concurrency: int = CONCURRENCY,
        retry: Retry | None = None,
        clock: Clock = LOOP_CLOCK,
    ) -> None:
        if kind not in KINDS:
            raise UsageError(f"a state machine is {' or '.join(KINDS)}, not {kind!r}")
        check_one_size(plan, "state machines")
        predicted_s = [stage.predicted_ms / MS_PER_S for stage in plan.stages if stage.predicted_ms is not None]
        self.plan, self.store, self.retry, self.clock = plan, store, retry or Retry(), clock
        self.executions = Executions(client, arn, kind, concurrency, clock)
        self.tiles = [stage.grid.tiles for stage in plan.stages]
        self.expected_s = sum(predicted_s)  # of a query
        self.straggling_s = min(max(predicted_s, default=STRAGGLER_S), STRAGGLER_S)  # after a failed execution
        self.slots = PrioritySemaphore(concurrency)
        super().__init__(self.retry)

    async def run(
        self, crops: Sequence[Crop], batch: int, deadline_s: float, context: RequestContext = NO_CONTEXT
    ) -> Answer:
        if context.result:
            raise UsageError("a state machine's answers cannot be kept as results: use --engine push or poll")
        now = self.clock.time()
        if any(crop.levels for crop in crops):
            crops = await asyncio.to_thread(self._as_floats, crops, batch)
        request = QueryRequest(crops, batch, now, now + deadline_s, self.slots.next_age(), context)
        try:
            async with timeout_at(self.clock, request.deadline) as limit:
                return await self._until_answered(lambda: ExecutionRun(self, request))
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise DeadlineError(f"no answer by the deadline of {deadline_s * MS_PER_S:.0f} ms: allow more") from error

    def _as_floats(self, crops: Sequence[Crop], batch: int) -> list[Crop]:
        """Return crops without levels, which a state machine's tasks do not have: pixels that had some as float32."""
        stage = self.plan.stages[0]
        shapes = [stage.inputs[0].shape.of(tile.inputs[0], batch) for tile in stage.tiles]
        return [
            Crop("float32", normalised_crop(crop.data or b"", shape, crop.levels).tobytes()) if crop.levels else crop
            for crop, shape in zip(crops, shapes, strict=True)
        ]

    async def close(self) -> None:
        await super().close()
        self.executions.close()


class ExecutionRun:
    """A run of a query: one execution, and its keys in the store."""

    def __init__(self, driver: StepFunctionsDriver, request: QueryRequest) -> None:
        stages = driver.plan.stages
        written = sum(stage.written(tile, request.batch) for stage in stages for tile in stage.tiles)
        stored = written + sum(len(crop.data or b"") for crop in request.crops)
        self._driver = driver
        self._request = request
        self._name = query_id(one_slot=stored <= ONE_SLOT)
        self._store = QueryStore(driver.store, driver.retry, request.deadline, driver.clock)
        self._left_s = driver.straggling_s  # until nothing is written any more
        self._cleaned = False

    @property
    def overheads(self) -> Overheads:
        return Overheads(counts=self._store.counts)

    async def run(self) -> Answer:
        await self._driver.slots.acquire(self._request.age)
        try:
            return await self._answer()
        finally:
            self._driver.slots.release()

    async def _answer(self) -> Answer:
        crops = {input_key(self._name, tile): crop.data or b"" for tile, crop in enumerate(self._request.crops)}
        await self._store.put(crops, self._request.ttl)
        outcome = await self._execute()
        if outcome.status != "SUCCEEDED":
            raise error_of(outcome)
        try:
            output = parse_output(outcome.output, self._driver.tiles)
        except InputError as error:
            raise TaskFailedError(f"{FailureKind.FAILED_IN_CODE.value}: {error}") from error
        self._left_s, self._cleaned = 0.0, output.cleaned
        keys = self._answer_keys()
        outputs = [
            verified_parts(self._driver.plan, tile, value, key, self._request.batch)
            for tile, (value, key) in enumerate(zip(await self._store.get(keys), keys, strict=True))
        ]
        ended = self._driver.clock.time()
        stages = stage_runs(output, outcome, (self._request.started, ended))
        return Answer(
            query=self._name,
            started=self._request.started,
            ended=ended,
            stages=stages,
            outputs=outputs,
            payload_bytes=[0] * len(stages),
            overheads=Overheads(
                retries=sum(entry.retries for entries in output.stages for entry in entries), counts=self._store.counts
            ),
        )

    async def _execute(self) -> Outcome:
        request, driver = self._request, self._driver
        state = {
            "query": self._name,
            "batch": request.batch,
            "ttl": round(request.ttl, 3),
            "dtype": request.crops[0].dtype,
        }
        name = self._name.strip("{}")
        execution = self._store.start(driver.executions.run(name, json.dumps(state), driver.expected_s))
        try:
            return await asyncio.shield(execution)
        except asyncio.CancelledError:
            execution.cancel()
            raise

    def _answer_keys(self) -> list[str]:
        return query_keys(self._name, self._driver.tiles, [len(self._driver.tiles) - 1], [])

    def _keys(self) -> list[str]:
        if self._cleaned:
            return self._answer_keys()
        tiles = self._driver.tiles
        return query_keys(self._name, tiles, range(len(tiles)), range(len(self._request.crops)))

    async def clean_up(self) -> None:
        await self._store.delete(self._keys(), self._left_s)
