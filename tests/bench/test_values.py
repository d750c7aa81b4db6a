"""`serfer bench policies values`: the default policy with learnt values beside itself with windows alone."""

import json
from dataclasses import fields

import pytest
from typer.testing import CliRunner

from serfer.cli.main import app
from serfer.control.policies import DEFAULT
from serfer.core.errors import InputError
from serfer.learn import trainers
from serfer.sim.policy_suite import PRICES
from serfer.sim.simulate import RunOptions
from serfer_bench.policies import values
from serfer_bench.policies.policies import Options, cases
from tests.bench.test_halves import outcome


def test_rows_are_over_seeds_and_the_note_has_the_mean_saving_of_the_loads():
    pairs = [
        outcome(name, 1.0, None, load, ratio)
        for load, windows, learnt in (("a,seed=1", 2.0, 1.5), ("a,seed=2", 2.0, 1.7), ("b,seed=1", 1.0, 1.1))
        for name, ratio in ((values.WINDOWS, windows), (values.VALUES, learnt))
    ]
    found = values.results(values.rows(pairs))
    assert [row[:3] for row in found.tables[0].body] == [["a", "b", "S"], ["b", "b", "S"]]
    assert found.tables[0].body[0][4:] == ["1.600 (1.500 to 1.700)", "20.0% (15.0% to 25.0%)"]
    assert found.notes[0] == "saved: 5.0% on average over 2 loads, -10.0% to 20.0%"


def test_loads_without_an_optimum_are_left_out():
    none = [outcome(name, 0.0, None, "a,seed=1", None) for name in (values.WINDOWS, values.VALUES)]
    one = [outcome(name, 1.0, None, "b,seed=1", 1.5) for name in (values.WINDOWS, values.VALUES)]
    assert [row.load for row in values.rows([*none, *one])] == ["b"]
    with pytest.raises(InputError, match="no load has an optimum"):
        values.rows(none)


def test_a_load_is_run_twice_on_mmpp_too_where_a_peer_runs_beside_each_policy():
    options = Options((DEFAULT,), RunOptions(60.0), ["mmpp:hours=0.2,row_s=60"], ["M"])
    (case,) = cases(None, PRICES[0], options)
    found = values.ValuesCase(**{each.name: getattr(case, each.name) for each in fields(case)}).run()
    assert [one.policy for one in found] == [values.WINDOWS, values.VALUES]
    assert found[0].cost_usd == found[1].cost_usd  # without a trainer nothing is learnt


def test_without_the_extra_the_command_says_what_installs_it(monkeypatch):
    monkeypatch.setattr(trainers, "can_learn", lambda: False)
    error = CliRunner().invoke(app, ["bench", "policies", "values"]).exception
    assert "lightgbm is not installed" in str(error)


@pytest.mark.slow
def test_values_are_learnt_on_the_way(tmp_path, monkeypatch):
    monkeypatch.setenv("SERFER_CACHE_DIR", str(tmp_path))
    load = "periodic:every_s=1200,queries=60000,row_s=600,jitter_s=60,hours=25"
    done = CliRunner().invoke(app, ["bench", "policies", "values", "--load", load, "--seeds", "1", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["load"] == load
    assert len([*(tmp_path / "values").iterdir()]) == 1  # the model of the first day
