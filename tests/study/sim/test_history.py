"""A policy that begins with a history is one that has seen it before the load began."""

import numpy as np
import pytest

from serfer.control.policies import make_policy
from serfer.cost.loads.trace import Trace
from serfer_bench.study.sim.history import place_before, see_history
from serfer_bench.study.sim.simulate import RunOptions, prepare, run_policies
from tests.control.worlds import QPS, scenario
from tests.study.cli.test_simulate import called, outcomes
from tests.study.sim.worlds import TOML

WORLD = scenario(5.0, boot_s=40.0)


class Seen:
    """A policy that remembers what it saw."""

    name = "seen"

    def __init__(self):
        self.inner = make_policy("instances", WORLD)
        self.all = []

    def observe(self, seen):
        self.all.append(seen)
        return self.inner.observe(seen)


def bursts(count, begin_s=0.0):
    return Trace("bursts", np.array([300.0, 120.0] * count), np.array([0.0, 1.5 * QPS] * count), begin_s)


def test_a_history_ends_when_the_load_begins():
    policy = Seen()
    see_history(policy, WORLD, place_before(bursts(1, 50.0), bursts(2)), period_s=10.0)
    assert [policy.all[0].now_s, policy.all[-1].now_s] == [-830.0, 0.0]
    assert sum(seen.elapsed_s * seen.rate for seen in policy.all) == pytest.approx(bursts(2).queries)
    assert sum(group.count for group in policy.all[-1].fleet) == 2


def test_a_history_keeps_its_distance_from_a_load_where_both_are_dated():
    assert place_before(bursts(1, 1.7e9 + 3600), bursts(1, 1.7e9)).begin_s == -3600.0


@pytest.mark.parametrize(("load_begin_s", "begin_s"), [(0.0, 1.7e9), (1.7e9, 0.0), (60.0, 30.0)])
def test_a_history_ends_when_the_load_begins_where_not_both_are_dated(load_begin_s, begin_s):
    assert place_before(bursts(1, load_begin_s), bursts(2, begin_s)).begin_s == -840.0


def test_a_history_never_ends_after_the_load_begins():
    assert place_before(bursts(1, 1.7e9), bursts(2, 1.7e9 + 60)).begin_s == -840.0


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


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "two-types.toml"
    path.write_text(TOML)
    return path


def test_the_command_takes_a_generator_or_a_file(file, tmp_path):
    (tmp_path / "past.csv").write_text("t_seconds,rps\n0,5\n600,80\n1200,5\n")
    for history, name in (("poisson:hours=0.3", "poisson,hours=0.3,seed=0"), (tmp_path / "past.csv", "past")):
        options = ("--scenario", file, "--policy", "break-even", "--level", "rates", "--history", history)
        (row,) = outcomes("diurnal:mean=20,hours=0.5", *options)
        assert row["history"].replace(":", ",") == name
    assert "cost $" in called("diurnal:mean=20,hours=0.5", *options)
