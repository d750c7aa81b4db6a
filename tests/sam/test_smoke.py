"""`make aws-smoke`: what is measured, what is refused, and that nothing is left, however it ends."""

import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import boto3
import pytest
from moto import mock_aws

from serfer.core.costs.aws import parse_aws, shipped_aws
from serfer.core.errors import QueryError, TaskFailedError, UsageError
from serfer.core.keys import StoreCounts
from serfer.core.wire import Report
from serfer.sam import smoke
from serfer.sam.__main__ import main
from serfer.sam.measure import Fact, Sample, dump_facts, facts_of
from serfer.sam.samconfig import stack_of
from serfer.sam.smoke import Budget, Order
from serfer.settings import Settings, load_settings
from tests.e2e.small import split_small
from tests.sam.builds import build as build_of
from tests.sam.built import SAM

ROOT = Path(__file__).parents[2]
STACK = "demo-smoke"
TEMPLATE = '{"Resources": {"Store": {"Type": "AWS::S3::Bucket"}}}'


def sample(seconds, *, init_ms=0.0, compute_ms=10.0, read=(0, 0.0), write=(0, 0.0)):
    """A sample whose task read and wrote so many bytes in so many ms."""
    total = read[1] + compute_ms + write[1]
    counts = StoreCounts(bytes_get=read[0], gets=int(read[0] > 0), bytes_put=write[0], puts=int(write[0] > 0))
    return Sample(seconds, Report("e", init_ms, read[1], compute_ms, write[1], total, 1, 1, counts))


def order_of(place, **choices):
    directory = build_of(place / "build", **choices)
    return Order(directory, stack_of(directory, "dev"), 1.0, place / "aws.toml")


def by_name(facts):
    return {fact.name: fact.value for fact in facts}


def test_an_invocation_is_the_round_trip_without_the_task():
    warm = [sample(0.010 + overhead) for overhead in (0.030, 0.020, 0.025)]
    facts = by_name(facts_of([], warm, 0, "s3"))
    assert facts == {"lambda.invoke_floor": pytest.approx(0.020), "lambda.invoke_tail": pytest.approx(0.005)}


def test_a_cold_start_is_its_init_and_the_sessions_that_weights_become():
    cold = [sample(1, init_ms=init, compute_ms=510) for init in (400, 600, 500)]
    facts = by_name(facts_of(cold, [sample(0.1)] * 2, 100_000_000, "s3"))
    assert facts["lambda.init"] == pytest.approx(0.5)
    assert facts["lambda.load_rate"] == pytest.approx(100_000_000 / 0.5)
    assert "lambda.load_rate" not in by_name(facts_of(cold, [sample(0.1)] * 2, 999_999, "s3"))


def test_a_store_is_a_latency_and_a_bandwidth_over_the_sizes_that_moved():
    warm = [sample(1, read=(size, 20 + size / 1e5), write=(size // 2, 20 + size / 2e5)) for size in (10_000, 4_000_000)]
    facts = by_name(facts_of([], warm, 0, "s3express"))
    assert facts["s3express.request_latency"] == pytest.approx(0.020)
    assert facts["lambda.bandwidth"] == pytest.approx(1e8)


def test_non_positive_measurements_are_left_out():
    warm = [sample(0.005), sample(0.020, read=(1000, 50.0)), sample(0.020, read=(4000, 1.0))]
    facts = by_name(facts_of([], warm, 0, "s3"))
    assert set(facts) == {"lambda.invoke_tail", "s3.request_latency"}  # no floor below 0, no bandwidth that falls


def test_the_file_is_one_for_serfer_aws_file_and_says_where_it_was_measured():
    shipped = shipped_aws()
    facts = [Fact("lambda.init", 0.25, 3), Fact("s3.request_latency", 0.012, 60)]
    text = dump_facts(facts, shipped.sources, 'eu-west-1, a "model"', "2026-11-22")
    parsed = parse_aws(text, shipped)
    assert (parsed.functions.init, parsed.s3.request_latency) == (0.25, 0.012)
    assert parsed.functions.load_rate == shipped.functions.load_rate
    source = parsed.sources["lambda.init"]
    assert (source.tag, source.date) == ("M", "2026-11-22")
    assert "eu-west-1" in source.unit


def test_a_budget_stops_when_it_is_spent():
    budget = Budget(0.01)
    budget.spend(0.009)
    with pytest.raises(QueryError, match=r"MAX_USD=0\.01: stopped"):
        budget.spend(0.002)
    assert budget.spent_usd == pytest.approx(0.011)


@pytest.mark.parametrize(
    ("choices", "more", "message"),
    [
        ({}, {"most_usd": 1e-9}, "estimated at .* more than MAX_USD=1e-09"),
        ({}, {"most_usd": float("nan")}, "MAX_USD is a number of dollars above 0"),
        ({}, {"out": Path("/nowhere/aws.toml")}, "there is no directory /nowhere"),
        ({"drivers": "fleet"}, {}, "package with --drivers function"),
        ({"store": "valkey"}, {}, "--store s3 or s3express, not function and valkey"),
    ],
)
def test_unmeasurable_or_too_expensive_runs_are_refused_before_deploying(tmp_path, choices, more, message):
    order = order_of(tmp_path, **choices)
    with pytest.raises(UsageError, match=message):
        smoke.planned(replace(order, **more), Settings())


def test_without_credentials_it_says_so(tmp_path, monkeypatch, capsys):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")  # which the command sets: it is put back
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert main(["smoke", str(build_of(tmp_path / "build")), "dev"]) == 4
    assert "no AWS credentials: set AWS_PROFILE" in capsys.readouterr().err


@pytest.fixture
def aws(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "any")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        yield boto3.session.Session()


def stacks(session):
    return [each["StackName"] for each in session.client("cloudformation").describe_stacks()["Stacks"]]


@pytest.mark.parametrize("error", [TaskFailedError("no answer"), KeyboardInterrupt()], ids=["failure", "Ctrl-C"])
@pytest.mark.parametrize("step", ["_deploy", "_ask", "_probe"])
def test_the_stack_is_deleted_after_any_run(tmp_path, monkeypatch, aws, step, error):
    def deploy(_run):
        tags = [{"Key": "serfer:stack", "Value": STACK}]
        aws.client("cloudformation").create_stack(StackName=STACK, TemplateBody=TEMPLATE, Tags=tags)

    def fail(*given):
        if step == "_deploy":
            deploy(*given)
        raise error

    for name in ("_deploy", "_ask", "_probe"):
        monkeypatch.setattr(smoke, name, deploy if name == "_deploy" else lambda *_: None)
    monkeypatch.setattr(smoke, step, fail)
    order, lines = order_of(tmp_path), []
    with pytest.raises(type(error)):
        smoke.smoke(order, Settings(), aws, lines.append)
    assert stacks(aws) == []
    assert aws.client("s3").list_buckets()["Buckets"] == []
    assert any(line.startswith("spent: $0.0") for line in lines)
    assert not order.out.exists()


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
    with pytest.raises(UsageError, match=f"make destroy BUILD={order.build} STACK={STACK}"):
        smoke.smoke(order, Settings(), aws, lambda _: None)
    assert stacks(aws) == [STACK]


@pytest.fixture(scope="module")
def packaged(tmp_path_factory):
    """A BUILD directory of a small network, written by the command line."""
    root = tmp_path_factory.mktemp("smoke")
    plan = split_small(root, grids=[(1, 2), (1, 1)])
    command = [sys.executable, "-m", "serfer", "package", plan, "--out", root / "build", "--name", "demo"]
    command += ["--store", "s3"]  # a cache, the plan's own store, is reached from its network alone
    variables = {**os.environ, "SERFER_CACHE_DIR": str(load_settings().cache_dir)}
    subprocess.run(command, env=variables, check=True, capture_output=True)
    yield root / "build"
    shutil.rmtree(root / "build")  # it is large, and pytest keeps what three runs wrote


@pytest.fixture(scope="module")
def aws_smoke(account, packaged):
    """Run the Makefile's target in the account."""

    def run(out):
        kept = {name: os.environ[name] for name in ("PATH", "SERFER_CACHE_DIR") if name in os.environ}
        home = {"HOME": str(packaged.parent)}
        command = ["make", "--old-file=.venv/.set-up", "aws-smoke", f"BUILD={packaged}", f"OUT={out}", "MAX_USD=0.5"]
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
def test_a_run_measures_facts_for_serfer_cost_and_leaves_nothing(account, aws_smoke, packaged, tmp_path):
    out = tmp_path / "aws.toml"
    done = aws_smoke(out)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "spent: $0.0" in done.stderr
    assert "REST API: first query" in done.stderr
    assert "; 3 cold starts" in done.stderr
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
    remaining = left(account)
    assert (remaining.buckets, remaining.keys, remaining.functions) == ([], [], [])


@needs_sam
@pytest.mark.deploy
def test_a_deployment_that_does_not_answer_is_deleted_as_well(account, aws_smoke, packaged, tmp_path):
    """Here its driver cannot start: its template was altered."""
    template = packaged / "template.yaml"
    text = template.read_text(encoding="utf-8")
    assert "serfer.api.entrypoints.function.handler" in text
    template.write_text(
        text.replace("serfer.api.entrypoints.function.handler", "serfer.api.entrypoints.function.gone"),
        encoding="utf-8",
    )
    done = aws_smoke(tmp_path / "aws.toml")
    assert "Successfully created/updated stack" in done.stderr
    assert done.returncode == 2, done.stderr[-2000:]  # make's, for whatever failed
    assert "demo-smoke is gone" in done.stderr
    assert not (tmp_path / "aws.toml").exists()
    remaining = left(account)
    assert (remaining.buckets, remaining.keys, remaining.functions) == ([], [], [])
