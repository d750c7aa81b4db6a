"""Policies on fixed loads at fixed prices, beside the published ones: `serfer study policy`."""

import json
import tomllib

import pytest
from typer.testing import CliRunner

from serfer.cli.main import app
from serfer.control.scenario import read_scenario
from serfer.core.errors import InputError, UsageError
from serfer_bench.study.sim.policy_suite import LOADS, PRICES, PUBLISHED, Suite, over_all, run
from serfer_bench.study.sim.simulate import LoadSpec

HOUR = "mmpp:hours=1,row_s=60,low_s=300,high_s=300"
OWN = """
from serfer.control.policy import on_demand

class Two:
    name = "two"

    def __init__(self, scenario):
        self.kind = scenario.instance

    def observe(self, seen):
        return on_demand(self.kind, 2, "always two")

    def resume(self, fleet):
        pass
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return "mine.py:Two"


def study(*options, load=HOUR):
    return CliRunner().invoke(app, ["study", "policy", "--load", load, *options])


def test_an_own_policy_stands_first_beside_all_published_ones(own):
    done = study(own, "--seeds", "2", "--period-s", "60", "--scenario", str(PRICES[0]), "--markdown")
    assert done.exit_code == 0, done.output
    head, _, row, everything = done.output.splitlines()[:4]
    assert head == f"| load | prices | optimum, $ | {' | '.join([own, *PUBLISHED])} |"
    assert row.startswith(f"| {HOUR} | aws | ")
    assert row.count(" to ") == len(PUBLISHED) + 1  # each with the range of its seeds
    assert everything.startswith("| all |")
    assert "- left out: mark-spot, which buys other types" in done.output
    assert "and sagemaker, whose instances serve alone" in done.output


def test_json_has_the_optimum_and_each_ratio_over_it(own):
    done = study(own, "--alone", "--seeds", "2", "--period-s", "60", "--json")
    rows = [json.loads(line) for line in done.output.splitlines()]
    assert [row["prices"] for row in rows] == ["aws", "google-cloud", "azure"]
    for row in rows:
        assert row["optimum_usd"]["min"] > 0
        assert 1 <= row["ratios"][own]["min"] <= row["ratios"][own]["mean"] <= row["ratios"][own]["max"]


def test_no_policy_is_below_the_optimum_and_the_same_suite_gives_the_same_figures():
    suite = Suite(PUBLISHED, [HOUR], PRICES[:1], seeds=2, period_s=60.0)
    rows = run(suite, 1)
    assert all(ratio.min >= 1 - 1e-9 for row in rows for ratio in row.ratios.values())
    assert run(suite, 1) == rows
    assert over_all(rows)["serverless"].mean == rows[0].ratios["serverless"].mean


@pytest.mark.slow
def test_processes_give_the_same_rows_in_the_same_order(monkeypatch):
    suite = Suite(["serverless", "ski-rental"], [HOUR, "poisson:hours=1,row_s=60"], PRICES[:2], seeds=2, period_s=60.0)
    alone = run(suite, 1)
    monkeypatch.setattr("serfer_bench.study.sim.policy_suite.WORTH_PROCESSES", 0)
    assert run(suite, 2) == alone


def test_a_policy_of_several_types_or_without_functions_is_not_among_the_published_ones():
    assert {"sagemaker", "mark-spot"}.isdisjoint(PUBLISHED)
    assert {"break-even", "ski-rental", "mark", "nonuniform", "target-tracking", "target-tracking-stepwise"} <= {
        *PUBLISHED
    }


def test_what_does_not_serve_all_load_has_no_ratio():
    (row,) = run(Suite(["sagemaker"], [HOUR], PRICES[:1], seeds=1, period_s=60.0), 1)
    assert row.ratios == {"sagemaker": None}


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["nothing.py:Two"], "'nothing.py:Two' cannot be loaded"),
        (["nothing"], "there is no policy 'nothing'"),
        (["--scenario", "missing.toml"], "'missing.toml' cannot be read"),
        (["--scenario", str(PRICES[0]), "--scenario", str(PRICES[0])], "two price files have the same name"),
    ],
)
def test_what_cannot_be_run_is_refused_by_its_name(options, fault):
    error = study(*options).exception
    assert isinstance(error, InputError | UsageError)
    assert fault in str(error)
    assert "'nothing' is neither a file nor a generator" in str(study(load="nothing").exception)


def test_every_load_of_the_suite_is_made_from_a_seed():
    assert all(LoadSpec(load).is_seeded for load in LOADS)
    assert LoadSpec(LOADS[0]).read(0).rates.tolist() != LoadSpec(LOADS[0]).read(1).rates.tolist()


@pytest.mark.parametrize(
    ("number", "seconds", "usd"),
    [
        (0, 0.1, 0.1 * 1.7275 * 0.0000166667 + 0.2e-6),
        (1, 0.1, 0.1 * (0.000024 + 2 * 0.0000025) + 0.4e-6),
        (2, 0.1, 0.1 * 1.5 * 0.000016 + 0.2e-6),
    ],
)
def test_price_files_say_their_sources_and_a_query_costs_what_these_say(number, seconds, usd):
    text = PRICES[number].read_text()
    assert "list prices" in text
    assert "Assumed: " in text
    target = read_scenario(PRICES[number]).serverless
    assert target.usd_per_query == pytest.approx(usd, rel=0.01)
    assert tomllib.loads(text)["lambda"]["latency_ms"] == 1000 * seconds
