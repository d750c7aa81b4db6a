"""Scenario files are read, or refused with the wrong key."""

import tomllib
from itertools import accumulate

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from serfer.control.batching import Profile
from serfer.control.scenario import InstanceType, LambdaTarget, parse_scenario
from serfer.core.errors import InputError
from serfer_bench.study.policies.tuning import tune
from tests.control.worlds import LARGE, SMALL, TWO_TYPES

POSITIVE = {"lambda": {"usd_per_query", "latency_ms", "concurrency", "memory_gb"}, "instance": {"usd_per_hour", "qps"}}
NUMBERS = {
    "": ["slo_ms"],
    "lambda": ["usd_per_query", "latency_ms", "cold_ms", "concurrency", "memory_gb", "keep_alive_s"],
    "instance": ["usd_per_hour", "spot_usd_per_hour", "boot_s", "min_billing_s", "qps"],
}
EVERY_NUMBER = [(table, key) for table, keys in NUMBERS.items() for key in keys]
LEAST = [(table, key) for table, key in EVERY_NUMBER if key in POSITIVE.get(table, {"slo_ms"})]


def tables():
    return tomllib.loads(TWO_TYPES)


def where(document, table):
    return document["instance"][1] if table == "instance" else document[table] if table else document


def changed(table, key, value):
    document = tables()
    where(document, table)[key] = value
    return document


def test_a_scenario_is_read():
    scenario = parse_scenario(tables())
    assert scenario.slo_ms == 300
    assert scenario.serverless == LambdaTarget(4e-5, 120, 800, 1000, 1.0, 600)
    first = InstanceType("g4dn.xlarge", 0.526, 0.2, 120.0, 60.0, 60.0, ((1, 18.0), (8, 120.0)))
    second = InstanceType("g5.xlarge", 1.006, 0.4, 180.0, 60.0, 200.0, ((1, 7.0), (8, 38.0), (32, 144.0)))
    assert scenario.instances == (first, second)
    assert scenario.instance == first


@pytest.mark.parametrize(("text", "price_ratio"), [(LARGE, 25.8), (SMALL, 13.4), (TWO_TYPES, 16.4)])
def test_the_advantage_is_lambdas_price_over_the_first_instances_at_full_load(text, price_ratio):
    assert parse_scenario(tomllib.loads(text)).price_ratio == pytest.approx(price_ratio, abs=0.05)


def test_instance_type_has_prices_and_batch_times():
    kind = parse_scenario(tomllib.loads(LARGE)).instance
    assert kind.usd_per_s == pytest.approx(1.006 / 3600)
    assert kind.start_usd == pytest.approx(1.006 / 15)
    assert [kind.batch_ms(images) for images in (1, 4, 16)] == [25, 62, 240]
    assert kind.batch_ms(10) == pytest.approx(151)
    assert kind.batch_ms(32) == pytest.approx(480)
    assert kind.max_batch == 16
    assert InstanceType("x", 1, 0, 1, 0, 1, ((4, 60.0),)).batch_ms(1) == 60  # as long as the smallest measured


@given(st.lists(st.floats(1.0, 50.0), min_size=1, max_size=6), st.integers(1, 200))
def test_batch_times_are_monotonic_if_the_measurements_are(growth, images):
    times = [sum(growth[: number + 1]) for number in range(len(growth))]
    kind = InstanceType("x", 1, 0, 1, 0, 1, tuple((2**number, ms) for number, ms in enumerate(times)))
    assert kind.batch_ms(images) <= kind.batch_ms(images + 1) + 1e-9


WRONG_NUMBERS = ["fast", True, float("nan"), float("inf"), [1], {"a": 1}, "x" * 10_000, -1, -1e-9, 1.1e9, 10**400]
WRONG_NAMES = [None, "", "x" * 65, 7, "two\nlines", "bell\a"]
WRONG_BATCHES = [
    *(None, [], 7, [7], [[1]], [[1, 2, 3]], [["1", 2]], [[1, True]], [[0, 5]], [[-1, 5]], [[1.5, 5]], [[1, 0]]),
    *([[1, -2]], [[1, float("nan")]], [[float("inf"), 1]], [[1, 2e9]], [[2e9, 1]], [[10**400, 1]], [[1, 10**400]]),
    *([[1, 5], [1, 6]], [[4, 5], [1, 6]], [[number, 5] for number in range(1, 66)]),
]
BURSTABLE = {"name": "t2", "credits": {"vcpus": 2, "per_hour": 24, "at_launch": 60, "most": 576}}


def without(table, key):
    document = tables()
    del where(document, table)[key]
    return document


def wrong_scenarios():
    """Yield scenarios that are refused, each with the table and key that are named."""
    for table, key in EVERY_NUMBER:
        yield without(table, key), table, key
        for value in (*WRONG_NUMBERS, *((0, 5e-324) if (table, key) in LEAST else ())):
            yield changed(table, key, value), "", key
    yield from ((changed("lambda", "concurrency", value), "lambda", "concurrency") for value in (0.5, 1.5, 2.0))
    yield from ((changed(table, "slo_s", 1), NUMBERS[table][0], "'slo_s'") for table in NUMBERS)
    yield from ((changed("instance", "name", name), "instance", "name") for name in WRONG_NAMES)
    yield from ((changed("instance", "batches", batches), "instance", "batches") for batches in WRONG_BATCHES)
    yield from ((without("", key), "", key) for key in ("lambda", "instance"))
    yield changed("", "lambda", 5), "", "scenario.lambda"
    first = tables()["instance"][0]
    yield changed("", "instance", [first, 7]), "", "scenario.instance[1]"
    yield from ((changed("", "instance", instances), "", "instance") for instances in ([], {}, 3, [first] * 17))
    yield changed("", "instance", [{**first, **BURSTABLE}, first]), "t2", "first type"


def test_wrong_scenarios_are_refused_in_one_line_with_the_wrong_key():
    for document, table, key in wrong_scenarios():
        with pytest.raises(InputError) as raised:
            parse_scenario(document)
        message = str(raised.value)
        assert "\n" not in message
        assert len(message) < 300
        assert table in message
        assert key in message


def test_other_numbers_may_be_zero_and_a_second_type_burstable():
    for table, key in EVERY_NUMBER:
        if (table, key) not in LEAST:
            parse_scenario(changed(table, key, 0))
    first = tables()["instance"][0]
    world = parse_scenario({**tables(), "instance": [first, {**first, **BURSTABLE}]})
    assert [kind.burstable for kind in world.instances] == [False, True]


@pytest.mark.parametrize(
    ("slo_ms", "batches", "sustained"),
    [
        (1000.0, ((1, 25.0), (4, 62.0), (16, 240.0)), 16 / 0.240),
        (300.0, ((1, 18.0), (8, 120.0)), 8 / 0.120),
        (200.0, ((1, 10.0), (32, 165.0)), 19 / 0.100),  # between two measured sizes
        (30.0, ((1, 25.0), (4, 62.0)), 1 / 0.025),  # single images, where no two batches fit
    ],
)
def test_the_sustained_rate_is_the_largest_with_two_batches_in_the_objective(slo_ms, batches, sustained):
    kind = InstanceType("gpu", 1.0, 0.0, 60.0, 0.0, 1.0, batches)
    assert kind.sustained_qps(slo_ms) == pytest.approx(sustained)


@given(st.lists(st.floats(0.1, 50.0), min_size=1, max_size=6), st.floats(1.0, 500.0))
def test_a_tuned_machine_is_consistent(steps, slo_ms):
    sizes = [2**power for power in range(len(steps))]
    profile = Profile(tuple(zip(sizes, accumulate(steps), strict=True))).tidied()
    assume(profile.batch_ms(1) <= slo_ms)
    tuning = tune(profile, slo_ms)
    used = [batch for batch in profile.batches if batch[0] < tuning.most]
    batches = (*used, (tuning.most, tuning.batch_ms))
    kind = InstanceType("gpu", 1.0, 0.0, 60.0, 0.0, tuning.sustained_qps, batches)
    assert kind.warning(slo_ms) is None


@pytest.mark.parametrize(("qps", "right"), [(60.0, True), (66.0, True), (30.0, False), (150.0, False)])
def test_a_rate_inconsistent_with_the_batches_is_warned_of(qps, right):
    kind = InstanceType("gpu", 1.0, 0.0, 60.0, 0.0, qps, ((1, 18.0), (8, 120.0)))
    warning = kind.warning(300.0)
    assert (warning is None) == right
    if warning is not None:
        assert "set qps to about 60" in warning
