"""What is recommended, and policies on fixed loads at fixed prices: `serfer study policy`."""

import tomllib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from serfer.cli.main import app
from serfer.control.scenario import read_scenario
from serfer.core.errors import InputError, UsageError
from serfer_bench.study.sim.policy_suite import LOADS, PRICES, PUBLISHED, Suite, over_all, run
from serfer_bench.study.sim.recommend import Comparison, Evaluation, LambdaChoice, Spread, evaluate, recommend
from serfer_bench.study.sim.simulate import LoadSpec, RunOptions
from tests.bench.running import rows
from tests.control.test_plugged_in import made as made  # noqa: PLC0414 - a fixture
from tests.control.worlds import CREDITS
from tests.study.sim.worlds import scenario


def comparison(**fields):
    world = scenario()
    given = {
        "load": LoadSpec("poisson:rate=20,hours=0.1,row_s=5"),
        "scenario_name": "a scenario",
        "scenario": world,
        "scale": "none",
        "policies": ["ski-rental", "serverless"],
        "every_type": True,
        "options": RunOptions(),
        "lambdas": [LambdaChoice(world.serverless, None)],
    }
    return Comparison(**{**given, **fields})


def evaluation(policy, usd, slo=None, *, window=None, seeds=1, comparable=True, spread=0.0):
    known = {"policy": policy, "instance": "gpu", "spot": False, "seeds": seeds, "comparable": comparable}
    known |= {"warnings": (), "notes": (), "recommended": False, "cost_usd": Spread(usd, usd - spread, usd + spread)}
    if window is not None:
        known |= {"window_usd": Spread(window, window, window)}
    if slo is not None:
        known |= {"slo_met": Spread(slo, slo, slo), "meets_slo": slo >= 0.99}
    return Evaluation(**{**dict.fromkeys(Evaluation.__dataclass_fields__), **known})


CANDIDATES = st.builds(
    evaluation, st.text("abc", min_size=1, max_size=3), st.floats(0.01, 100), st.floats(0, 1), comparable=st.booleans()
)


@given(st.lists(CANDIDATES, min_size=1, max_size=8))
def test_the_recommended_one_is_first_and_nothing_cheaper_serves_as_well(candidates):
    ranked = recommend(candidates, comparison())
    assert not any(one.recommended for one in ranked[1:])
    best, comparable = ranked[0], [one for one in ranked if one.comparable]
    assert len(ranked) == len(candidates)
    assert best.recommended == bool(comparable)
    if best.recommended:
        least = min(0.99, max(one.slo_met.min for one in comparable) - 0.005)
        if any(one.meets_slo for one in comparable):
            least = 0.99
        assert best.slo_met.min >= least
        assert not [one for one in comparable if one.usd < best.usd and one.slo_met.min >= least]


def test_the_reason_says_how_much_less_and_how_well():
    ranked = recommend(
        [evaluation("b", 2.0, 0.999), evaluation("a", 1.5, 0.995), evaluation("c", 1.0, 0.5)], comparison()
    )
    assert ranked[0].reason == (
        "a on gpu: $1.5 is the least of those that meet the SLO, with 99.50% within 300 ms, 25.0% below b on gpu."
    )


@pytest.mark.parametrize(("second", "words"), [(1.5, "as much as"), (1.5001, "hardly less than")])
def test_nothing_is_0_percent_below(second, words):
    ranked = recommend([evaluation("b", second, 1.0), evaluation("a", 1.5, 1.0)], comparison())
    assert ranked[0].reason.endswith(f"{words} {ranked[1].policy} on gpu.")


def test_the_reason_says_what_speaks_against_it():
    pair = [evaluation("a", 1.0, 1.0, window=0.3, seeds=3, spread=0.5), evaluation("b", 1.2, 1.0, window=0.2, seeds=3)]
    reason = recommend(pair, comparison())[0].reason
    assert "($1" not in reason
    assert "(0.5 to 1.5 over 3 seeds)" in reason
    assert "Over the seeds its dollars overlap with those of b on gpu." in reason
    assert "Query by query, in the windows alone, b on gpu spends less: $0.2 against $0.3." in reason


def test_without_latencies_dollars_decide_and_the_reason_says_so():
    ranked = recommend([evaluation("a", 2.0), evaluation("b", 1.0)], comparison())
    assert ranked[0].reason == (
        "b on gpu: $1 is the least of all candidates, 50.0% below a on gpu. Latencies were not looked at (--level "
        "rates)."
    )


def candidates(change, **fields):
    """Return the candidates of a scenario with a second type that differs from the first by this change."""
    first = scenario().instance
    world = replace(scenario(), instances=(first, replace(first, **change)))
    return [(one.policy, one.instance) for one, _, _ in comparison(scenario=world, **fields).candidates()]


def test_candidates_are_types_that_make_a_difference():
    large, on_lambda = {"name": "large"}, ("serverless", None)
    assert candidates(large) == [("ski-rental", "gpu"), ("ski-rental", "large"), on_lambda]
    assert candidates(large, options=RunOptions(kind="large")) == [("ski-rental", "large"), on_lambda]
    spot = {"options": RunOptions(spot=True), "policies": ["ski-rental"]}
    assert candidates({**large, "spot_usd_per_hour": 0.0}, **spot) == [("ski-rental", "gpu")]
    assert candidates({"name": "t2", "credits": CREDITS}) == [("ski-rental", "gpu"), on_lambda]
    with pytest.raises(UsageError, match="more than 10,000 runs"):
        comparison(seeds=6000).candidates()


def test_processes_find_what_one_finds(monkeypatch):
    monkeypatch.setattr("serfer_bench.study.sim.recommend.WORTH_PROCESSES", 0)
    given, shown = comparison(seeds=2), []
    assert evaluate(given, 2, shown.append) == evaluate(given, 1)
    assert shown[-1].startswith("4 of 4 runs are done")


HOUR = "mmpp:hours=1,row_s=60,low_s=300,high_s=300"


@pytest.fixture
def own(made):
    return made("on_demand(self.kind, 2, 'always two')")


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
    found = rows("study", "policy", "--load", HOUR, own, "--alone", "--seeds", 2, "--period-s", 60)
    assert [row["prices"] for row in found] == ["aws", "google-cloud", "azure"]
    assert all(row["optimum_usd"]["min"] > 0 and row["ratios"][own]["min"] >= 1 for row in found)


def test_no_policy_is_below_the_optimum_and_the_same_suite_gives_the_same_figures():
    suite = Suite(PUBLISHED, [HOUR], PRICES[:1], seeds=2, period_s=60.0)
    found = run(suite, 1)
    assert all(ratio.min >= 1 - 1e-9 for row in found for ratio in row.ratios.values())
    assert run(suite, 1) == found
    assert over_all(found)["serverless"].mean == found[0].ratios["serverless"].mean


@pytest.mark.slow
def test_processes_give_the_same_rows_in_the_same_order(monkeypatch):
    suite = Suite(["serverless", "ski-rental"], [HOUR, "poisson:hours=1,row_s=60"], PRICES[:2], seeds=2, period_s=60.0)
    alone = run(suite, 1)
    monkeypatch.setattr("serfer_bench.study.sim.policy_suite.WORTH_PROCESSES", 0)
    assert run(suite, 2) == alone


def test_what_does_not_serve_all_load_has_no_ratio_and_is_not_among_the_published_ones():
    assert {"sagemaker", "mark-spot"}.isdisjoint(PUBLISHED)
    assert {"break-even", "ski-rental", "mark", "nonuniform", "target-tracking-stepwise"} <= {*PUBLISHED}
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
    assert read_scenario(PRICES[number]).serverless.usd_per_query == pytest.approx(usd, rel=0.01)
    assert tomllib.loads(text)["lambda"]["latency_ms"] == 1000 * seconds
