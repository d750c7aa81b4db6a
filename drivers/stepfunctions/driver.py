"""The Step Functions driver: the plan's state machine (drivers/stepfunctions/asl.py) takes a query through its stages.

    crops ──▶ store        execution ──▶ its workers read and write the store        answer ◀── store

The driver puts a query's crops into the store, has an execution run, and reads the answer. What happened in between it
learns from the execution's output: reports and times, of which it makes what the run machine would have known. A query
whose pieces the store has lost begins anew, under another name, as it does with every driver.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from drivers.driver import NO_CONTEXT, TTL_MARGIN_S, Answer, Overheads, RequestContext
from drivers.lifecycle import ONE_SLOT, STRAGGLER_S, InFlight, delete, retry_store
from drivers.priority_semaphore import PrioritySemaphore
from drivers.stepfunctions.client import CONCURRENCY, KINDS, Client, Executions, Outcome
from drivers.stepfunctions.output import parse_output
from drivers.stepfunctions.result import error_of, stage_runs
from serfer.core.checksum import protect, verified
from serfer.core.errors import (
    DeadlineError,
    InputError,
    TaskFailedError,
    UsageError,
)
from serfer.core.keys import input_key, output_key, query_id
from serfer.core.plan import Plan
from serfer.core.report import StoreCounts
from serfer.core.run import FailureKind, Retry
from serfer.core.wire import Buffer, Crop
from storage.counting import CountingStore
from storage.store import Range, Store

_MS_PER_S = 1000
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class _Route:
    """What all queries of a driver share."""

    plan: Plan
    store: Store
    executions: Executions
    retry: Retry
    expected_s: float  # of a query
    straggling_s: float  # for how long a task may still write after its execution has failed

    @property
    def tiles(self) -> list[int]:
        """The number of each stage's tiles."""
        return [stage.grid.tiles for stage in self.plan.stages]


class StepFunctionsDriver:
    """Takes queries through one plan by the state machine `arn` of `kind` "standard" or "express".

    At most `concurrency` executions are under way at once, the oldest query's first. `client` belongs to the driver,
    which closes it; `retry` is that of the store's calls and of new beginnings, as the machine has its tasks' inside.
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
    ) -> None:
        if kind not in KINDS:
            raise UsageError(f"a state machine is {' or '.join(KINDS)}, not {kind!r}")
        predicted_ms = [stage.predicted_ms for stage in plan.stages]
        self._executions = Executions(client, arn, kind, concurrency)
        self._route = _Route(
            *(plan, store, self._executions, retry or Retry(), sum(predicted_ms) / _MS_PER_S),
            straggling_s=min(max(predicted_ms) / _MS_PER_S, STRAGGLER_S),
        )
        self._slots = PrioritySemaphore(concurrency)
        self._arrivals = itertools.count()
        self._in_flight = InFlight(self._route.retry)

    @property
    def polls(self) -> int:
        """How often Step Functions was asked whether an execution had ended."""
        return self._executions.polls

    async def run(
        self,
        crops: Sequence[Crop],
        batch: int,
        deadline_s: float,
        context: RequestContext = NO_CONTEXT,  # noqa: ARG002 - an execution tells of its stages when it has ended
    ) -> Answer:
        """Run one query of `batch` images, whose first-stage inputs are `crops`, one for each tile.

        Raises TaskFailedError, DeadlineError, or what was unavailable. Keys are deleted however it ends.
        """
        started = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(started + deadline_s) as limit:
                return await self._in_flight.run(self._in_turn(crops, batch, (started, started + deadline_s)))
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise DeadlineError(f"no answer by the deadline of {deadline_s * _MS_PER_S:.0f} ms: allow more") from error

    async def _in_turn(self, crops: Sequence[Crop], batch: int, times: tuple[float, float]) -> Answer:
        """Run a query when it is its turn."""
        await self._slots.acquire(next(self._arrivals))
        try:
            return await self._in_flight.until_answered(lambda: _Query(self._route, crops, batch, times))
        finally:
            self._slots.release()

    async def close(self) -> None:
        """Stop the queries that are under way, and wait until what they and others left behind is deleted."""
        await self._in_flight.close()
        self._executions.close()


class _Query:
    """One query's execution and keys; `times` are when it started and its deadline."""

    def __init__(self, route: _Route, crops: Sequence[Crop], batch: int, times: tuple[float, float]) -> None:
        stages = route.plan.stages
        written = sum(stage.written(tile, batch) for stage in stages for tile in stage.tiles)
        stored = written + sum(len(crop.data or b"") for crop in crops)
        self._route = route
        self._crops = crops
        self._batch = batch
        self._started, self._deadline = times
        self._name = query_id(secrets.token_hex(16), one_slot=stored <= ONE_SLOT)
        self._in_flight: set[asyncio.Task[Any]] = set()  # what may still write
        self._left_s = route.straggling_s  # until nothing is written any more
        self._cleaned = False
        self.counts = StoreCounts()

    @property
    def overheads(self) -> Overheads:
        """What it took so far, as far as the driver knows."""
        return Overheads(counts=self.counts)

    async def run(self) -> Answer:
        """Run the query to its end; raises one of LOST where some of its pieces were lost or altered."""
        await self._store_crops()
        outcome = await self._execute()
        if outcome.status != "SUCCEEDED":
            raise error_of(outcome)
        try:
            output = parse_output(outcome.output, self._route.tiles)
        except InputError as error:
            raise TaskFailedError(f"{FailureKind.FAILED_IN_CODE.value}: {error}") from error
        self._left_s, self._cleaned = 0.0, output.cleaned
        outputs = await self._outputs()
        ended = asyncio.get_running_loop().time()
        stages = stage_runs(output, outcome, (self._started, ended))
        retries = sum(entry.retries for entries in output.stages for entry in entries)
        carried = [0] * len(stages)
        return Answer(
            self._name, self._started, ended, stages, outputs, carried, Overheads(retries, counts=self.counts)
        )

    async def _execute(self) -> Outcome:
        """Have an execution run; whoever gives up waiting has it stopped."""
        ttl = round(self._deadline - self._started + TTL_MARGIN_S, 3)
        known = {"query": self._name, "batch": self._batch, "ttl": ttl, "dtype": self._crops[0].dtype}
        name, route = self._name.strip("{}"), self._route
        execution = self._start(route.executions.run(name, json.dumps(known), route.expected_s))
        try:
            return await asyncio.shield(execution)
        except asyncio.CancelledError:
            execution.cancel()
            raise

    def _start(self, work: Coroutine[Any, Any, _Value]) -> asyncio.Task[_Value]:
        """Start what a query's end waits for before it deletes the query's keys."""
        task = asyncio.get_running_loop().create_task(work)
        self._in_flight.add(task)
        task.add_done_callback(self._in_flight.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may wait for it any more
        return task

    async def _store_crops(self) -> None:
        store = CountingStore(self._route.store)

        def put() -> None:
            for number, crop in enumerate(self._crops):
                key = input_key(self._name, number)
                store.put(key, protect(crop.data or b"", key), self._deadline - self._started + TTL_MARGIN_S)

        await asyncio.shield(self._start(retry_store(put, self._route.retry, self._deadline)))
        self.counts += store.counts

    async def _outputs(self) -> list[Buffer]:
        """Return what the last stage's tiles computed, in tile order."""
        store = CountingStore(self._route.store)
        keys = self._answer_keys()
        asked = [Range(key) for key in keys]
        values = await retry_store(lambda: store.get_many(asked), self._route.retry, self._deadline)
        self.counts += store.counts
        return [verified(value, key) for value, key in zip(values, keys, strict=True)]

    def _answer_keys(self) -> list[str]:
        last = len(self._route.tiles) - 1
        return [output_key(self._name, last, tile) for tile in range(self._route.tiles[last])]

    def _keys(self) -> list[str]:
        """Return what may still lie in the store: the answer, and all the rest if the execution did not delete it."""
        if self._cleaned:
            return self._answer_keys()
        inputs = [input_key(self._name, number) for number in range(len(self._crops))]
        stages = enumerate(self._route.tiles)
        return [*inputs, *(output_key(self._name, number, tile) for number, count in stages for tile in range(count))]

    async def clean_up(self) -> None:
        """Delete the query's keys, after its tasks have ended where some may still be on their way."""
        if self._in_flight:
            await asyncio.wait(self._in_flight, timeout=STRAGGLER_S)
        if self._left_s:
            await asyncio.sleep(self._left_s)
        await delete(self._route.store, self._keys(), self._route.retry)
