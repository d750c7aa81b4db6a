"""What is recommended: the least dollars among those that meet the SLO, and what speaks against it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.errors import UsageError
from serfer_bench.study.sim.recommend import Comparison, Evaluation, LambdaChoice, Spread, evaluate, recommend
from serfer_bench.study.sim.simulate import LoadSpec, RunOptions
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
    share = None if slo is None else Spread(slo, slo, slo)
    return Evaluation(
        policy=policy,
        instance="gpu",
        memory_mb=None,
        spot=False,
        seeds=seeds,
        queries=None,
        cost_usd=Spread(usd, usd - spread, usd + spread),
        ratio=None,
        window_usd=None if window is None else Spread(window, window, window),
        window_ratio=None,
        slo_met=share,
        p99_ms=None,
        launches=None,
        meets_slo=None if slo is None else slo >= 0.99,
        comparable=comparable,
        warnings=(),
        notes=(),
    )


CANDIDATES = st.builds(
    evaluation,
    st.text("abc", min_size=1, max_size=3),
    st.floats(0.01, 100),
    st.floats(0, 1),
    comparable=st.booleans(),
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
    assert [one.policy for one in ranked] == ["a", "b", "c"]
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


def test_instances_do_not_multiply_what_starts_none():
    two = replace(scenario().instance, name="large")
    world = replace(scenario(), instances=(scenario().instance, two))
    found = [one for one, _, _ in comparison(scenario=world).candidates()]
    assert [(one.policy, one.instance) for one in found] == [
        ("ski-rental", "gpu"),
        ("ski-rental", "large"),
        ("serverless", None),
    ]
    chosen = comparison(scenario=world, options=RunOptions(kind="large")).candidates()
    assert [one.instance for one, _, _ in chosen] == ["large", None]


def test_types_without_a_spot_price_are_left_out_with_spot():
    two = replace(scenario().instance, name="large", spot_usd_per_hour=0.0)
    world = replace(scenario(), instances=(scenario().instance, two))
    found = comparison(scenario=world, options=RunOptions(spot=True), policies=["ski-rental"]).candidates()
    assert [one.instance for one, _, _ in found] == ["gpu"]


def test_burstable_types_are_not_compared():
    two = replace(scenario().instance, name="t2", credits=CREDITS)
    world = replace(scenario(), instances=(scenario().instance, two))
    assert {one.instance for one, _, _ in comparison(scenario=world).candidates()} == {"gpu", None}


def test_too_many_runs_are_refused():
    with pytest.raises(UsageError, match="more than 10,000 runs"):
        comparison(seeds=6000).candidates()


def test_processes_find_what_one_finds(monkeypatch):
    monkeypatch.setattr("serfer_bench.study.sim.recommend.WORTH_PROCESSES", 0)
    given, shown = comparison(seeds=2), []
    assert evaluate(given, 2, shown.append) == evaluate(given, 1)
    assert shown[-1].startswith("4 of 4 runs are done")
