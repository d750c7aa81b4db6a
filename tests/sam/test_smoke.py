"""`serfer deploy smoke`: what is refused, and that nothing is left, however it ends."""

import os
import shutil
import sys
import tomllib
from dataclasses import replace

import pytest

from serfer.core.errors import TaskFailedError, UsageError
from serfer.sam import smoke
from serfer.sam.cost.bill import price_build
from serfer.sam.samconfig import stack_of
from serfer.sam.smoke import Budget, Order, OverBudgetError
from serfer.settings import Settings
from tests.e2e.small import split_small
from tests.sam.builds import build as build_of
from tests.sam.built import SAM
from tests.sam.deployed import Deployed, called

SERFER = (sys.executable, "-m", "serfer")
STACK = "demo-smoke"
TEMPLATE = '{"Resources": {"Store": {"Type": "AWS::S3::Bucket"}}}'


def order_of(place, **choices):
    directory = build_of(place / "build", **choices)
    return Order(directory, stack_of(directory, "dev"), 1.0)


def test_a_budget_allows_no_step_that_is_more_than_is_left():
    budget = Budget(0.01)
    budget.spend(0.009)
    budget.allow("4 starts at once", 0.0009)
    with pytest.raises(OverBudgetError, match=r"64 starts at once: estimated at \$0\.0011, and \$0\.0010 are left of"):
        budget.allow("64 starts at once", 0.0011)
    budget.spend(0.002)
    with pytest.raises(OverBudgetError, match=r"\$0\.0000 are left of --max-usd 0\.01: allow more"):
        budget.allow("442 MB", 0.0)
    assert budget.spent_usd == pytest.approx(0.011)


@pytest.mark.parametrize(
    ("choices", "more", "message"),
    [
        ({}, {"most_usd": 1e-9}, "estimated at .* more than --max-usd 1e-09"),
        ({}, {"most_usd": float("nan")}, "--max-usd is a number of dollars above 0"),
        ({"drivers": "fleet"}, {}, "package with --drivers function"),
    ],
)
def test_unreachable_or_too_expensive_runs_are_refused_before_deploying(tmp_path, choices, more, message):
    order = order_of(tmp_path, **choices)
    with pytest.raises(UsageError, match=message):
        smoke.prepare(replace(order, **more), Settings()).check()


@pytest.mark.who_may
def test_without_credentials_it_says_so(tmp_path, monkeypatch, capsys):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")  # which the command sets: it is put back
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert called("smoke", str(build_of(tmp_path / "build")), "dev") == 4
    assert "no AWS credentials: set AWS_PROFILE" in capsys.readouterr().err


def stacks(session):
    return [each["StackName"] for each in session.client("cloudformation").describe_stacks()["Stacks"]]


@pytest.mark.parametrize("error", [TaskFailedError("no answer"), KeyboardInterrupt()], ids=["failure", "Ctrl-C"])
@pytest.mark.parametrize("step", ["_deploy", "ask"])
def test_the_stack_is_deleted_after_any_run(tmp_path, monkeypatch, aws, step, error):
    def deploy(_run):
        tags = [{"Key": "serfer:stack", "Value": STACK}]
        aws.client("cloudformation").create_stack(StackName=STACK, TemplateBody=TEMPLATE, Tags=tags)

    def fail(*given):
        if step == "_deploy":
            deploy(*given)
        raise error

    monkeypatch.setattr(smoke, "_deploy", deploy)
    monkeypatch.setattr(smoke, step, fail)
    order, lines = order_of(tmp_path), []
    with pytest.raises(type(error)):
        smoke.smoke(order, Settings(), aws, lines.append)
    assert stacks(aws) == []
    assert aws.client("s3").list_buckets()["Buckets"] == []
    assert any(line.startswith("spent: $0.0") for line in lines)


def test_a_run_that_fails_before_its_stack_exists_reports_the_reason(tmp_path, monkeypatch, aws):
    def fail(_run):
        raise TaskFailedError("sam build ended with 1")

    monkeypatch.setattr(smoke, "_deploy", fail)
    order = order_of(tmp_path)
    with pytest.raises(TaskFailedError, match="sam build"):
        smoke.smoke(order, Settings(), aws, lambda _: None)


def test_a_stack_that_is_there_is_neither_updated_nor_deleted(tmp_path, aws):
    aws.client("cloudformation").create_stack(StackName=STACK, TemplateBody=TEMPLATE)
    order = order_of(tmp_path)
    with pytest.raises(UsageError, match=f"serfer deploy destroy {order.build} --stack {STACK}"):
        smoke.smoke(order, Settings(), aws, lambda _: None)
    assert stacks(aws) == [STACK]


@pytest.fixture(scope="module")
def packaged(account, tmp_path_factory):
    """A BUILD directory of a small network, and a user of the account who has it."""
    root = tmp_path_factory.mktemp("smoke")
    stack = Deployed(account, root / "build", "demo")
    stack.package(split_small(root, grids=[(1, 2), (1, 1)]))
    yield stack
    shutil.rmtree(stack.build)  # it is large, and pytest keeps what three runs wrote


needs_sam = pytest.mark.skipif(not SAM.exists(), reason="make setup did not get SAM CLI")


@needs_sam
@pytest.mark.deploy
def test_a_run_asks_its_own_stack_and_leaves_nothing(account, packaged):
    done = packaged.tried(*SERFER, "deploy", "smoke", packaged.build, "--max-usd", "0.5")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "REST API: first query" in done.stderr
    assert "demo-smoke is gone" in done.stderr
    store = account.client("s3")
    buckets = [each["Name"] for each in store.list_buckets()["Buckets"]]
    assert all("samclisourcebucket" in name for name in buckets)
    assert not [name for name in buckets if store.list_objects_v2(Bucket=name)["KeyCount"]]
    assert account.client("lambda").list_functions()["Functions"] == []


@needs_sam
@pytest.mark.deploy
@pytest.mark.weekly
def test_a_run_measures_facts_for_serfer_cost(packaged, tmp_path):
    out = tmp_path / "aws.toml"
    given = (packaged.build, "--out", out, "--at-once", "4", "--max-usd", "0.5")
    done = packaged.tried(*SERFER, "study", "measure-aws", *given)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "spent: $0.0" in done.stderr
    measured = tomllib.loads(out.read_text(encoding="utf-8"))
    assert measured["lambda"].keys() >= {"invoke_floor", "invoke_tail", "init"}
    assert {entry["tag"] for table in measured.values() for entry in table.values()} == {"M"}
    assert Settings(aws_file=out).facts().functions.init == measured["lambda"]["init"]["value"]
    measured_usd, shipped_usd = (
        price_build(packaged.build, settings.facts(), burst=1).warm.usd
        for settings in (Settings(aws_file=out), Settings())
    )
    assert measured_usd != shipped_usd
