"""What the pipeline is held against, the null service, and the parts of `serfer bench large-machine`."""

import json
from functools import partial

import numpy as np
import pytest
from typer.testing import CliRunner

from serfer.cli.main import app
from serfer.core.errors import SerferError, UsageError
from serfer.pipeline.reference import unsplit
from serfer.plan_directory import load_plan
from serfer.settings import Settings
from serfer.splitter.network import zoo
from serfer_bench.core.null_workers import null_pipeline
from serfer_bench.core.plans import PLANS, bench_plan
from serfer_bench.pipeline import large_machine, orchestration
from serfer_bench.pipeline.driver_overhead import measure, results
from serfer_bench.pipeline.large_machine import _END_S, Part, parts
from serfer_bench.pipeline.orchestration import Threads
from serfer_bench.study.baselines.fork_join import ForkJoin
from serfer_bench.study.papers.serfer.poll_driver import REPAIRED
from serfer_bench.study.papers.serfer.system import SerFerPaper
from tests.bench.running import parse
from tests.e2e.gangs import split_gang
from tests.e2e.small import GRIDS, SIZE


@pytest.fixture
def pixels():
    return np.random.default_rng(3).integers(0, 256, (2, SIZE, SIZE, 3), dtype=np.uint8)


def test_threads_without_orchestration_give_the_unsplit_answer(directory, pixels):
    plan = load_plan(directory)
    with Threads(plan, directory, threads=2) as threads:
        np.testing.assert_allclose(threads(pixels), unsplit(plan, directory)(pixels), rtol=0, atol=1e-4)


@pytest.fixture(scope="module")
def gang(tmp_path_factory):
    return split_gang(tmp_path_factory.mktemp("gang"))


@pytest.mark.parametrize(("kind", "tasks"), [("directory", sum(rows * cols for rows, cols in GRIDS)), ("gang", 2)])
def test_a_burst_over_functions_that_do_nothing_loses_no_query(kind, tasks, request, monkeypatch):
    monkeypatch.setattr("serfer_bench.pipeline.driver_overhead._BARE", 50)  # boto3 is slow
    measured = measure(request.getfixturevalue(kind), queries=20)
    assert (measured.lost, measured.tasks) == (0, 20 * tasks)
    assert min(measured.driver_rate, measured.client_rate) > 0
    assert min(measured.driver_ms, measured.client_ms, measured.boto3_ms) > 0
    assert "0 queries lost" in results(measured).text()


def test_null_workers_answer_for_gangs(gang, tmp_path):
    with null_pipeline(gang, Settings(cache_dir=tmp_path), oldest_first=True, service_s=0.002) as pipeline:
        assert not pipeline.run(np.zeros((1, 3, SIZE, SIZE), dtype=np.float32)).any()
        report = pipeline.last_report
    assert [stage.gang for stage in report.stages] == [0, 0, 0, 0]
    assert report.latency_ms >= 8


@pytest.mark.parametrize("system", [ForkJoin, partial(SerFerPaper, mechanics=REPAIRED)])
def test_systems_that_run_stages_refuse_gangs(gang, tmp_path, system):
    with pytest.raises(UsageError, match="--set gang=never"):
        system(gang, Settings(cache_dir=tmp_path))


@pytest.mark.slow
def test_the_pipeline_is_timed_against_threads_and_over_more_workers(directory, tmp_path, monkeypatch):
    monkeypatch.setattr(orchestration, "bench_plan", lambda *_: directory)
    mine = Settings(cache_dir=tmp_path)
    measured = orchestration.measure("small", mine, rounds=3)
    assert measured.ratio > 0
    assert measured.least <= measured.ratio <= measured.greatest
    assert (measured.polls, measured.workers) == (0, 2)
    assert measured.bytes_per_query > 0
    more = orchestration.measure_scaling("small", mine, rounds=3)
    assert more.least <= more.speedup <= more.greatest
    assert measured.shown["plan"] == more.shown["plan"] == "small"


def test_fixed_plans_are_of_networks_that_the_zoo_has_and_others_are_refused(tmp_path):
    assert all(zoo.find(plan.model) and len(plan.grids) == len(plan.cuts) + 1 for plan in PLANS.values())
    with pytest.raises(UsageError, match="alexnet"):
        bench_plan("lenet", Settings(cache_dir=tmp_path))


def large_machine_of(out, *options):
    return CliRunner().invoke(app, ["bench", "large-machine", "--out", str(out), *options])


def test_parts_without_a_result_are_named_and_the_others_go_on(tmp_path, monkeypatch):
    chosen = [
        Part("wide", ("--version",), 60, processors=10_000),
        Part("wrong", ("bench", "gangs", "--system", "nothing"), 60),
        Part("slow", ("--version",), 0.01),
        Part("right", ("--version",), 60),
    ]
    monkeypatch.setattr(large_machine, "parts", lambda _: chosen)
    shown = large_machine_of(tmp_path, "--json")
    assert isinstance(shown.exception, SerferError)
    assert str(shown.exception) == "3 of 4 parts have no result: wide, wrong, slow"
    rows = json.loads((tmp_path / "result.json").read_text())["rows"]
    results = {row["part"]: row["result"] for row in rows}
    assert "needs 10000 processors" in results["wide"]
    assert results["wrong"].startswith("failed with exit code 2: unknown system nothing")
    assert results["slow"].startswith("took more than 0.01 s")
    assert results["right"] == "done"
    assert (tmp_path / "right.txt").read_text().startswith("serfer ")
    assert isinstance(large_machine_of(tmp_path, "--part", "nothing").exception, UsageError)


def test_parts_are_commands_that_there_are_and_end_within_ten_minutes(tmp_path):
    assert sum(part.limit_s + _END_S for part in parts(tmp_path)) <= 600
    for part in parts(tmp_path):
        parse(part.words)


@pytest.mark.weekly
def test_all_parts_run_at_small_sizes(tmp_path, settings, monkeypatch):
    monkeypatch.setenv("SERFER_CACHE_DIR", str(settings.cache_dir))
    shown = large_machine_of(tmp_path, "--dry-run")
    assert shown.exit_code == 0, shown.output
    for name in ("gangs-and-stages-of-2", "figures-9-and-11", "two-networks"):
        assert json.loads((tmp_path / name / "result.json").read_text())["rows"]
    assert "[[instance]]" in (tmp_path / "batches.toml").read_text()
