"""What was built is what runs: the directories of `sam build`, under the runtime's own Python and Lambda's own client.

Nothing of the source tree is in reach of these functions but the service that starts them. Names, layers and
environments come from the built template; what a role gives in AWS comes as variables.
"""

import json
import os
import subprocess
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import boto3
import httpx
import numpy as np
import pytest
from botocore.exceptions import ClientError

import serfer
from serfer.api.auth.keys import add_key
from serfer.core.costs.aws import shipped_aws
from serfer.core.sigv4 import Access
from serfer.local.die_with_parent import dying_with_me
from serfer.local.lambda_.function import REGION, check_function
from serfer.local.server import free_port
from serfer.local.servers.balancer import Balancer
from serfer.local.servers.step_functions import StepFunctionsServer
from serfer.plan_directory import load_plan
from serfer.sam.build.package import package
from serfer.sam.options import digest12
from serfer.settings import Settings
from serfer_bench.core.s3_server import S3Server
from tests.api.test_function import rest
from tests.e2e.small import LABELS, batch, put_weights_in, split_small
from tests.sam.built import SAM, STACK, Stack, client_of, lambda_service, run_sam
from tests.sam.conftest import OPTIONS
from tests.support.served import png

pytestmark = [pytest.mark.deploy, pytest.mark.skipif(not SAM.exists(), reason="make setup did not get SAM CLI")]


class World:
    """What stacks run on: a bucket, Lambda's Python and its runtime client."""

    def __init__(self, s3, python, runtime, cache):
        self.s3, self.access, self.python, self.cache = s3, s3.environment, python, cache
        self._runtimes = {python: runtime}

    def serve(self, functions, **more):
        signing = Access(self.access["AWS_ACCESS_KEY_ID"], self.access["AWS_SECRET_ACCESS_KEY"])
        return lambda_service(functions, self.cache, self._runtimes, access=signing, **more)

    @contextmanager
    def run(self, stack, **more):
        """Run a stack's functions in a local Lambda service; `more` are variables that only its driver gets."""
        functions = stack.functions(self.access, self.python)
        for function in functions.values():
            check_function(function, shipped_aws().functions)
        driver = functions.pop("DriverFunction", None)
        with ExitStack() as opened:
            service, drivers = opened.enter_context(self.serve([*functions.values()])), None
            if driver:
                known = {**driver.environment, "AWS_ENDPOINT_URL_LAMBDA": service.url, **more}
                drivers = opened.enter_context(self.serve([replace(driver, environment=known)]))
            yield service, drivers

    def run_in_one_account(self, stack, concurrency):
        """Run all functions of a stack, its driver's too, with so many environments together, as an account has."""
        port = free_port()
        known = {**self.access, "AWS_ENDPOINT_URL_LAMBDA": f"http://127.0.0.1:{port}"}
        return self.serve(stack.functions(known, self.python).values(), concurrency=concurrency, port=port)

    def start_driver(self, stack, service, digest, keys, engine="push", **more):
        """Start a fleet's driver with the variables that an instance's file has."""
        known = {
            **self.access,
            "SERFER_STORE": self.s3.url,
            "SERFER_WORKERS": "aws",
            "SERFER_DRIVER": engine,
            "SERFER_FUNCTION_PREFIX": STACK,
            "SERFER_PLAN": f"plans/{digest}",
            "SERFER_KEYS_FILE": str(keys),
            "SERFER_API_DRAIN_S": "3",
            "AWS_ENDPOINT_URL_LAMBDA": service.url,
        }
        return Daemon(stack, self.python, {**known, **more})


@pytest.fixture(scope="module")
def world(python313, runtime313, cache):
    with S3Server() as server:
        yield World(server, python313, runtime313, cache)


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    """Two plans of one network, of which the first is deployed first."""
    root = tmp_path_factory.mktemp("plans")
    return [split_small(root / "one"), split_small(root / "two", grids=[(1, 2), (1, 1)])]


@pytest.fixture(scope="module")
def built(tmp_path_factory, world):
    """Package plans into one directory, one after the other, build it, and return the stack."""

    def built(directories, **options):
        out = tmp_path_factory.mktemp("deployment") / "build"
        for directory in directories:
            package(
                directory, out, replace(OPTIONS, **options), Settings(cache_dir=world.cache), progress=lambda _: None
            )
        done = run_sam("build", cwd=out)
        assert done.returncode == 0, done.stderr
        return Stack(out / ".aws-sam" / "build", bucket=world.s3.bucket)

    return built


@pytest.fixture(scope="module")
def updated(built, plans):
    """Drivers as functions, after an update: two generations."""
    return built(plans)


@pytest.mark.parametrize("concurrency", [10, 4])
def test_drivers_release_environments_when_all_are_taken(updated, world, concurrency):
    """Drivers waited ten seconds for environments that other drivers held, and then answered 503."""
    requests = 20

    def status():
        try:
            response = invoked(service, rest("POST", "/v1/classify", headers={"content-type": "image/png"}, body=png()))
        except ClientError as error:  # no environment for the driver itself
            return error.response["ResponseMetadata"]["HTTPStatusCode"]
        if response["statusCode"] == 429:
            assert 1 <= int(response["headers"]["retry-after"]) <= 3, response
        return response["statusCode"]

    with world.run_in_one_account(updated, concurrency) as service:
        assert status() == 200
        with ThreadPoolExecutor(requests) as pool:
            statuses = Counter(pool.map(lambda _: status(), range(requests)))
        assert statuses.keys() == {200, 429}, statuses
        assert status() == 200  # nothing is stuck


@pytest.fixture(scope="module")
def live(updated, world):
    with world.run(updated) as services:
        yield services


def invoked(service, event, function="driver"):
    """Invoke the driver's function, or another one, as API Gateway does; return what API Gateway would be given."""
    client = client_of(service)
    try:
        answer = client.invoke(FunctionName=f"{STACK}-{function}", Payload=json.dumps(event))
        document = json.loads(answer["Payload"].read())
    finally:
        client.close()
    assert "FunctionError" not in answer, document
    return document


def ask(service, event, function="driver"):
    """Invoke the driver's function, or another one; return status and body of its response."""
    response = invoked(service, event, function)
    return response["statusCode"], json.loads(response["body"])


def test_the_polling_engine_runs_on_the_same_functions(live, plans, world, monkeypatch):
    given = {"AWS_ENDPOINT_URL_LAMBDA": live[0].url, "SERFER_FUNCTION_PREFIX": STACK}
    for name, value in {**world.access, **given}.items():
        monkeypatch.setenv(name, value)
    with serfer.open(plans[0], workers="inprocess") as pipeline:
        expected = pipeline.run(batch(3))
    with serfer.open(plans[0], workers="aws", store=world.s3.url, driver="poll") as pipeline:
        assert np.abs(pipeline.run(batch(3)) - expected).max() <= 1e-4 * np.ptp(expected)


def test_the_driver_function_answers_api_gateway_events(live, plans):
    status, answer = ask(live[1], rest("POST", "/v1/classify", headers={"content-type": "image/png"}, body=png()))
    assert status == 200, answer
    assert answer["plan"] == load_plan(plans[1]).digest  # the current one: that which was packaged last
    assert {each["label"] for each in answer["images"][0]["predictions"]} <= set(LABELS)
    assert answer["store"]["bytes_put"] > 0
    status, answer = ask(live[1], rest("POST", "/v1/classify", headers={"content-type": "image/png"}, body=b"no"))
    assert status == 415, answer


@pytest.mark.parametrize("weights_in", [pytest.param("zip", marks=pytest.mark.weekly), "fetched"])
def test_a_driver_that_runs_its_plan_answers_without_functions_and_store(built, world, tmp_path, weights_in):
    directory = put_weights_in(split_small(tmp_path, grids=[(1, 1)]), weights_in)
    plan, stack = load_plan(directory), built([directory])
    keys = {name.lower(): world.access[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    store = boto3.client("s3", endpoint_url=world.access["AWS_ENDPOINT_URL_S3"], region_name=REGION, **keys)
    for each in plan.fetched(0, 0):  # as a deployment's own functions write them
        store.put_object(
            Bucket=world.s3.bucket, Key=f"weights/{each.sha256}", Body=(directory / each.path).read_bytes()
        )
    with serfer.open(directory, workers="inprocess") as pipeline:
        expected = pipeline.classify([png()])[0].predictions[0]
    nowhere = "http://127.0.0.1:9"
    with world.run(stack, AWS_ENDPOINT_URL_LAMBDA=nowhere) as (others, drivers):
        status, answer = ask(drivers, rest("POST", "/v1/classify", headers={"content-type": "image/png"}, body=png()))
        assert status == 200, answer
        [found, *_] = answer["images"][0]["predictions"]
        assert (found["label"], found["score"]) == (expected.label, pytest.approx(expected.score, rel=1e-5))
        assert answer["store"]["bytes_put"] == answer["store"]["puts"] == 0
        assert ask(others, rest("GET", "/healthz"), "health") == (200, {"live": True})


def test_built_functions_hold_no_torch_and_have_the_recorded_size(updated, world):
    torn = [path for path in updated.directory.rglob("torch*") if path.is_dir()]
    assert torn == []
    record = json.loads((updated.directory.parents[1] / "deployment.json").read_text())
    for name, function in updated.functions({}, world.python).items():
        size = check_function(function, shipped_aws().functions)
        if name != "DriverFunction" and record["plans"][0] in name:
            stage, number = name.rpartition("S")[2].split("N")
            assert abs(size - record["bytes"][f"{stage}-{number}"]) < 10_000  # less Makefiles and sums


class Daemon:
    """A fleet's driver as its instances run it: from its two layers, under the runtime's Python."""

    def __init__(self, stack, python, variables):
        self.port = free_port()
        given = {"PATH": os.defpath, "PYTHONPATH": str(stack.directory / "DriverLayer" / "python"), **variables}
        command = [str(python), "-m", "serfer.api.entrypoints.daemon", "--host", "127.0.0.1", "--port", str(self.port)]
        self._process = subprocess.Popen(
            dying_with_me(*command),
            cwd=stack.directory / "DriverPlans",
            env=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines = []

    def wait_until_ready(self):
        for line in self._process.stdout:
            self._lines.append(line)
            if "listening" in line:
                threading.Thread(target=self._lines.extend, args=(self._process.stdout,), daemon=True).start()
                return
        pytest.fail("".join(self._lines))

    def terminate(self):
        self._process.terminate()
        return self._process.wait(60)

    def close(self):
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


@pytest.mark.parametrize("engine", [pytest.param("stepfunctions", marks=pytest.mark.weekly), "stepfunctions-express"])
def test_the_generated_state_machine_and_a_driver_of_the_fleet(engine, built, plans, world, tmp_path):
    stack = built(plans[:1], engine=engine, drivers="fleet")
    plan = load_plan(plans[0])
    kind = "express" if engine.endswith("express") else "standard"
    with ExitStack() as opened:
        service, _ = opened.enter_context(world.run(stack))
        names = [each.name for each in stack.functions({}, world.python).values()]
        machine = stack.state_machine(digest12(plan))
        server = opened.enter_context(StepFunctionsServer(kind, names, service.url, machine, service.access))
        keys = tmp_path / "keys.json"
        key = add_key(keys, "test", None)
        more = {
            "SERFER_STATE_MACHINE": server.arn,
            "AWS_ENDPOINT_URL_SFN": server.endpoint,
            "AWS_DISABLE_HOST_PREFIX_INJECTION": "true",
        }
        daemon = world.start_driver(stack, service, digest12(plan), keys, engine, **more)
        opened.callback(daemon.close)
        daemon.wait_until_ready()
        url = f"http://127.0.0.1:{daemon.port}/v1/classify"
        answer = httpx.post(url, content=png(), headers={"content-type": "image/png", "x-api-key": key}, timeout=120)
        assert answer.status_code == 200, answer.text
        assert answer.json()["plan"] == plan.digest
        assert httpx.post(url, content=png(), headers={"content-type": "image/png"}, timeout=60).status_code == 401
        assert daemon.terminate() == 0


def test_no_request_fails_while_a_fleet_changes_over_to_another_plan(built, plans, world, tmp_path):
    """One driver after the other, as an Auto Scaling group does: a new one is ready before an old one has to end."""
    stack = built(plans, drivers="fleet")
    old, new = (load_plan(directory).digest for directory in plans)
    keys = tmp_path / "keys.json"
    headers = {"content-type": "image/png", "x-api-key": add_key(keys, "test", None)}
    with ExitStack() as opened:
        service, _ = opened.enter_context(world.run(stack))

        def driver(plan):
            more = {"SERFER_API_DRAIN_S": "10"}  # longer than eight looks, as patient as the template's balancer is
            daemon = world.start_driver(stack, service, plan[:12], keys, **more)
            opened.callback(daemon.close)
            return daemon

        before = [driver(old), driver(old)]
        for each in before:
            each.wait_until_ready()
        ports = [each.port for each in before]
        after = [driver(new) for _ in before]  # they take their ports now, and their time to start
        balancer = opened.enter_context(Balancer([*ports, *(each.port for each in after)], fall=8))
        stop, answers = threading.Event(), []

        def ask_on():
            with httpx.Client(timeout=120) as client:
                while not stop.is_set():
                    response = client.post(f"{balancer.url}/v1/classify", content=png(), headers=headers)
                    answers.append((response.status_code, response.json().get("plan"), response.text))

        def taken_by(plan):
            """Wait until a driver of a plan answers, among those that answer from now on."""
            seen = len(answers)
            wait_for(lambda: asking.done() or any(each[1] == plan for each in answers[seen:]))

        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(ask_on)
            taken_by(old)
            for leaving, coming in zip(before, after, strict=True):
                coming.wait_until_ready()
                taken_by(new)  # the balancer has found it healthy
                assert leaving.terminate() == 0
            taken_by(new)
            stop.set()
            asking.result()
    assert {status for status, _, _ in answers} == {200}, [text for status, _, text in answers if status != 200][:3]
    assert {plan for _, plan, _ in answers} == {old, new}


def wait_for(true, most_s=120):
    deadline = time.monotonic() + most_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)
