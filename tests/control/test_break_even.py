"""The default policy keeps the plain rule's guarantee for any load, and learns from past bursts."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.control.policies import make_policy
from serfer.control.policies.break_even import BreakEven, competitive_ratio
from serfer.control.policies.ski_rental import SkiRental
from serfer_bench.study.policies.clairvoyant import optimum_usd
from tests.control.worlds import LONG, QPS, at_once, fleet, rows, scenario, seen, steps, up_to_its_price, with_boots

STEP_S = 5.0
HOUR = 3600


def best(world, load):
    return optimum_usd(world, *zip(*load, strict=True))


def late(world, load, step_s):
    """Return what steps may cost the plain rule, which the guarantee is about: it acts up to a step too late.

    A late start costs up to c a second where the rule would have paid 1, a late stop 1 where it would have paid less.
    """
    return at_once(world, SkiRental(world), load, step_s).starts * (world.price_ratio + 1) * step_s


def guaranteed(world, load, step_s):
    return competitive_ratio(world.price_ratio) * best(world, load) + late(world, load, step_s)


@settings(derandomize=True, max_examples=10)
@given(load=rows(2.5 * QPS, most_rows=8, most_s=60), price_ratio=st.sampled_from([1.0, 1.5, 3.0, 26.0]))
def test_the_guarantee_holds_for_any_load(load, price_ratio):
    world, load = scenario(price_ratio, boot_s=60.0), [(STEP_S * seconds, rate) for seconds, rate in load]
    paid = up_to_its_price(world, BreakEven(world), load, STEP_S)
    assert paid.usd <= guaranteed(world, load, STEP_S) + 1e-6


def bursts(count, *, every=2 * HOUR, lasting=600, rate=QPS):
    return [(every - lasting, 0.0), (lasting, rate)] * count


@pytest.mark.parametrize(("price_ratio", "taught"), [(3.0, 4), (26.0, 0), (26.0, 4)])
def test_the_guarantee_holds_against_an_adversary_after_misleading_bursts(price_ratio, taught):
    """Bursts on time, then a full load whenever nothing is on, and none when something is."""
    world = scenario(price_ratio, boot_s=60.0)
    policy, lesson = BreakEven(world), list(steps(bursts(taught, every=400, lasting=120), STEP_S))

    class Recorded:
        def observe(self, step):
            self.wanted = policy.observe(step)
            return self.wanted

    recorded = Recorded()
    recorded.wanted = policy.observe(seen(0.0, 0.0))
    history = []

    def adverse():
        for step in lesson:
            history.append(step)
            yield step
        for _ in range(350):
            history.append((STEP_S, 0.0 if recorded.wanted.total else QPS))
            yield history[-1]

    paid = up_to_its_price(world, recorded, adverse(), STEP_S)
    assert paid.usd <= guaranteed(world, history, STEP_S) + 1e-6
    assert paid.starts > taught + 2


def test_regular_bursts_are_anticipated_at_far_less_cost_than_the_plain_rule():
    world, load, step_s = scenario(26.0), bursts(9), 30.0
    learnt, plain = (with_boots(world, make(world), load, step_s) for make in (BreakEven, SkiRental))
    assert learnt.usd <= 0.6 * plain.usd
    cycle = int(2 * HOUR / step_s)
    for number in range(6, 9):
        on = learnt.on[number * cycle : (number + 1) * cycle]
        begins = cycle - int(600 / step_s)
        assert on[begins - int(LONG / step_s) - 1]  # booted when the burst begins
        assert sum(on[:begins]) * step_s <= 2 * LONG  # and not on for much longer


def test_the_last_bursts_cost_hardly_more_than_the_optimum():
    world, step_s, taught = scenario(26.0), 30.0, bursts(6)
    policy = BreakEven(world)
    with_boots(world, policy, taught, step_s)
    went_on = with_boots(world, policy, bursts(2), step_s)
    assert went_on.usd <= 1.15 * best(world, bursts(2))


@settings(derandomize=True, max_examples=12, deadline=None)
@given(
    load=rows(2.5 * QPS, most_rows=8, most_s=900),
    times=st.integers(1, 20),
    price_ratio=st.sampled_from([3.0, 13.4, 25.8]),
    step_s=st.sampled_from([10.0, 30.0]),
)
def test_no_load_costs_much_more_than_the_cheaper_of_the_plain_rule_and_lambda_alone(load, times, price_ratio, step_s):
    """At most 1.05 times that, and twenty boots of each level: measured over random loads, not proved."""
    world, load = scenario(price_ratio, boot_s=120.0), (load * times)[:40]
    default, plain, alone = (
        with_boots(world, make_policy(name, world), load, step_s).usd
        for name in ("break-even", "ski-rental", "serverless")
    )
    levels = math.ceil(max(rate for _, rate in load) / QPS)
    assert default <= 1.05 * min(plain, alone) + 20 * levels * world.instance.start_usd


def stays(chance, boot_s, kind):
    """Yield rows of loads of a kind: steps of 10 seconds whose lengths are of the order of a boot."""
    peak, low = chance.uniform(0.3, 3.5) * QPS, chance.choice([0.0, 0.0, 0.05, 0.2]) * QPS
    off_s, on_s, rate, turn = chance.uniform(2, 20) * boot_s, chance.uniform(0.2, 3) * boot_s, low, 0
    while True:
        turn += 1
        quarter = turn // 60 % 4
        rate = min(max(rate + chance.normal() * QPS / 2, 0.0), peak)
        rows = {
            "square": [(off_s, low), (on_s, peak)],
            "exponential": [(chance.exponential(off_s), low), (chance.exponential(boot_s), peak)],
            "heavy": [(min(chance.pareto(1.1), 40) * boot_s, low), (min(chance.pareto(1.1) / 2, 40) * boot_s, peak)],
            "walk": [(chance.uniform(0.1, 1) * boot_s, rate)],
            "mixed": [(chance.uniform(0.1, 8) * boot_s, chance.choice([0, 0.05, 0.1, 0.5, 1, 1.5, 2]) * QPS)],
            "changing": [((4, 12, 30, 2)[quarter] * boot_s, low), ((0.5, 3, 0.2, 6)[quarter] * boot_s, peak)],
        }
        yield from ((max(10, round(seconds / 10) * 10), row_rate) for seconds, row_rate in rows[kind])


def against_the_cheaper(world, load):
    """Return what the default pays, and the cheaper of the plain rule and Lambda alone."""
    names = ("break-even", "ski-rental", "serverless")
    usd, *others = (with_boots(world, make_policy(name, world), load, 10.0).usd for name in names)
    return usd, min(others)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("mixed", marks=pytest.mark.slow),
        *(
            pytest.param(kind, marks=pytest.mark.weekly)
            for kind in ("changing", "square", "exponential", "heavy", "walk")
        ),
    ],
)
def test_loads_of_many_kinds_cost_little_more_than_the_cheaper_of_the_plain_rule_and_lambda_alone(kind):
    for seed in range(6):
        chance, load = np.random.default_rng(seed), []
        world = scenario(chance.choice([3.0, 13.4, 16.4, 25.8]), boot_s=chance.choice([120.0, 180.0, 240.0]))
        rows_of_kind, seconds = stays(chance, world.instance.boot_s, kind), 0
        while seconds < 12 * HOUR:
            load.append(next(rows_of_kind))
            seconds += load[-1][0]
        usd, least = against_the_cheaper(world, load)
        levels = math.ceil(max(rate for _, rate in load) / QPS)
        assert usd <= 1.05 * least + 20 * levels * world.instance.start_usd


@pytest.mark.slow
@pytest.mark.parametrize("price_ratio", [3.0, 13.4, 25.8])
@pytest.mark.parametrize("until", ["started", "serving"])
def test_a_load_that_watches_it_costs_about_twice_that_at_worst(price_ratio, until):
    """Full load until an instance is started, or serves, and then nothing until it has stopped."""
    world, load, on, boot = scenario(price_ratio, boot_s=180.0), [], False, 0.0
    policy = BreakEven(world)
    for _ in range(12 * 360):
        load.append((10, QPS if not on or (until == "serving" and boot > 0) else 0.0))
        before, on = on, policy.observe(seen(10.0, load[-1][1])).total > 0
        boot = max(boot - 10.0, 0.0) if before else 180.0 * on
    usd, least = against_the_cheaper(world, load)
    assert usd <= 2.05 * least


@pytest.mark.parametrize("load", [0.04, 0.5, 1.0, 2.02, 2.5])
def test_a_steady_load_costs_the_optimum_once_instances_have_started(load):
    world, rate = scenario(13.0), load * QPS
    policy = BreakEven(world)
    start = with_boots(world, policy, [(2 * LONG, rate)], STEP_S)
    then = [policy.observe(seen(STEP_S, rate)).total for _ in range(300)]
    on = start.on[-1]
    assert then == [on] * 300
    each_s = on + max(rate - on * QPS, 0.0) * world.serverless.usd_per_query
    steady = best(world, [(1e9, rate)]) / 1e9  # starts are lost in it
    assert each_s == pytest.approx(steady, rel=0.01)


def test_the_same_load_leads_to_the_same_decisions():
    draw = random.Random(7)  # noqa: S311 - a load
    load = [(draw.choice([30, 90, 240]), draw.choice([0.0, 0.0, 5.0, 12.0, 25.0])) for _ in range(20)]
    world = scenario(13.0, boot_s=60.0)
    wanted = [
        [policy.observe(seen(*step)) for step in steps(load, STEP_S)] for policy in (BreakEven(world), BreakEven(world))
    ]
    assert wanted[0] == wanted[1]
    assert len({each.instances for each in wanted[0]}) > 2


@settings(derandomize=True, max_examples=8)
@given(load=rows(5 * QPS, most_s=30))
def test_levels_are_nested(load):
    world = scenario(13.0, boot_s=60.0)
    policy = BreakEven(world)
    for seconds, rate in steps([(STEP_S * seconds, rate) for seconds, rate in load], STEP_S):
        wanted = policy.observe(seen(seconds, rate)).total
        on = policy._budget._on
        assert on.tolist() == [level < wanted for level in range(len(on))]


def test_a_policy_resumes_with_running_instances():
    world = scenario(13.0)
    policy = BreakEven(world)
    policy.resume(fleet(3))
    assert with_boots(world, policy, [(1000, 2.5 * QPS)], STEP_S).on == [3] * 200
    idle = BreakEven(world)
    idle.resume(fleet(2))
    on = with_boots(world, idle, [(2 * LONG, 0.0)], STEP_S).on
    assert on[: int(LONG / STEP_S) - 1] == [2] * (int(LONG / STEP_S) - 1)  # no longer than a start is worth
    assert on[-1] == 0


def test_a_policy_resumes_with_running_instances_after_some_load():
    world = scenario(13.0)
    policy = BreakEven(world)
    policy.observe(seen(1.0, 0.3 * QPS))
    policy.resume(fleet(2))
    assert policy.observe(seen(1.0, 1.5 * QPS)).total == 2
    with_boots(world, policy, [(1000, 1.5 * QPS)], STEP_S)
    policy.resume(fleet(4))
    on = with_boots(world, policy, [(2 * LONG, 1.5 * QPS)], STEP_S).on
    assert on[: int(LONG / STEP_S) - 1] == [4] * (int(LONG / STEP_S) - 1)
    assert on[-1] == 2


def test_decisions_have_reasons():
    world, step_s = scenario(26.0), 30.0
    policy = BreakEven(world)
    reasons = {policy.observe(seen(*step)).reason.partition(": ")[2] for step in steps(bursts(5), step_s)}
    assert "windows learnt from bursts so far" in reasons
    assert "on after 1 starts' price on lambda, off after 1 idle" in reasons
    assert policy.observe(seen(1.0, 12.34)).reason.startswith("12.3 queries/s: ")


def test_nothing_is_started_where_lambda_is_never_dearer():
    world = scenario(0.8)
    policy = BreakEven(world)
    assert not any(policy.observe(seen(*step)).total for step in steps(bursts(4), 60.0))


def test_an_absurd_load_is_clamped():
    policy = BreakEven(scenario(13.0))
    for _ in range(20):
        wanted = policy.observe(seen(60.0, 1e9))
    assert wanted.total == 1000


def test_an_instance_is_on_while_it_is_cheaper_without_a_boot():
    world = scenario(13.0, boot_s=0.0)
    policy = BreakEven(world)
    on = [policy.observe(seen(STEP_S, rate)).total for rate in (QPS, QPS, 0.0, 0.0, QPS, 0.0)]
    assert np.array_equal(on, [1, 1, 0, 0, 1, 0])
