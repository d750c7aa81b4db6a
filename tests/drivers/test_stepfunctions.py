"""The Step Functions driver with a service of the tests' own: an interpreter of the language, workers in memory."""

import asyncio
import json
import socket
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from math import prod

import numpy as np
import pytest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from serfer.core.checksum import CHECKSUM_BYTES, protect, verified
from serfer.core.costs.aws import shipped_aws
from serfer.core.errors import (
    DeadlineError,
    LambdaThrottledError,
    LambdaUnavailableError,
    QueryError,
    StoreUnavailableError,
    TaskFailedError,
    UnavailableError,
    UsageError,
)
from serfer.core.keys import StoreCounts, input_key, output_key
from serfer.core.plan import Levels
from serfer.core.retry import Backoff
from serfer.core.run_machine import Failure, Retry
from serfer.core.wire import Crop, Report, decode_clean_up, decode_task, encode_report
from serfer.drivers.clock import LOOP_CLOCK, LoopClock
from serfer.drivers.stepfunctions.asl import THROTTLED, compile_plan, local_functions
from serfer.drivers.stepfunctions.client import connect
from serfer.drivers.stepfunctions.driver import StepFunctionsDriver
from serfer.pipeline.report import make_report
from serfer.pipeline.result import Result
from serfer.pipeline.trace import trace_events
from tests.drivers.asl_interpreter import Machine, StateError
from tests.drivers.conftest import AwayStore
from tests.drivers.fake_clock import FakeClock
from tests.drivers.plans import wide_plan

PATIENCE = 60.0
TILES = (4, 3, 2)
PLAN = wide_plan(TILES, (1, 3, 1))
_BYTES = PLAN.stages[-1].written(PLAN.stages[-1].tiles[0], 2) - CHECKSUM_BYTES
WRITTEN = [bytes([tile]) * _BYTES for tile in range(max(TILES))]
"""What the last stage's tiles write; those of other stages the same: nobody reads it."""
CROPS = [Crop("uint8", bytes([tile]) * 10) for tile in range(TILES[0])]
ARN = "arn:aws:states:us-east-1:123456789012:stateMachine:serfer"
KINDS = pytest.mark.parametrize("kind", ["standard", "express"])
RETRY = Retry(attempts=3, unavailable_attempts=3, restarts=2, backoff=Backoff(base=0.001, longest=2.0))


class HeldClock(LoopClock):
    """The loop's clock, whose timers end when a test says so, however busy the machine is."""

    def __init__(self):
        self.timers = []

    def call_at(self, _when, callback, *args):
        self.timers.append(asyncio.get_running_loop().create_future())
        self.timers[-1].add_done_callback(lambda timer: timer.cancelled() or callback(*args))
        return self.timers[-1]

    def expire(self):
        for timer in self.timers:
            timer.done() or timer.set_result(None)


class Service:
    """Step Functions and Lambda in one, as boto3 shows them; `script` fails attempts as in test_asl."""

    def __init__(self, store, script=None, plan=PLAN):
        definition = compile_plan(plan, local_functions(plan), express=True, retry=RETRY)
        self.machine = Machine(definition, self.work)
        self.store, self.script, self.plan = store, {place: [*names] for place, names in (script or {}).items()}, plan
        self.executions, self.stopped, self.queries = {}, [], []
        self.crops = CROPS
        self.polls_before_end = 1
        self.hang = threading.Event()  # set: an execution ends
        self.hang.set()
        self.reached = threading.Event()
        self.under_way, self.most, self.closed = 0, 0, False
        self.lock = threading.Lock()

    def work(self, _function, payload):
        if clean_up := decode_clean_up(payload):
            stages = range(len(self.plan.stages) - clean_up.keep_answer)
            keys = [output_key(clean_up.query, stage, tile) for stage in stages for tile in range(9)]
            self.store.delete([input_key(clean_up.query, tile) for tile in range(9)] + keys)
            return {}
        task = decode_task(payload)
        failures = self.script.get((task.stage, task.tile), [])
        if failures and (name := failures.pop(0)):
            raise StateError(name, json.dumps({"errorMessage": "on purpose\nsecond line", "errorType": name}))
        if task.stage == 0:
            key = input_key(task.query, task.tile)
            assert Crop(task.crop.dtype, verified(self.store.get(key), key)) == self.crops[task.tile]
        key = output_key(task.query, task.stage, task.tile)
        self.store.put(key, protect(WRITTEN[task.tile], key), task.ttl)
        return encode_report(Report("e", 0.0, 1.0, 1.0, 1.0, 3.0, 1, 1, StoreCounts(puts=1), None))

    def execute(self, text):
        with self.lock:
            self.queries.append(json.loads(text)["query"])
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        self.reached.set()
        started = datetime.now(UTC)
        self.hang.wait()
        end = {"startDate": started, "stopDate": started + timedelta(milliseconds=100)}
        try:
            with self.lock:
                output = self.machine.run(json.loads(text))
        except StateError as error:
            return {**end, "status": "FAILED", "error": error.name, "cause": error.cause}
        finally:
            self.under_way -= 1
        return {**end, "status": "SUCCEEDED", "output": json.dumps(output)}

    def start_execution(self, *, stateMachineArn, name, input):  # noqa: A002, N803
        assert stateMachineArn == ARN
        assert name not in self.executions
        assert name.isalnum()
        self.executions[name] = [self.polls_before_end, None if not self.hang.is_set() else self.execute(input)]
        self.reached.set()
        return {"executionArn": name, "startDate": datetime.now(UTC)}

    def describe_execution(self, *, executionArn):  # noqa: N803
        execution = self.executions[executionArn]
        execution[0] -= 1
        return {"status": "RUNNING"} if execution[0] >= 0 or execution[1] is None else execution[1]

    def stop_execution(self, *, executionArn):  # noqa: N803
        self.stopped.append(executionArn)

    def start_sync_execution(self, *, stateMachineArn, name, input):  # noqa: A002, N803
        assert (stateMachineArn, name) == (ARN, json.loads(input)["query"].strip("{}"))
        return self.execute(input)

    def close(self):
        self.closed = True


def driver(service, store, kind="standard", **settings):
    return StepFunctionsDriver(service.plan, store, service, ARN, kind=kind, retry=RETRY, **settings)


def ask(service, store, kind="standard", deadline_s=PATIENCE, clock=None, crops=CROPS):
    clock = clock or FakeClock()

    async def main():
        engine = driver(service, store, kind, clock=clock)
        try:
            return await engine.run(crops, 2, deadline_s)
        finally:
            await engine.close()
            assert service.closed

    run = asyncio.run if clock is LOOP_CLOCK else clock.run
    return run(asyncio.wait_for(main(), PATIENCE))


async def begin(store, kind="standard", *, queries=1, deadline_s=PATIENCE, **settings):
    service = Service(store)
    service.hang.clear()
    engine = driver(service, store, kind, **settings)
    begun = [asyncio.create_task(engine.run(CROPS, 2, deadline_s)) for _ in range(queries)]
    await asyncio.to_thread(service.reached.wait, PATIENCE)
    return service, engine, begun


def test_a_state_machines_tasks_find_numbers_where_pixels_come_with_levels(store):
    service, levels, stage = Service(store), Levels(0.5, (3.0,) * 3, (2.0,) * 3), PLAN.stages[0]
    sizes = [prod(stage.inputs[0].shape.of(tile.inputs[0], 2)) for tile in stage.tiles]
    pixels = [bytes([10 * tile]) * size for tile, size in enumerate(sizes)]
    floats = [np.full(size, (10 * tile * 0.5 - 3) / 2, np.float32).tobytes() for tile, size in enumerate(sizes)]
    service.crops = [Crop("float32", data) for data in floats]
    ask(service, store, crops=[Crop("uint8", data, levels) for data in pixels], clock=LOOP_CLOCK)


@KINDS
def test_a_query_is_answered_from_the_store_and_leaves_nothing(store, kind):
    service = Service(store)
    answer = ask(service, store, kind)
    assert answer.outputs == [(WRITTEN[0],), (WRITTEN[1],)]
    assert answer.query == service.queries[0]
    assert [len(stage.reports) for stage in answer.stages] == list(TILES)
    assert answer.payload_bytes == [0, 0, 0]
    assert answer.overheads.counts == StoreCounts(
        bytes_put=40 + 4 * 4, bytes_get=2 * (_BYTES + CHECKSUM_BYTES), puts=4, gets=2
    )
    assert (answer.overheads.retries, answer.overheads.hedges, answer.overheads.restarts) == (0, 0, 0)
    assert len(store.ever) == 4 + sum(TILES)


@KINDS
def test_times_lie_within_the_query_one_stage_after_the_other(store, kind):
    answer = ask(Service(store), store, kind, clock=LOOP_CLOCK)
    marks = [answer.started]
    for stage in answer.stages:
        marks += [stage.started, stage.ended]
        for tile in stage.tiles:
            [attempt] = tile.attempts
            assert stage.started <= attempt.requested == attempt.started <= attempt.ended <= stage.ended
    assert [*marks, answer.ended] == sorted([*marks, answer.ended])
    assert answer.ended > answer.started


def test_an_executions_output_makes_a_report_and_a_trace(store):
    answer = ask(Service(store, {(1, 2): ["ValueError", "ValueError"]}), store)
    assert answer.overheads.retries == 2
    [*failed, last] = answer.stages[1].tiles[2].attempts
    assert [type(attempt.result) for attempt in failed] == [Failure, Failure]
    assert last.result == answer.stages[1].tiles[2].report
    report = make_report(PLAN, answer, (), 1.0, shipped_aws().functions)
    assert (report.retries, report.store.puts, report.stages[1].tasks) == (2, 4 + sum(TILES), 3)
    events = trace_events([("q", Result({}, report, answer, (answer.started, answer.started), answer.ended))])
    tasks = [event["args"] for event in events if event["name"].startswith("task ")]
    assert len(tasks) == sum(TILES) + 2
    assert (1, 2, 2) in [(task["serfer.stage"], task["serfer.tile"], task["serfer.attempt"]) for task in tasks]


@KINDS
@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("ValueError", TaskFailedError, "failed in code: "),
        ("Sandbox.Timedout", TaskFailedError, "timed out: "),
        ("States.Timeout", TaskFailedError, "timed out: "),
        ("Runtime.OutOfMemory", TaskFailedError, "out of memory: "),
        ("Lambda.Unknown", TaskFailedError, "failed in code: "),
        (THROTTLED, LambdaThrottledError, "throttled: "),
        ("Lambda.ResourceNotFoundException", LambdaUnavailableError, "unreachable: "),
        ("StoreUnavailableError", StoreUnavailableError, ""),
    ],
)
def test_a_task_that_fails_for_good_ends_the_query_with_its_own_error(store, kind, name, error, message):
    with pytest.raises(error) as raised:
        ask(Service(store, {(1, 2): [name] * 3}), store, kind)
    assert str(raised.value) == f"{message}stage 1, tile 2: {name}: on purpose"
    assert type(raised.value) is error


@KINDS
def test_a_query_whose_pieces_are_lost_restarts_under_another_name_and_waits_for_a_store_that_is_away(store, kind):
    service = Service(store, {(1, 0): ["MissingKeyError"], (2, 1): [None, "MissingKeyError"]})
    answer = ask(service, AwayStore(store, put=2, get=2, delete=2), kind)
    assert answer.outputs == [(WRITTEN[0],), (WRITTEN[1],)]
    assert answer.overheads.restarts == 1
    assert answer.overheads.counts.puts == 8
    assert len(set(service.queries)) == 2


@KINDS
async def test_a_query_past_its_deadline_fails_and_leaves_nothing(store, kind):
    clock = HeldClock()
    service, engine, [query] = await begin(store, kind, deadline_s=0.05, clock=clock)
    clock.expire()
    with pytest.raises(DeadlineError, match="no answer by the deadline of 50 ms"):
        await query
    assert store.keys, "keys are deleted after the last one who may write them"
    service.hang.set()
    await engine.close()
    assert len(service.stopped) == (kind == "standard")


@KINDS
async def test_cancelling_a_query_stops_its_execution(store, kind):
    service, engine, [query] = await begin(store, kind)
    query.cancel()
    with pytest.raises(asyncio.CancelledError):
        await query
    service.hang.set()
    await engine.close()
    assert service.stopped == [*service.executions]
    assert len(service.stopped) == (kind == "standard")


async def test_closing_stops_running_executions(store):
    service, engine, queries = await begin(store, queries=3)
    await engine.close()
    assert all(query.cancelled() for query in queries)
    assert sorted(service.stopped) == sorted(service.executions)


async def test_an_execution_that_is_given_up_while_it_is_being_started_is_stopped_too(store):
    service = Service(store)
    start, going_on = service.start_execution, threading.Event()

    def slowly(**given):
        service.reached.set()
        going_on.wait()
        service.hang.clear()
        return start(**given)

    service.start_execution = slowly
    engine = driver(service, store)
    query = asyncio.create_task(engine.run(CROPS, 2, PATIENCE))
    await asyncio.to_thread(service.reached.wait, PATIENCE)
    query.cancel()
    with pytest.raises(asyncio.CancelledError):
        await query
    going_on.set()
    await engine.close()
    assert service.stopped == [*service.executions] != []


@KINDS
def test_no_more_executions_at_once_than_allowed_and_all_are_answered(store, kind):
    service, clock = Service(store), FakeClock()

    async def main():
        engine = driver(service, store, kind, concurrency=2, clock=clock)
        answers = await asyncio.gather(*[engine.run(CROPS, 2, PATIENCE) for _ in range(6)])
        await engine.close()
        return answers

    answers = clock.run(asyncio.wait_for(main(), PATIENCE))
    assert len({answer.query for answer in answers}) == 6
    assert service.most <= 2


def test_a_standard_execution_is_polled_until_it_has_ended(store):
    """First when its predicted time has passed, then at growing intervals."""
    service, clock = Service(store), FakeClock()
    service.polls_before_end = 3

    async def main():
        engine = driver(service, store, clock=clock)
        await engine.run(CROPS, 2, PATIENCE)
        await engine.close()
        return engine.executions.polls

    assert clock.run(asyncio.wait_for(main(), PATIENCE)) == 4
    expected_s = sum(stage.predicted_ms for stage in PLAN.stages) / 1000
    assert clock.slept[0] == pytest.approx(expected_s - 0.05)
    assert clock.slept[1:] == pytest.approx([0.1, 0.1, 0.1125, 0.16875])


@pytest.mark.parametrize(
    ("status", "error", "text"),
    [
        ("TIMED_OUT", DeadlineError, "own time limit"),
        ("ABORTED", QueryError, "stopped"),
        ("FAILED", TaskFailedError, "States.Runtime: no place, no JSON"),
    ],
)
def test_an_execution_that_ends_otherwise_says_how(store, status, error, text):
    service = Service(store)
    reason = {"error": "States.Runtime", "cause": "no place, no JSON\nand more"} if status == "FAILED" else {}
    service.execute = lambda _text: {"status": status, "startDate": NOW, "stopDate": NOW, **reason}
    with pytest.raises(error, match=text) as raised:
        ask(service, store)
    assert "\n" not in str(raised.value)


NOW = datetime(2026, 11, 21, tzinfo=UTC)


@KINDS
def test_a_function_that_answers_without_a_report_has_failed(store, kind):
    """As ministack has it, which takes a function's error for its answer."""
    service = Service(store)
    work = service.work

    def without_report(function, payload):
        answer = work(function, payload)
        return {"report": None} if payload.get("step", {}).get("stage") == 1 else answer

    service.machine.invoke = without_report
    with pytest.raises(TaskFailedError, match=r"stage 1, tile 0: the function answered without a report"):
        ask(service, store, kind)


@KINDS
def test_step_functions_errors_are_one_line(store, kind):
    service = Service(store)

    def refuse(**_given):
        details = {"Error": {"Code": "StateMachineDoesNotExist", "Message": "no such machine"}}
        raise ClientError(details, "StartExecution")

    service.start_execution = service.start_sync_execution = refuse
    with pytest.raises(
        UnavailableError, match=r"^Step Functions refused .*StateMachineDoesNotExist: no such.*SERFER_STATE_MACHINE"
    ):
        ask(service, store, kind)


@KINDS
def test_step_functions_that_does_not_answer_is_unavailable(store, kind):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{probe.getsockname()[1]}"
    service = Service(store)
    client = connect("us-east-1", endpoint=endpoint, credentials=Credentials("id", "hidden"))
    service.start_execution, service.start_sync_execution = client.start_execution, client.start_sync_execution
    with pytest.raises(UnavailableError, match=r"^Step Functions cannot be reached: ") as raised:
        ask(service, store, kind)
    client.close()
    assert "hidden" not in str(raised.value)


def test_an_unknown_kind_is_refused(store):
    with pytest.raises(UsageError, match="standard or express, not 'rapid'"):
        driver(Service(store), store, "rapid")


async def test_a_deadline_may_pass_while_the_query_waits_for_its_turn(store):
    service, engine, [first] = await begin(store, concurrency=1)
    with pytest.raises(DeadlineError):
        await engine.run(CROPS, 2, 0.02)
    await engine.close()
    with suppress(asyncio.CancelledError):
        await first
    assert len(service.executions) == 1
