"""`serfer deploy smoke`: what is refused, and that nothing is left, however it ends."""

import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from serfer.core.errors import TaskFailedError, UsageError
from serfer.sam import smoke
from serfer.sam.samconfig import stack_of
from serfer.sam.smoke import Budget, Order, OverBudgetError
from serfer.settings import Settings, load_settings
from tests.e2e.small import split_small
from tests.sam.builds import build as build_of
from tests.sam.built import SAM
from tests.sam.deployed import called

ROOT = Path(__file__).parents[2]
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
def packaged(tmp_path_factory):
    """A BUILD directory of a small network, written by the command line."""
    root = tmp_path_factory.mktemp("smoke")
    plan = split_small(root, grids=[(1, 2), (1, 1)])
    command = [sys.executable, "-m", "serfer", "deploy", "package", plan, "--out", root / "build", "--name", "demo"]
    command += ["--store", "s3"]  # a cache, the plan's own store, is reached from its network alone
    variables = {**os.environ, "SERFER_CACHE_DIR": str(load_settings().cache_dir)}
    subprocess.run(command, env=variables, check=True, capture_output=True)
    yield root / "build"
    shutil.rmtree(root / "build")  # it is large, and pytest keeps what three runs wrote


@pytest.fixture(scope="module")
def aws_smoke(account, packaged):
    """Run the command in the account."""

    def run(*words):
        kept = {name: os.environ[name] for name in ("PATH", "SERFER_CACHE_DIR", "PYTHONPATH") if name in os.environ}
        home = {"HOME": str(packaged.parent)}
        command = [sys.executable, "-m", "serfer", *words, "--max-usd", "0.5"]
        return subprocess.run(
            command, cwd=ROOT, env={**kept, **home, **account.environment}, capture_output=True, text=True, check=False
        )

    return run


def left(account):
    """What an account has that could bill."""
    store = account.client("s3")
    buckets = [each["Name"] for each in store.list_buckets()["Buckets"]]
    keys = [each["Key"] for name in buckets for each in store.list_objects_v2(Bucket=name).get("Contents", ())]
    functions = account.client("lambda").list_functions()["Functions"]
    return SimpleNamespace(
        buckets=[name for name in buckets if "samclisourcebucket" not in name], keys=keys, functions=functions
    )


needs_sam = pytest.mark.skipif(not SAM.exists(), reason="make setup did not get SAM CLI")


@needs_sam
@pytest.mark.deploy
def test_a_run_asks_its_own_stack_and_leaves_nothing(account, aws_smoke, packaged):
    done = aws_smoke("deploy", "smoke", packaged)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "REST API: first query" in done.stderr
    assert "demo-smoke is gone" in done.stderr
    remaining = left(account)
    assert (remaining.buckets, remaining.keys, remaining.functions) == ([], [], [])


@needs_sam
@pytest.mark.deploy
@pytest.mark.weekly
def test_a_run_measures_facts_for_serfer_cost(aws_smoke, packaged, tmp_path):
    out = tmp_path / "aws.toml"
    done = aws_smoke("study", "measure-aws", packaged, "--out", out, "--at-once", "4")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "spent: $0.0" in done.stderr
    measured = tomllib.loads(out.read_text(encoding="utf-8"))
    assert measured["lambda"].keys() >= {"invoke_floor", "invoke_tail", "init"}
    assert {entry["tag"] for table in measured.values() for entry in table.values()} == {"M"}
    assert Settings(aws_file=out).facts().functions.init == measured["lambda"]["init"]["value"]
    costs = [
        subprocess.run(
            [sys.executable, "-m", "serfer", "cost", packaged, "--json"],
            env={**os.environ, **variables},
            check=True,
            capture_output=True,
        ).stdout
        for variables in ({}, {"SERFER_AWS_FILE": str(out)})
    ]
    assert costs[0] != costs[1]
