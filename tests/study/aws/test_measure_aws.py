"""`serfer study measure-aws`: what is measured, what it costs, and what is written."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.costs.aws import parse_aws, shipped_aws
from serfer.core.errors import UsageError
from serfer.core.keys import StoreCounts
from serfer.core.wire import Report
from serfer.sam.deployment import load_deployment, load_packaged_plan
from serfer.settings import Settings
from serfer_bench.records.record import Record
from serfer_bench.study.aws import measure_aws
from serfer_bench.study.aws.findings import Findings, Priced
from serfer_bench.study.aws.measure import Fact, Sample, Samples, dump_facts, facts_of
from serfer_bench.study.aws.measure_aws import check_out, plan_measurement, record_of
from serfer_bench.study.aws.probe import Extent, steps
from serfer_bench.study.aws.tails import _least_of_sums, floor_and_tail, start_tail
from tests.sam.builds import build as build_of
from tests.sam.conftest import aws
from tests.sam.test_smoke import order_of

__all__ = ["aws"]
ROOT = Path(__file__).parents[3]


def sample(seconds, *, init_ms=0.0, compute_ms=10.0, read=(0, 0.0), write=(0, 0.0), memory_mb=1769, log=""):
    """A sample whose task read and wrote so many bytes in so many ms."""
    total = read[1] + compute_ms + write[1]
    counts = StoreCounts(bytes_get=read[0], gets=int(read[0] > 0), bytes_put=write[0], puts=int(write[0] > 0))
    report = Report("e", init_ms, read[1], compute_ms, write[1], total, 1, 1, counts)
    return Sample(seconds, report, memory_mb, log)


def found(weight_bytes=0, store="s3", **given):
    return {fact.name: fact.value for fact in facts_of(Samples(**given), weight_bytes, store, 1769)}


@given(floor=st.floats(0.01, 1), tail=st.floats(0.01, 1), count=st.integers(2, 100))
def test_a_floor_and_a_tail_are_found_whatever_they_are(floor, tail, count):
    """The least of n samples lies tail / n above the floor on average: here it does exactly, and so does their mean."""
    least, rest = tail / count, (count * tail - tail / count) / (count - 1)
    warm = [sample(0.010 + floor + more) for more in (least, *[rest] * (count - 1))]
    facts = found(small=warm)
    assert facts["lambda.invoke_floor"] == pytest.approx(floor, rel=1e-6)
    assert facts["lambda.invoke_tail"] == pytest.approx(tail, rel=1e-6)


def test_the_tail_of_starts_is_that_of_two_exponential_times():
    warm, overheads = [sample(0.010 + 0.2), sample(0.010 + 0.4)], [2.0, 2.5, 3.0, 4.5]
    facts = found(groups={4: [sample(0.010 + overhead, init_ms=500) for overhead in overheads]}, small=warm)
    assert facts["lambda.start_tail"] == pytest.approx(start_tail(overheads, facts["lambda.invoke_tail"]))
    assert facts["lambda.start_tail"] > floor_and_tail(overheads)[1] - facts["lambda.invoke_tail"]
    assert "lambda.start_tail" not in found(groups={1: [sample(2, init_ms=500)]}, small=warm)


def test_a_cold_start_is_its_init_and_the_sessions_that_weights_become():
    cold = {3: [sample(1, init_ms=init, compute_ms=510) for init in (400, 600, 500)]}
    facts = found(100_000_000, groups=cold, small=[sample(0.1)] * 2)
    assert facts["lambda.init"] == pytest.approx(0.5)
    assert facts["lambda.load_rate"] == pytest.approx(100_000_000 / 0.5)
    assert "lambda.load_rate" not in found(999_999, groups=cold, small=[sample(0.1)] * 2)


def test_lambdas_own_lines_come_before_the_workers_clock():
    line = "REPORT RequestId: 1-2\tDuration: 90.10 ms\tBilled Duration: 691 ms\tInit Duration: 600.40 ms"
    one = sample(1, init_ms=400, log=f"START RequestId: 1-2\n{line}\n")
    assert (one.billed_ms, one.init_ms, one.restore_ms) == (691, 600.4, None)
    restored = sample(1, init_ms=9, log="REPORT RequestId: 1\tBilled Duration: 20 ms\tRestore Duration: 321.50 ms\t")
    assert (restored.billed_ms, restored.restore_ms) == (20, 321.5)
    assert sample(1, init_ms=400).billed_ms == 410
    for odd in ("REPORT", "REPORT RequestId: 1\tBilled Duration: nan ms", "\tBilled Duration: 5 ms"):
        assert sample(1, init_ms=400, log=odd).billed_ms == 410


def test_a_vcpu_is_the_memory_from_which_one_thread_gains_nothing():
    def at(memory_mb):
        return [sample(1, compute_ms=100 * max(1, 1000 / memory_mb), memory_mb=memory_mb)]

    facts = found(memories={memory: at(memory) for memory in (442, 885, 1327, 1769, 3538)})
    assert facts == {"lambda.memory_per_vcpu": 1000}
    assert found(memories={memory: at(memory) for memory in (1327, 1769)}) == {}  # no memory has less than a vCPU
    noise = {memory: [sample(1, compute_ms=ms)] for memory, ms in ((442, 55), (885, 87), (1327, 23), (1769, 43))}
    assert found(memories=noise) == {}
    later = {memory: [sample(1, compute_ms=2000 / memory)] for memory in (442, 885, 1769)}
    assert found(memories=later) == {"lambda.memory_per_vcpu": 1769}


def test_package_and_store_cost_their_bytes():
    packages = {size: [sample(1 + size / 5e6 + late) for late in (0.0, 0.3)] for size in (0, 10_000_000)}
    assert found(packages=packages) == {"lambda.package_rate": pytest.approx(5e6)}
    warm = [sample(1, read=(size, 20 + size / 1e5), write=(size // 2, 20 + size / 2e5)) for size in (10_000, 4_000_000)]
    facts = found(small=warm, store="s3express")
    assert facts["s3express.request_latency"] == pytest.approx(0.020)
    assert facts["lambda.bandwidth"] == pytest.approx(1e8)
    warm = [sample(0.005), sample(0.020, read=(1000, 50.0)), sample(0.020, read=(4000, 1.0))]
    facts = found(small=warm)
    assert set(facts) == {"lambda.invoke_tail", "s3.request_latency"}  # no floor below 0, no bandwidth that falls


def test_the_file_is_one_for_serfer_aws_file_and_says_where_it_was_measured():
    shipped = shipped_aws()
    facts = [Fact("lambda.init", 0.25, 3), Fact("s3.request_latency", 0.012, 60), Fact("lambda.start_tail", 0.1, 3)]
    text = dump_facts(facts, shipped.sources, 'eu-west-1, a "model"', "2026-11-22")
    parsed = parse_aws(text, shipped)
    assert (parsed.functions.init, parsed.s3.request_latency) == (0.25, 0.012)
    assert parsed.functions.load_rate == shipped.functions.load_rate
    source = parsed.sources["lambda.init"]
    assert (source.tag, source.date) == ("M", "2026-11-22")
    assert "eu-west-1" in source.unit


def test_a_run_leaves_a_record_that_bench_results_reads(tmp_path):
    directory = build_of(tmp_path / "build")
    warm = [sample(0.1 + late, read=(13_872, 20.0), write=(100, 20.0)) for late in (0.0, 0.01, 0.02)]
    cold = {4: [sample(2, init_ms=600)] * 4, 16: [sample(3, init_ms=600)] * 16}
    plan = load_packaged_plan(directory, load_deployment(directory).current)
    measured = Samples(groups=cold, small=warm, packages={0: cold[4], 1_000_000: cold[16]}, restored=cold[4][:1])
    findings = Findings(plan, measured, Priced(shipped_aws(), "x86_64", "s3"), "eu-west-1", "2026-11-28")
    command = "serfer study measure-aws BUILD dev"
    (tmp_path / "aws.json").write_text(json.dumps(record_of(findings, command)))
    record = Record.read(tmp_path / "aws.json")
    assert (record.command, record.kind, record.stale(ROOT)) == (command, "measured", [])
    constants, rows, bill = record.tables
    assert [row[0] for row in constants.rows][:4] == [
        *("lambda.invoke_floor", "lambda.invoke_tail", "lambda.init", "lambda.start_tail")
    ]
    assert ["start, by how many at once", "16"] in [[*row[:2]] for row in rows.rows]
    assert [row[0] for row in bill.rows] == ["20 cold", "3 warm"]
    assert "| lambda.init | 0.6 | 0.6 | s of a cold start" in record.markdown(1)


def test_a_bill_is_of_milliseconds_at_the_price_model():
    priced = Priced(shipped_aws(), "x86_64", "s3")
    usd = 0.20e-6 + 1769 / 1024 * 0.7 * 0.0000166667 + 0.005e-3 + 0.0004e-3
    assert priced.usd(1769, 700) == pytest.approx(usd)
    assert replace(priced, architecture="arm64").usd(1769, 700) < priced.usd(1769, 700)


@pytest.mark.parametrize(("region", "reason"), [("ap-east-2", "ap-east-2 has no SnapStart"), ("us-east-1", "")])
def test_steps_are_priced_and_a_region_without_snapstart_is_known_before_anything_is_deployed(tmp_path, region, reason):
    order = order_of(tmp_path)
    run = plan_measurement(replace(order, settings=replace(order.settings, region=region)), Settings(), Extent())
    assert run.snapstart == reason
    usd = [run.step_usd(step) for step in steps(run.plan, run.extent)]
    assert all(each > 0 for each in usd)
    assert sum(usd) < run.estimated_usd < 1


def test_a_run_that_has_spent_its_dollars_returns_what_it_measured(tmp_path, monkeypatch, aws):
    def probe(_run, _session, budget):
        budget.spend(1.0)
        return Samples(groups={4: [sample(2, init_ms=600)] * 4}, missing=["warm invocations: $0.0000 are left"])

    monkeypatch.setattr("serfer.sam.smoke._deploy", lambda _run: None)
    monkeypatch.setattr(measure_aws, "_probe", probe)
    lines = []
    found = measure_aws.measure_aws(plan_measurement(order_of(tmp_path), Settings(), Extent()), aws, lines.append)
    assert tomllib.loads(found.toml)["lambda"].keys() == {"init"}
    assert [row["invocations"] for row in found.bill()] == ["4 cold"]
    assert any(line.startswith("not measured: 10 queries to the REST API: estimated at $0.0") for line in lines)
    assert "not measured: warm invocations: $0.0000 are left" in lines
    assert "not measured: warm" in record_of(found, "serfer study measure-aws BUILD dev")["samples"]


@pytest.mark.parametrize(
    ("out", "message"), [("/nowhere/aws.toml", "no directory /nowhere"), ("/aws.json", "name a file FILE.toml")]
)
def test_a_file_that_cannot_be_written_and_a_store_that_is_not_reached_from_here_are_refused(tmp_path, out, message):
    with pytest.raises(UsageError, match=message):
        check_out(Path(out))
    with pytest.raises(UsageError, match="--store s3 or s3express, not valkey"):
        plan_measurement(order_of(tmp_path, store="valkey"), Settings(), Extent())


def test_a_driver_that_runs_the_plan_has_no_stage_to_time(tmp_path):
    order = order_of(tmp_path)
    template = order.build / "template.yaml"
    template.write_text(template.read_text().replace("SERFER_WORKERS: aws", "SERFER_WORKERS: inprocess"))
    with pytest.raises(UsageError, match="driver_runs=never"):
        plan_measurement(order, Settings(), Extent())


def starts(draws, tail, invoke_tail, count, floor=2.0):
    """So many starts that take a floor and two exponential times of these means."""
    return (floor + draws.exponential(invoke_tail, count) + draws.exponential(tail, count)).tolist()


@pytest.mark.parametrize(("tail", "invoke_tail"), [(1.0, 0.001), (1.0, 0.1), (0.3, 0.15), (2.0, 2.0)])
def test_the_tail_of_starts_is_right_on_average_however_long_that_of_invocations_is(tail, invoke_tail):
    """A fit of one exponential time to what has two finds up to a fifth less."""
    draws, found = np.random.default_rng(7), []
    for _ in range(100):
        warm = (0.02 + draws.exponential(invoke_tail, 404)).tolist()
        found.append(start_tail(starts(draws, tail, invoke_tail, 84), floor_and_tail(warm)[1]) / tail)
    assert fmean(found) == pytest.approx(1, abs=3 * stdev(found) / len(found) ** 0.5)


@given(scale=st.floats(0.01, 10), more=st.floats(0, 10), seed=st.integers(0, 99), count=st.integers(2, 100))
def test_a_tail_of_starts_depends_on_no_unit_and_no_constant(scale, more, seed, count):
    cold = starts(np.random.default_rng(seed), 1.0, 0.1, count)
    other = [more + scale * seconds for seconds in cold]
    assert start_tail(other, 0.1 * scale) == pytest.approx(scale * start_tail(cold, 0.1), rel=1e-4, abs=1e-5 * scale)


@given(seconds=st.lists(st.floats(0, 100), min_size=2, max_size=20), invoke_tail=st.floats(0, 100))
def test_a_tail_is_a_number_of_seconds_and_none_of_starts_that_differ_no_more_than_invocations(seconds, invoke_tail):
    assert 0 <= start_tail(seconds, invoke_tail) < 20_000
    assert start_tail([2.0, 2.0], 0.0) == start_tail([2.0, 2.1, 2.2], 5.0) == 0


@pytest.mark.parametrize(("mean", "other", "count"), [(0.1, 1.0, 20), (1.0, 1.0, 84), (2.0, 0.5, 404), (1.0, 0.0, 5)])
def test_the_least_of_sums_is_what_drawn_ones_have(mean, other, count):
    draws = np.random.default_rng(3)
    least = (draws.exponential(mean, (4000, count)) + draws.exponential(other, (4000, count))).min(axis=1)
    assert least.mean() == pytest.approx(_least_of_sums(mean, other, count), rel=0.05)
