import json
import os
import select
import sys
import uuid
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from botocore.credentials import Credentials

from serfer.core.costs.aws import shipped_aws
from serfer.core.errors import UnavailableError, UsageError
from serfer.core.sigv4 import Access
from serfer.drivers.stepfunctions.client import connect
from serfer.local import server as module
from serfer.local.lambda_.function import REGION, FunctionConfig
from serfer.local.lambda_.service import LambdaService
from serfer.local.servers.step_functions import StepFunctionsServer
from serfer.pipeline.event_loop import LoopThread
from tests.local.test_access import as_nobody
from tests.support.processes import check_gone, said_before_kill, use_temporary_folder, wait_for_end

KINDS = pytest.mark.parametrize("kind", ["standard", pytest.param("express", marks=pytest.mark.slow)])
PATIENCE = 30.0
NO_LAMBDA = "http://127.0.0.1:9"
ACCESS = Access("LOCAL", "a-secret-of-the-test")
PASS = {"StartAt": "only", "States": {"only": {"Type": "Pass", "End": True}}}
ECHO = {
    "StartAt": "ask",
    "States": {
        "ask": {
            "Type": "Task",
            "Resource": "arn:aws:states:::lambda:invoke",
            "Parameters": {"FunctionName": "echo", "Payload.$": "$"},
            "OutputPath": "$.Payload",
            "End": True,
        }
    },
}
ECHOING = "def handler(event, _context):\n    return {'got': event}\n"
PARENT = f"""
import json, sys
from serfer.core.sigv4 import Access
from serfer.local.servers.step_functions import StepFunctionsServer
from tests.local.test_access import as_nobody
server = StepFunctionsServer(sys.argv[1], [], "{NO_LAMBDA}", json.loads({json.dumps(PASS)!r}), Access("K", "S"))
print(server.pid, flush=True)
sys.stdin.read()
"""


def ask(server, kind, text):
    client = connect(REGION, endpoint=server.endpoint, credentials=Credentials("local", "local"))
    try:
        name = uuid.uuid4().hex
        if kind == "express":
            ended = client.start_sync_execution(stateMachineArn=server.arn, name=name, input=text)
        else:
            arn = client.start_execution(stateMachineArn=server.arn, name=name, input=text)["executionArn"]
            while (ended := client.describe_execution(executionArn=arn))["status"] == "RUNNING":
                select.select([], [], [], 0.02)
        assert ended["status"] == "SUCCEEDED"
        return json.loads(ended["output"])
    finally:
        client.close()


@pytest.fixture(scope="module")
def lambda_url(runtime, tmp_path_factory):
    """A Lambda service with one function that says what it was asked."""
    directory = tmp_path_factory.mktemp("echo")
    (directory / "echo.py").write_text(ECHOING, encoding="utf-8")
    echo = FunctionConfig("echo", directory, "echo.handler")
    loop = LoopThread()
    service = LambdaService([echo], facts=shipped_aws().functions, runtime=runtime, access=ACCESS)
    loop.wait(service.start())
    yield service.url
    loop.wait(service.stop())
    loop.close()


@KINDS
def test_tasks_reach_the_local_functions_other_users_reach_nothing_and_nothing_is_left_behind(
    kind, lambda_url, tmp_path, monkeypatch
):
    use_temporary_folder(monkeypatch, tmp_path)
    with StepFunctionsServer(kind, ["echo"], lambda_url, ECHO, ACCESS) as server:
        assert server.endpoint.startswith("http://127.0.0.1:")
        assert server.arn.startswith("arn:aws:states:us-east-1:")
        assert ask(server, kind, '{"colour": "blue"}') == {"got": {"colour": "blue"}}
        assert os.getsid(server.pid) == server.pid != os.getsid(0), "the terminal's interrupt would reach it"
        if os.geteuid() == 0:  # only root can become another user
            for path in ("/", "/moto-api/data.json", "/_ministack/health"):
                assert b" 403 " in as_nobody(urlsplit(server.endpoint).port, "GET", path).splitlines()[0]
        assert b"AWS_" not in Path(f"/proc/{server.pid}/environ").read_bytes()
        process, pid = os.pidfd_open(server.pid), server.pid
    wait_for_end(process)
    check_gone(pid, tmp_path)
    server.stop()


@pytest.mark.killed
@pytest.mark.parametrize("kind", [pytest.param("standard", marks=pytest.mark.weekly), "express"])
def test_dies_with_a_parent_that_is_killed(kind):
    said_before_kill(PARENT, kind)


def test_service_output_is_forwarded(monkeypatch):
    monkeypatch.setattr(module, "free_port", lambda: 70_000)
    with pytest.raises(
        UnavailableError, match=r"^local Step Functions did not start: OverflowError: bind\(\): port must be 0-65535.$"
    ):
        StepFunctionsServer("express", [], NO_LAMBDA, PASS, ACCESS)


@pytest.mark.slow
def test_an_invalid_definition_is_refused_and_the_service_stopped(monkeypatch):
    started = []
    answers = StepFunctionsServer._answers
    monkeypatch.setattr(StepFunctionsServer, "_answers", lambda server: started.append(server) or answers(server))
    with pytest.raises(UnavailableError, match="refuses the state machine"):
        StepFunctionsServer("standard", [], NO_LAMBDA, {"StartAt": "nowhere"}, ACCESS)
    assert started[0]._process.returncode is not None


def test_express_workflows_name_the_missing_package(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(UnavailableError, match="make setup"):
        StepFunctionsServer("express", [], NO_LAMBDA, PASS, ACCESS)


def test_other_workflow_kinds_are_refused():
    with pytest.raises(UsageError, match="standard or express, not 'rapid'"):
        StepFunctionsServer("rapid", [], NO_LAMBDA, PASS, ACCESS)
