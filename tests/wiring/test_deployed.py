"""What a stack says of itself, and what is refused because of it; CloudFormation is moto's."""

import socket
import subprocess
import sys
from dataclasses import replace

import pytest

from serfer.core.errors import PlanError, UnavailableError, UsageError
from serfer.settings import Settings
from serfer.wiring.deployed import Deployment, deployed_names, find_deployment
from tests.core.plans import small_plan
from tests.moto_server import MotoServer

PLAN = small_plan()
DIGEST = PLAN.digest[:12]
OTHER = "0123456789ab"
MACHINE = "arn:aws:states:us-east-1:123456789012:stateMachine:demo"
OUTPUTS = {"Store": "s3://bucket/serfer", "FunctionPrefix": "demo", "Plans": DIGEST, "Serving": DIGEST}
FOUND = Deployment("demo", "s3://bucket/serfer", "demo", "", (DIGEST,), DIGEST, "push", "", "https://x/prod")


@pytest.fixture(scope="module")
def moto():
    with MotoServer() as server:
        server.stack("demo", OUTPUTS)
        more = {"Engine": "stepfunctions", "StateMachine": MACHINE, "Alias": "live", "Url": "https://x/prod"}
        server.stack("whole", {**OUTPUTS, **more, "Plans": f"{DIGEST},{OTHER}"})
        server.stack("other", {"BucketName": "mine"})
        server.stack("odd", {**OUTPUTS, "Plans": "all of them"})
        yield server


@pytest.fixture(autouse=True)
def access(moto, monkeypatch):
    for name, value in moto.variables().items():
        monkeypatch.setenv(name, value)


class TestFinding:
    def test_a_stack_says_where_everything_is(self):
        assert find_deployment("demo") == replace(FOUND, engine="", url="")
        whole = find_deployment("whole")
        assert (whole.alias, whole.plans, whole.engine) == ("live", (DIGEST, OTHER), "stepfunctions")
        assert (whole.state_machine, whole.url) == (MACHINE, "https://x/prod")

    @pytest.mark.parametrize(
        ("name", "error", "words"),
        [
            ("nowhere", UnavailableError, r"--stack nowhere: there is no such stack in us-east-1"),
            *((name, UsageError, rf"--stack {name} is not a stack of serfer") for name in ("other", "odd")),
            *((name, UsageError, "--stack") for name in ("", "a b", "-x", "x" * 129, "a/b", "arn:aws:s3:::bucket")),
        ],
    )
    def test_stack_missing_foreign_or_misnamed_is_refused(self, name, error, words):
        with pytest.raises(error, match=words):
            find_deployment(name)

    def test_access_denied(self, moto, monkeypatch):
        for name, value in moto.check_permissions().items():
            monkeypatch.setenv(name, value)
        try:
            with pytest.raises(UnavailableError, match="allow cloudformation:DescribeStacks, or set AWS_PROFILE"):
                find_deployment("demo")
        finally:
            moto.check_nothing()

    def test_an_unreachable_service(self, monkeypatch):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        monkeypatch.setenv("AWS_ENDPOINT_URL_CLOUDFORMATION", f"http://127.0.0.1:{port}")
        with pytest.raises(UnavailableError, match="--stack demo: CloudFormation cannot be reached"):
            find_deployment("demo")

    def test_a_response_that_is_not_xml(self, moto):
        moto.stack("garbled", {**OUTPUTS, "Engine": "\x1b"})
        with pytest.raises(UnavailableError, match="--stack garbled: what answers is not CloudFormation"):
            find_deployment("garbled")

    def test_no_access_and_no_region(self, monkeypatch, tmp_path):
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        with pytest.raises(UnavailableError, match="--stack demo: no credentials: set AWS_PROFILE"):
            find_deployment("demo")
        monkeypatch.delenv("AWS_DEFAULT_REGION")
        with pytest.raises(UnavailableError, match=r"--stack demo: .*region: set AWS_DEFAULT_REGION"):
            find_deployment("demo")


class TestChecking:
    def test_a_plan_that_is_deployed(self):
        FOUND.check(PLAN, "push")
        FOUND.check(PLAN, "poll")
        replace(FOUND, plans=(OTHER, DIGEST), serving=OTHER).check(PLAN, "push")

    def test_plan_or_engine_of_another_deployment_is_refused(self):
        machine = replace(FOUND, engine="stepfunctions-express", state_machine=MACHINE)
        machine.check(PLAN, "stepfunctions-express")
        for stack, engine, error, words in (
            (replace(FOUND, plans=(OTHER,)), "push", PlanError, f"serves the plan {OTHER}, this one is {DIGEST}"),
            (replace(FOUND, driver_runs=(DIGEST,)), "push", UsageError, "https://x/prod.*driver_runs=never"),
            (FOUND, "stepfunctions", UsageError, "engine=stepfunctions: the stack demo was packaged for push"),
            (machine, "stepfunctions", UsageError, "was packaged for stepfunctions-express"),
            (replace(machine, plans=(OTHER, DIGEST), serving=OTHER), "stepfunctions-express", UsageError, OTHER),
        ):
            with pytest.raises(error, match=words):
                stack.check(PLAN, engine)

    def test_settings_are_the_deployments(self):
        settings = replace(FOUND, alias="live", state_machine=MACHINE).settings(Settings(local_port=5))
        assert (settings.function_prefix, settings.function_alias) == ("demo", "live")
        assert (settings.state_machine, settings.local_port) == (MACHINE, 5)
        assert FOUND.settings(Settings(state_machine=MACHINE)).state_machine == MACHINE

    @pytest.mark.parametrize("wrong", [{"prefix": "a/b"}, {"alias": "l:v"}, {"state_machine": "demo"}])
    def test_outputs_that_cannot_be_ours(self, wrong):
        with pytest.raises(UsageError, match=r"--stack demo: SERFER_(FUNCTION_|STATE_MACHINE)"):
            replace(FOUND, **wrong).settings(Settings())

    def test_a_store_in_a_network_of_its_own(self):
        cache = replace(FOUND, store="rediss+cluster://user@cache:6379?iam=cache")
        assert "only what runs in its network or has its role" in cache.advice
        assert "https://x/prod" in cache.advice
        assert "network" not in FOUND.advice


class TestNames:
    def test_functions_are_called_after_the_stack_the_plan_and_their_place(self):
        names = deployed_names(PLAN, Settings(function_prefix="demo"))
        assert [*names] == [PLAN.function(*part) for part in PLAN.functions]
        assert [*names.values()] == [f"demo-{DIGEST}-{stage}-{number}" for stage, number in PLAN.functions]

    def test_an_alias_follows(self):
        names = deployed_names(PLAN, Settings(function_prefix="demo", function_alias="live"))
        assert names[PLAN.function(0, 0)] == f"demo-{DIGEST}-0-0:live"
        own = deployed_names(PLAN, Settings(function_alias="live"))
        assert own[PLAN.function(0, 0)] == f"{PLAN.function(0, 0)}:live"

    def test_without_a_prefix_they_have_their_own_names(self):
        assert deployed_names(PLAN, Settings()) == {}


@pytest.mark.parametrize("module", ["function", "daemon"])
def test_a_driver_in_aws_needs_nothing_of_the_workers_or_the_command_line(module):
    code = (
        f"import sys, serfer.api.entrypoints.{module}\n"
        "print(*sorted(name for name in sys.modules if name.partition('.')[0] in "
        "('onnx', 'onnxruntime', 'torch', 'typer', 'rich', 'serfer_bench', 'boto3', 'moto') "
        "or name in ('serfer.splitter', 'serfer.sam', 'serfer.lambdas') "
        "or name.startswith('serfer.local.') and name.rpartition('.')[2] not in ('server', 'acceptor', "
        "'die_with_parent')))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "\n"
