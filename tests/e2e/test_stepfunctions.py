"""Queries through real state machines: moto and ministack run them, the local Lambda service their tasks."""

import itertools
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest
from botocore.credentials import Credentials

from serfer.core.exactness import difference
from serfer.core.run_machine import Retry
from serfer.core.wire import Crop
from serfer.drivers.lambda_http import LambdaInvoker
from serfer.drivers.push import PushDriver
from serfer.drivers.stepfunctions.asl import compile_plan, local_functions
from serfer.drivers.stepfunctions.client import connect
from serfer.drivers.stepfunctions.driver import StepFunctionsDriver
from serfer.local.lambda_.function import REGION, FunctionConfig
from serfer.local.lambda_.runtime import runtime_directory
from serfer.local.lambda_.service import LambdaService
from serfer.local.servers.step_functions import StepFunctionsServer
from serfer.packaging.bundle import dependencies, function_directory
from serfer.pipeline.event_loop import LoopThread
from serfer.pipeline.reference import unsplit
from serfer.plan_directory import load_plan
from serfer.storage import open_store
from tests.e2e.conftest import PATIENCE
from tests.e2e.small import batch, split_small

CREDENTIALS = Credentials("local", "local")
FLAKY = Path(__file__).with_name("flaky")
RETRY = Retry(attempts=2)


class Stack:
    """A plan's functions in the local Lambda service, on a loop of its own; `failures` is where flaky.py looks."""

    def __init__(self, directory, settings, store_url, failures):
        self.directory, self.plan = directory, load_plan(directory)
        self.store_url, self.failures = store_url, failures
        self.loop = LoopThread()
        runtime = runtime_directory(settings.cache_dir / "runtime")
        environment = {
            "SERFER_STORE": store_url,
            "POWERTOOLS_LOG_LEVEL": "CRITICAL",
            "PYTHONPATH": f"{runtime}:{FLAKY}",
            "FLAKY": str(failures),
        }
        base = dependencies(settings.cache_dir)
        functions = [
            FunctionConfig(
                name=self.plan.function(*part),
                directory=function_directory(self.plan, directory, *part, base),
                handler="flaky.handler",
                environment=environment,
            )
            for part in self.plan.functions
        ]
        facts = settings.facts().functions
        self.service = LambdaService(functions, facts=facts, runtime=runtime, concurrency=8)
        self.loop.wait(self.service.start())

    def machine(self, kind):
        functions = local_functions(self.plan)
        definition = compile_plan(self.plan, functions, express=kind == "express", retry=RETRY)
        return StepFunctionsServer(kind, itertools.chain(*functions), self.service.url, definition, self.service.access)

    def crops(self, images):
        tiles = self.plan.stages[0].tiles
        return [Crop("float32", images[:, :, *tile.inputs[0].slices].tobytes()) for tile in tiles]

    def ask(self, driver, images):
        """Ask once, close the driver, and return the logits and the answer."""

        async def main():
            try:
                return await driver.run(self.crops(images), len(images), PATIENCE)
            finally:
                await driver.close()

        answer = self.loop.wait(main())
        scores = [np.frombuffer(part, "<f4").reshape(len(images), -1) for [part] in answer.outputs]
        return np.concatenate(scores, axis=1), answer

    def push(self, store):
        async def connected():
            return LambdaInvoker(self.service.url, REGION, Credentials(*astuple(self.service.access)))

        invoker = self.loop.wait(connected())
        return invoker, PushDriver(self.plan, invoker, store, inline_limit=0)

    def stop(self):
        self.loop.wait(self.service.stop())
        self.loop.close()


@pytest.fixture(scope="module")
def stack(tmp_path_factory, lean, settings, _redis):
    made = Stack(lean, settings, _redis.url, tmp_path_factory.mktemp("failures"))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def machines(stack):
    """A service of each kind, for all tests here."""
    with stack.machine("standard") as standard, stack.machine("express") as express:
        yield {"standard": standard, "express": express}


@pytest.fixture
def ask(stack, machines, redis):
    """Ask a state machine of a kind; a test leaves nothing in the store, and no failure that never came."""

    def run(kind, images):
        machine = machines[kind]
        client = connect(REGION, endpoint=machine.endpoint, credentials=CREDENTIALS)
        with open_store(redis) as store:
            return stack.ask(StepFunctionsDriver(stack.plan, store, client, machine.arn, kind=kind), images)

    yield run
    assert [*stack.failures.iterdir()] == []


def fail(stack, *names, stage, tile=0):
    for number, name in enumerate(names):
        (stack.failures / f"{stage}-{tile}-{number}").write_text(name, encoding="utf-8")


@pytest.mark.exact
def test_every_engine_gives_the_same_answer(stack, ask, redis):
    images = batch(2)
    with open_store(redis) as store:
        invoker, driver = stack.push(store)
        pushed, _ = stack.ask(driver, images)
        stack.loop.wait(invoker.close())
    assert difference(pushed, unsplit(stack.plan, stack.directory)(images)).exact
    for kind in ("standard", "express"):
        logits, answer = ask(kind, images)
        assert np.array_equal(logits, pushed)
        assert [len(stage.reports) for stage in answer.stages] == [2, 1]
        assert answer.overheads.retries == answer.overheads.restarts == 0
        assert answer.started < answer.stages[0].ended < answer.stages[1].ended <= answer.ended


def test_a_failed_attempt_is_retried(stack, ask):
    fail(stack, "OSError", stage=0, tile=1)
    fail(stack, "RuntimeError", stage=1)
    logits, answer = ask("standard", batch())
    assert difference(logits, unsplit(stack.plan, stack.directory)(batch())).exact
    assert answer.overheads.retries == 2
    assert [[len(tile.attempts) for tile in stage.tiles] for stage in answer.stages] == [[1, 2], [2]]


@pytest.mark.slow
def test_more_tiles_than_a_map_runs_side_by_side(tmp_path, settings, redis):
    directory = split_small(tmp_path, grids=[(6, 7), (1, 1)])
    (tmp_path / "failures").mkdir()
    stack = Stack(directory, settings, redis, tmp_path / "failures")
    try:
        with stack.machine("standard") as machine, open_store(redis) as store:
            client = connect(REGION, endpoint=machine.endpoint, credentials=CREDENTIALS)
            driver = StepFunctionsDriver(stack.plan, store, client, machine.arn, kind="standard")
            logits, answer = stack.ask(driver, batch())
    finally:
        stack.stop()
    assert difference(logits, unsplit(stack.plan, directory)(batch())).exact
    assert len(answer.stages[0].reports) == 42
