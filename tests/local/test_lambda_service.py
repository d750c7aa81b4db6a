"""The local Lambda service, met as its users meet it: through boto3, with real workers under AWS's runtime client."""

import asyncio
import base64
import contextlib
import dataclasses
import json
import os
import queue
import re
import shutil
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from botocore.exceptions import HTTPClientError

from serfer.core.costs.aws import shipped_aws
from serfer.core.errors import InputError
from serfer.local.lambda_.environment import Environment, Invocation
from serfer.local.lambda_.function import FunctionConfig
from serfer.local.lambda_.runtime import runtime_directory
from serfer.local.lambda_.service import LambdaService
from serfer.pipeline.event_loop import LoopThread, run
from tests.support.lambda_client import lambda_client
from tests.support.processes import said_before_kill, wait_for_end

HERE = Path(__file__).parent / "functions"
FACTS = shipped_aws().functions
LATE_MS = 300  # what the probe "late" takes to start
PATIENCE = 20.0  # s until a test that waits for an event gives up


def probe(name, **settings):
    handler = settings.pop("handler", f"handler.{name}")
    return FunctionConfig(name, HERE / settings.pop("directory", "probe"), handler, **settings)


class FakeTime:
    """A clock that stands still until it is advanced, and the sleepers on it."""

    def __init__(self):
        self.now = 0.0
        self.slept = queue.Queue()
        self._sleepers = []

    def clock(self):
        return self.now

    async def sleep(self, seconds):
        future = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.now + seconds, future))
        self.slept.put(seconds)
        await future

    def advance(self, seconds):
        self.now += seconds
        for due, future in self._sleepers:
            if due <= self.now and not future.done():
                future.set_result(None)

    def next_sleep(self, expected):
        while self.slept.get(timeout=PATIENCE) != expected:
            pass


class Local:
    """A service on a loop in a thread of its own, its clients and its log."""

    def __init__(self, runtime, *functions, facts=FACTS, make=LambdaService, **settings):
        self.time = FakeTime()
        self.lines = queue.Queue()
        self._loop = LoopThread()
        how = {"on_log": self.lines.put, "clock": self.time.clock, "sleep": self.time.sleep}
        self.service = make(functions, facts=facts, runtime=runtime, **how, **settings)

    def __enter__(self):
        self.do(self.service.start)
        self.client = lambda_client(self.service.url, self.service.access)
        return self

    def __exit__(self, *_):
        self.do(self.service.stop)
        self.client.close()
        self._loop.close()

    def do(self, function, *args):
        async def run():
            result = function(*args)
            return await result if asyncio.iscoroutine(result) else result

        return self._loop.submit(run()).result(PATIENCE)

    def invoke(self, function, event=None, **settings):
        """Invoke and return (decoded payload, whole answer)."""
        answer = self.client.invoke(FunctionName=function, Payload=json.dumps(event), **settings)
        payload = answer["Payload"].read()
        return (json.loads(payload) if payload else None), answer

    def error(self, function, event=None):
        payload, answer = self.invoke(function, event)
        assert answer["FunctionError"] == "Unhandled"
        assert answer["StatusCode"] == 200
        return payload

    def line(self, pattern):
        while True:
            if match := re.search(pattern, self.lines.get(timeout=PATIENCE)):
                return match

    def lines_in_any_order(self, *patterns):
        """Wait for a log line of each: a function's lines and the service's own come by different ways."""
        awaited = set(patterns)
        while awaited:
            line = self.lines.get(timeout=PATIENCE)
            awaited = {pattern for pattern in awaited if not re.search(pattern, line)}


class Gate:
    """Two FIFOs that hold the handler `wait` for as long as a test wants."""

    def __init__(self, directory):
        self.event = {"entered": str(directory / "entered"), "leave": str(directory / "leave")}
        for path in self.event.values():
            os.mkfifo(path)

    def entered(self):
        return json.loads(Path(self.event["entered"]).read_text())

    def open(self):
        Path(self.event["leave"]).write_text("released")


@pytest.fixture(scope="module")
def local(runtime):
    functions = [
        probe("echo", environment={"COLOUR": "green"}),
        probe("nested", handler="inner.deep.handler"),
        *map(probe, ["variables", "fail", "leave", "chatter", "large", "imports"]),
        probe("hang", timeout_s=0.25),
        probe("hoard", memory_mb=128),
        probe("grasp", memory_mb=128),
        probe("broken", directory="broken"),
        probe("stillborn", directory="stillborn"),
    ]
    with Local(runtime, *functions) as local:
        yield local


@pytest.fixture
def gate(tmp_path):
    return Gate(tmp_path)


@pytest.fixture
def threads():
    with ThreadPoolExecutor(4) as threads:
        yield threads


def test_an_invocation_is_answered_and_its_environment_used_again(local):
    first, answer = local.invoke("echo", {"a": [1, "ü"]})
    second, _ = local.invoke("arn:aws:lambda:us-east-1:123456789012:function:echo", Qualifier="live")
    third, _ = local.invoke("123456789012:function:echo:$LATEST")
    assert first["event"] == {"a": [1, "ü"]}
    assert first["arn"].endswith(":function:echo")
    assert 29_000 < first["left_ms"] <= 30_000
    assert answer["StatusCode"] == 200
    assert answer["ExecutedVersion"] == "$LATEST"
    assert "FunctionError" not in answer
    assert re.fullmatch(r"[0-9a-f-]{36}", answer["ResponseMetadata"]["RequestId"])
    assert [first["calls"], second["calls"], third["calls"]] == [1, 2, 3]
    assert first["environment"] == third["environment"]


def test_payload_context_and_handler_reach_the_function(local):
    answer = local.client.invoke(FunctionName="echo")
    assert json.load(answer["Payload"])["event"] == {}
    assert local.invoke("nested", 1)[0] == {"deep": 1}
    context = base64.b64encode(b'{"custom": {"k": "v"}}').decode()
    assert local.invoke("echo", ClientContext=context)[0]["client"] == {"k": "v"}
    with pytest.raises(local.client.exceptions.InvalidRequestContentException):
        local.invoke("echo", ClientContext="no base64!")


def test_a_dry_run_runs_nothing(local):
    before = local.invoke("echo")[0]["calls"]
    payload, answer = local.invoke("echo", InvocationType="DryRun")
    assert payload is None
    assert answer["StatusCode"] == 204
    assert local.invoke("echo")[0]["calls"] == before + 1


def test_functions_are_described(local):
    configuration = local.client.get_function_configuration(FunctionName="hang")
    assert configuration["MemorySize"] == 1769
    assert configuration["State"] == "Active"
    assert configuration["CodeSize"] >= (HERE / "probe" / "handler.py").stat().st_size
    assert local.client.get_function(FunctionName="echo")["Configuration"]["Handler"] == "handler.echo"
    names = [each["FunctionName"] for each in local.client.list_functions()["Functions"]]
    assert "grasp" in names
    for call in (local.client.get_function, local.client.get_function_configuration, local.client.invoke):
        with pytest.raises(local.client.exceptions.ResourceNotFoundException):
            call(FunctionName="nobody")


def test_function_errors_are_lambdas(local):
    error = local.error("fail", "luck")
    assert error["errorType"] == "LookupError"
    assert error["errorMessage"] == "no luck"
    assert "in fail" in error["stackTrace"][0]
    for _ in range(2):
        error = local.error("broken")
        assert (error["errorType"], error["errorMessage"]) == ("ValueError", "broken from the start")
    error = local.error("stillborn")
    assert error["errorType"] == "Runtime.ExitError"
    assert error["errorMessage"].endswith("exit status 7")
    error = local.error("hang")
    assert error["errorType"] == "Sandbox.Timedout"
    assert error["errorMessage"].endswith("Error: Task timed out after 0.25 seconds")


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (3, "with error: exit status 3"),
        (0, "without providing a reason"),
        (-9, "with error: signal: killed"),
        (-11, "with error: signal: segmentation fault"),
    ],
)
def test_a_process_that_ends_takes_its_children_with_it(local, status, words):
    error = local.error("leave", {"status": status})
    assert error["errorType"] == "Runtime.ExitError"
    assert re.fullmatch(f"RequestId: [0-9a-f-]{{36}} Error: Runtime exited {words}", error["errorMessage"])
    child = int(local.line(r"leave: child (\d+)")[1])
    with contextlib.suppress(ProcessLookupError):
        wait_for_end(os.pidfd_open(child))


def test_an_init_beyond_lambdas_limit_uses_up_the_functions_time(runtime):
    facts = dataclasses.replace(FACTS, init_limit=0.1)
    function = probe("sluggish", directory="sluggish", timeout_s=0.1)
    with Local(runtime, function, facts=facts) as local:
        assert local.error("sluggish")["errorType"] == "Sandbox.Timedout"


def test_environments_stand_still_between_invocations_when_asked(runtime):
    with Local(runtime, probe("echo"), freezes=True) as local:
        pids = set()
        for calls in (1, 2, 3):
            answer, _ = local.invoke("echo")
            assert answer["calls"] == calls
            pids.add(answer["pid"])
            (pid,) = pids
            deadline = time.monotonic() + PATIENCE
            while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
                assert time.monotonic() < deadline
        assert local.service.environments == 1
    assert not psutil.pid_exists(pid)


@pytest.mark.killed
@pytest.mark.parametrize("freezes", [False, True])
def test_a_start_in_place_of_one_that_crashed_counts_against_the_functions_timeout(runtime, tmp_path, freezes):
    """Lambda's suppressed init: without it, a start has the time of an init, whatever the function's timeout."""
    function = probe("late", directory="late", timeout_s=60.0, environment={"STARTED": str(tmp_path / "started")})
    with Local(runtime, function, freezes=freezes) as local:
        first = local.error("late", {"exit": 3})
        assert (first["errorType"], (tmp_path / "started").read_text()) == ("Runtime.ExitError", "1")
        left_ms, _ = local.invoke("late", {})
        assert (tmp_path / "started").read_text() == "2"
        assert (left_ms < 60_000 - LATE_MS) == freezes


@pytest.mark.parametrize("function", ["hoard", "grasp"])
def test_memory_beyond_the_functions_is_out_of_memory(local, function):
    error = local.error(function)
    assert error["errorType"] == "Runtime.OutOfMemory"
    assert error["errorMessage"].endswith("Error: Runtime exited with error: signal: killed")


def test_a_payload_that_is_not_json_is_refused(local):
    for kind in ("RequestResponse", "Event", "DryRun"):
        for payload in (b"{", b'"\xff"'):
            with pytest.raises(local.client.exceptions.InvalidRequestContentException):
                local.client.invoke(FunctionName="echo", Payload=payload, InvocationType=kind)


def test_payloads_have_lambdas_limits(local):
    assert local.invoke("large", {"bytes": FACTS.sync_payload_limit - 2})[1].get("FunctionError") is None
    assert local.error("large", {"bytes": FACTS.sync_payload_limit - 1})["errorType"] == "Function.ResponseSizeTooLarge"
    assert len(local.invoke("large", {"bytes": 3})[0]) == 3
    for kind, limit in (("RequestResponse", FACTS.sync_payload_limit), ("Event", FACTS.async_payload_limit)):
        with pytest.raises(local.client.exceptions.RequestTooLargeException, match=str(limit)):
            local.invoke("echo", "x" * (limit - 1), InvocationType=kind)
    assert len(local.invoke("echo", "x" * (1 << 20))[0]["event"]) == 1 << 20


def test_log_is_whole_and_its_tail_the_invocations_own(local):
    def tail(lines):
        answer = local.invoke("chatter", {"lines": lines}, LogType="Tail")[1]
        return base64.b64decode(answer["LogResult"])

    cold, warm, long = tail(0).decode(), tail(1).decode(), tail(50)
    assert "\tInit Duration: " in cold.splitlines()[-1]
    start, line, message, end, report = warm.splitlines()
    assert start.startswith("START RequestId: ")
    assert line.startswith("0 xxx")
    assert message == "said"
    assert end.startswith("END RequestId: ")
    assert report.startswith("REPORT RequestId: ")
    assert len(long) == 4096
    assert local.invoke("chatter", {"lines": 20_000})[0] == 20_000
    local.line(r"chatter: 19999 x{1000}$")


def test_a_worker_sees_its_own_directory_and_nothing_of_the_host(local):
    seen = local.invoke("imports", ["handler", "inner.deep", "awslambdaric", "sqlite3", "boto3", "torch", "serfer"])[0]
    hidden = {"boto3", "torch", "serfer"}
    assert seen == {name: name not in hidden for name in seen}
    variables = local.invoke("variables")[0]
    assert variables["cwd"] == variables["path"][0] == str(HERE / "probe")
    assert not [path for path in variables["path"] if "site-packages" in path]
    assert "HOME" not in variables["environ"]
    assert variables["environ"]["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"] == "1769"


def test_the_account_limit_counts_busy_environments(runtime, gate, threads):
    with Local(runtime, probe("echo"), probe("wait"), concurrency=1) as local:
        local.invoke("echo")  # leaves an idle environment, which is not counted
        waiting = threads.submit(local.invoke, "wait", gate.event)
        gate.entered()
        with pytest.raises(local.client.exceptions.TooManyRequestsException) as caught:
            local.invoke("echo")
        assert caught.value.response["Reason"] == "ConcurrentInvocationLimitExceeded"
        assert local.service.counts.refused == 1
        gate.open()
        assert waiting.result()[0] == "released"
        local.invoke("echo")


def test_a_busy_environment_is_joined_by_another(runtime, gate, threads):
    with Local(runtime, probe("wait")) as local:
        waiting = threads.submit(local.invoke, "wait", gate.event)
        first = gate.entered()
        (gate_directory := Path(gate.event["leave"]).parent / "second").mkdir()
        other = Gate(gate_directory)
        also_waiting = threads.submit(local.invoke, "wait", other.event)
        assert other.entered() != first
        assert local.service.environments == 2
        gate.open()
        other.open()
        assert waiting.result()[0] == also_waiting.result()[0] == "released"


def test_a_failed_event_is_tried_twice_more(runtime):
    with Local(runtime, probe("fail")) as local:
        payload, answer = local.invoke("fail", InvocationType="Event")
        assert (payload, answer["StatusCode"]) == (None, 202)
        request_id = answer["ResponseMetadata"]["RequestId"]
        for delay in (60.0, 120.0):
            local.line(f"failing {request_id}")
            local.time.next_sleep(delay)
            local.do(local.time.advance, delay)
        local.lines_in_any_order(f"failing {request_id}", rf"{request_id} dropped after 3 tries: LookupError")


def test_a_throttled_event_waits_its_turn(runtime, gate, threads):
    with Local(runtime, probe("wait"), probe("fail"), concurrency=1) as local:
        waiting = threads.submit(local.invoke, "wait", gate.event)
        gate.entered()
        local.invoke("fail", InvocationType="Event")
        for delay in (1.0, 2.0):
            local.time.next_sleep(delay)
            local.do(local.time.advance, delay)
        local.time.next_sleep(4.0)
        gate.open()
        waiting.result()
        local.do(local.time.advance, 4.0)
        local.line("failing")


def test_an_idle_environment_expires(runtime):
    with Local(runtime, probe("echo"), keep_alive_s=100.0) as local:
        first = local.invoke("echo")[0]
        pidfd = os.pidfd_open(first["pid"])
        local.do(local.time.advance, 99.0)
        assert local.invoke("echo")[0]["pid"] == first["pid"]
        local.do(local.time.advance, 100.0)
        wait_for_end(pidfd)
        second = local.invoke("echo")[0]
        assert second["environment"] != first["environment"]
        assert second["calls"] == 1


def test_a_service_keeps_its_functions_directories_in_the_cache(runtime, tmp_path):
    """Where they are forgotten after a day or a week without use."""
    directory = shutil.copytree(HERE / "probe", tmp_path / "function")

    with Local(runtime, FunctionConfig("echo", directory, "handler.echo")) as local:
        local.time.next_sleep(3600.0)
        os.utime(directory, (0, 0))
        local.do(local.time.advance, 3600.0)
        local.time.next_sleep(3600.0)
        assert directory.stat().st_mtime > 0


@pytest.mark.killed
def test_an_idle_worker_that_dies_is_replaced(local):
    first = local.invoke("echo")[0]
    pidfd = os.pidfd_open(first["pid"])
    os.kill(first["pid"], signal.SIGKILL)
    wait_for_end(pidfd)
    assert local.invoke("echo")[0]["pid"] != first["pid"]


def test_stopping_fails_waiting_callers_and_leaves_no_process(runtime, gate, threads):
    with Local(runtime, probe("echo"), probe("wait")) as local:
        pidfds = [os.pidfd_open(local.invoke("echo")[0]["pid"])]
        waiting = threads.submit(local.invoke, "wait", gate.event)
        pidfds.append(os.pidfd_open(gate.entered()))
        local.do(local.service.stop)
        for pidfd in pidfds:
            wait_for_end(pidfd)
        with pytest.raises(HTTPClientError):
            waiting.result()
        port = int(local.service.url.rsplit(":", 1)[1])
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))


def test_stopping_ends_even_where_an_environments_end_fails(runtime, monkeypatch):
    def fails(_self, _status):
        raise ValueError("Invalid file descriptor: -1")

    with Local(runtime, probe("echo")) as local:
        worker = os.pidfd_open(local.invoke("echo")[0]["pid"])
        monkeypatch.setattr(Environment, "_end", fails)
        local.do(local.service.stop)
        wait_for_end(worker)
        assert local.service.environments == 0


def test_stopping_ends_even_where_every_task_was_cancelled_before_an_environment_started(runtime):
    """What runs in a loop that ends, such as a pipeline's, is cancelled before its parts are stopped."""

    async def scene():
        service = LambdaService([probe("echo")], facts=FACTS, runtime=runtime)
        await service.start()
        assert service._pool.dispatch(probe("echo"), Invocation("id", b"{}", lambda _: None))
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.wait_for(service.stop(), PATIENCE)
        assert service.environments == 0

    run(scene())


HOST = """
import asyncio, json, sys
from pathlib import Path
from serfer.core.costs.aws import shipped_aws
from serfer.local.lambda_.function import FunctionConfig
from serfer.local.lambda_.service import LambdaService
from serfer.pipeline.event_loop import run
from tests.support.lambda_client import lambda_client
from tests.support.processes import said_before_kill, wait_for_end

async def main(runtime, directory):
    function, facts = FunctionConfig("echo", Path(directory), "handler.echo"), shipped_aws().functions
    async with LambdaService([function], facts=facts, runtime=Path(runtime)) as service:
        client = lambda_client(service.url, service.access)
        answer = await asyncio.to_thread(client.invoke, FunctionName="echo")
        print(json.load(answer["Payload"])["pid"], flush=True)
        await asyncio.Event().wait()

run(main(*sys.argv[1:]))
"""


@pytest.mark.killed
def test_workers_die_with_a_host_that_is_killed(runtime):
    said_before_kill(HOST, str(runtime), str(HERE / "probe"))


def test_a_function_that_lambda_would_refuse_is_refused(runtime, tmp_path):
    with (tmp_path / "weights").open("wb") as sparse:
        sparse.truncate(FACTS.package_limit // 2)
    (tmp_path / "same").hardlink_to(tmp_path / "weights")
    (tmp_path / "back").symlink_to(tmp_path)
    fits = FunctionConfig("fits", tmp_path, "handler.handler")
    LambdaService([fits], facts=FACTS, runtime=runtime)
    (tmp_path / "handler.py").write_text("#")
    for functions, words in [
        ([fits], "fits: its package .* 262,144,001 bytes .* 262,144,000"),
        ([FunctionConfig("lost", tmp_path / "nowhere", "a.b")], "lost: .* does not exist"),
        ([probe("echo", memory_mb=64)], "echo: 64 MB"),
        ([probe("echo", timeout_s=901)], "echo: a timeout of 901"),
        ([probe("echo"), probe("echo")], "two functions are named echo"),
        ([probe("no name")], "'no name' is not a function name"),
    ]:
        with pytest.raises(InputError, match=words):
            LambdaService(functions, facts=FACTS, runtime=runtime)


def test_the_runtime_directory_is_made_once(runtime):
    before = runtime.stat().st_ino
    assert runtime_directory(runtime.parent) == runtime
    assert runtime.stat().st_ino == before
    assert [path.name for path in runtime.parent.iterdir()] == [runtime.name]
