"""Histories that policies begin with, and calibrations: measured, written, read back, refused."""

import json
from unittest.mock import Mock

import numpy as np
import pytest

import serfer
from serfer.control.policies import make_policy
from serfer.core.errors import InputError, UsageError
from serfer.cost.loads.trace import Trace
from serfer_bench.study.sim.calibration import LocalRun, read_calibration, summary_of, write_calibration
from serfer_bench.study.sim.history import place_before, see_history
from serfer_bench.study.sim.simulate import RunOptions, prepare, run_policies
from tests.control.worlds import QPS, scenario
from tests.e2e.gangs import split_gang
from tests.e2e.small import split_small
from tests.study.cli.test_simulate import called, outcomes
from tests.study.sim.worlds import calibration

WORLD = scenario(5.0, boot_s=40.0)


def bursts(count, begin_s=0.0):
    return Trace("bursts", np.array([300.0, 120.0] * count), np.array([0.0, 1.5 * QPS] * count), begin_s)


def test_a_history_ends_when_the_load_begins():
    policy = Mock(wraps=make_policy("instances", WORLD))
    see_history(policy, WORLD, place_before(bursts(1, 50.0), bursts(2)), period_s=10.0)
    observed = [call.args[0] for call in policy.observe.call_args_list]
    assert [observed[0].now_s, observed[-1].now_s] == [-830.0, 0.0]
    assert sum(seen.elapsed_s * seen.rate for seen in observed) == pytest.approx(bursts(2).queries)
    assert sum(group.count for group in observed[-1].fleet) == 2


@pytest.mark.parametrize(
    ("load_begin_s", "begin_s", "placed_s"),
    [
        (1.7e9 + 3600, 1.7e9, -3600.0),  # both are dated
        *[(0.0, 1.7e9, -840.0), (1.7e9, 0.0, -840.0), (60.0, 30.0, -840.0)],
        (1.7e9, 1.7e9 + 60, -840.0),  # never does it end after the load begins
    ],
)
def test_a_history_keeps_its_distance_from_a_load_or_ends_when_that_begins(load_begin_s, begin_s, placed_s):
    assert place_before(bursts(1, load_begin_s), bursts(2, begin_s)).begin_s == placed_s


def test_the_default_policy_costs_less_with_a_history_of_the_same_bursts():
    sim_input = prepare(bursts(4), "world", WORLD, "none")
    (without,) = run_policies(sim_input, ["break-even"], RunOptions())
    (taught,) = run_policies(sim_input, ["break-even"], RunOptions(history=bursts(40)))
    assert taught.outcome.cost_usd < without.outcome.cost_usd
    assert (taught.outcome.history, without.outcome.history) == ("bursts", None)


def test_dates_of_load_and_history_change_nothing_of_what_a_policy_costs():
    costs = []
    for zero_s in (0.0, 1.7e9):
        sim_input = prepare(bursts(2, zero_s), "world", WORLD, "none")
        (run,) = run_policies(sim_input, ["break-even"], RunOptions(history=bursts(10, zero_s and zero_s - 10 * 420)))
        costs.append(run.outcome.cost_usd)
    assert costs[0] == costs[1]


def test_a_history_is_scaled_as_the_load_is():
    sim_input = prepare(bursts(4), "world", WORLD, "3")
    policy = RunOptions(history=bursts(4)).new_policy("instances", WORLD, sim_input.factor)
    assert policy._peaks[0][1] == pytest.approx(4.5 * QPS)


def test_the_command_takes_a_generator_or_a_file(scenario, tmp_path):
    (tmp_path / "past.csv").write_text("t_seconds,rps\n0,5\n600,80\n1200,5\n")
    for history, name in (("poisson:hours=0.3", "poisson,hours=0.3,seed=0"), (tmp_path / "past.csv", "past")):
        options = ("--scenario", scenario, "--policy", "break-even", "--level", "rates", "--history", history)
        (row,) = outcomes("diurnal:mean=20,hours=0.5", *options)
        assert row["history"].replace(":", ",") == name
    assert "cost $" in called("diurnal:mean=20,hours=0.5", *options)


def test_a_run_through_a_pipeline_measures_every_task(tmp_path):
    with serfer.open(split_small(tmp_path), store="memory://", workers="inprocess") as pipeline:
        run = LocalRun(pipeline)
        with pytest.raises(UsageError, match="--queries"):
            run.calibration("a test", "2026-11-22")
        run.take(12)
        made = run.calibration("a test", "2026-11-22")
        stages, digest = pipeline.plan.stages, pipeline.plan.digest
    assert made.tiles == tuple(stage.grid.tiles for stage in stages)
    assert (made.plan, made.source, made.tag) == (digest, "measured", "M")
    assert np.array(made.service_ms).shape == np.array(made.overhead_ms).shape == (12, made.tasks)
    summary = summary_of(made)
    assert (summary.queries, summary.tasks) == (12, made.tasks)
    assert 0 < summary.p50_ms <= summary.p99_ms
    assert "measured (M, 2026-11-22)" in made.label


@pytest.mark.parametrize(("split", "gangs", "rel"), [(split_small, 0, 0.25), (split_gang, 1, 0.35)])
def test_latencies_are_those_of_the_queries_that_were_measured_by_stage_in_a_gang_too(tmp_path, split, gangs, rel):
    with serfer.open(split(tmp_path), store="memory://", workers="inprocess") as pipeline:
        run, took = LocalRun(pipeline), []
        for _ in range(8):
            run.take(1)
            took.append(pipeline.last.answered - pipeline.last.split[0])
        made = run.calibration("a test", "2026-11-22")
        tiles = tuple(stage.grid.tiles for stage in pipeline.plan.stages)
    assert (made.tiles, made.gangs) == (tiles, ((0, len(tiles)),) * gangs)
    # A stage's end is seen a little after its last task's; beside other work, of most queries much later.
    unseen = np.array(took) - made.latencies_s
    assert np.abs(unseen).min() < max(rel * min(took), 0.003)
    write_calibration(made, tmp_path / "c.json")
    assert read_calibration(tmp_path / "c.json") == made


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 1}, "not a calibration of format 2, but '1'"),
        ({"service_ms": []}, "as many queries"),
        ({"driver_ms": [], "service_ms": [], "overhead_ms": []}, "1 at least"),
        ({"cold_ms": [[], []]}, "one cold start"),
        ({"cold_ms": [[1]]}, "a row of cold_ms for each stage"),
        ({"cold_ms": [[-1], []]}, "times are 0 to"),
        ({"cold_ms": [[], [float("nan")]]}, "times are 0 to"),
        ({"cold_ms": ["x"]}, "cold_ms"),
        ({"functions": [[0, 0], [0], [0]]}, "a memory for each stage"),
        ({"functions": [[0], [0]]}, "2 tasks"),
        ({"functions": [[0, -1], [0]]}, "numbers from 0"),
        ({"extra": 1}, "extra"),
        ({"gangs": [[0, 1]]}, "two stages or more"),
        ({"gangs": [[0, 3]]}, "two stages or more"),
        ({"gangs": [[0, 2]], "memory_mb": [1024, 2048]}, "one memory"),
    ],
)
def test_a_wrong_value_is_named_with_its_file(tmp_path, change, message):
    path = tmp_path / "c.json"
    write_calibration(calibration(), path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InputError, match=message) as raised:
        read_calibration(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"format": 1}', "NaN"])
def test_a_file_that_is_not_a_calibration_is_refused(tmp_path, text):
    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises(InputError):
        read_calibration(path)
