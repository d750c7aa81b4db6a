"""Queries divide among instances in proportion to the rates of section 3.2, whatever the order they come in."""

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.control.scenario import LambdaTarget, Scenario
from serfer_bench.study.policies.nonuniform.rate_dispatcher import RateDispatcher, shares
from serfer_bench.study.policies.nonuniform.sizes import size_of
from tests.study.policies.nonuniform.test_sizes import GPU, SLO_MS

WORLD = Scenario(SLO_MS, LambdaTarget(1e-5, 60.0, 600.0, 1000, 1.0, 600.0), (GPU,))


@dataclass(frozen=True)
class Place:
    name: str
    kind: int
    batch: int


TARGETS = st.lists(st.sampled_from([0, 1, 2, 4, 8, 16]), min_size=1, max_size=6).map(
    lambda batches: [Place(f"i{number}", 0, batch) for number, batch in enumerate(batches)]
)


def ranges(targets):
    return {one.name: size_of(GPU, one.batch, SLO_MS) for one in targets}


def dispatched(rate, targets, queries, admits=lambda _place: True, images=1):
    dispatcher = RateDispatcher(WORLD)
    dispatcher.observe(rate, 1e6)
    found = Counter()
    for _ in range(queries):
        place = dispatcher.choose(targets, images, admits)
        found["" if place is None else targets[place].name] += images
    return found


@given(st.floats(0.0, 5000.0), TARGETS)
def test_shares_sum_to_one_and_no_instance_gets_more_than_its_upper_bound(rate, targets):
    found = shares(rate, targets, WORLD)
    assert sum(found.of.values()) + found.rest == pytest.approx(1.0)
    for name, known in ranges(targets).items():
        assert rate * found.of[name] <= known.up * (1 + 1e-9)


@given(st.floats(0.0, 1.0), TARGETS)
def test_in_the_steady_case_each_instance_gets_a_rate_of_its_range_and_lambda_nothing(part, targets):
    known = ranges(targets)
    low, up = sum(one.low for one in known.values()), sum(one.up for one in known.values())
    rate = 0.8 * low + 0.2 * up + part * (0.8 * (up - low))
    found = shares(rate, targets, WORLD)
    assert found.rest == pytest.approx(0.0, abs=1e-9)
    for name, one in known.items():
        assert one.low * (1 - 1e-9) <= rate * found.of[name] <= one.up * (1 + 1e-9)


@given(st.floats(0.0, 3000.0), TARGETS, st.integers(1, 3))
def test_every_stretch_of_queries_is_divided_by_the_shares_to_within_a_query_for_each_target(rate, targets, images):
    found, expected = dispatched(rate, targets, 300, images=images), shares(rate, targets, WORLD)
    most = images * (len(targets) + 1)
    for name, share in {**expected.of, "": expected.rest}.items():
        assert abs(found[name] - 300 * images * share) <= most


def test_the_order_mixes_the_instances():
    targets = [Place("large", 0, 16), Place("small", 0, 1)]
    dispatcher = RateDispatcher(WORLD)
    dispatcher.observe(300.0, 1e6)
    order = [dispatcher.choose(targets, 1, lambda _place: True) for _ in range(100)]
    share = shares(300.0, targets, WORLD).of["small"]
    assert max(len(run) for run in "".join(map(str, order)).split("1")) <= 1 / share + 1


def test_an_instance_that_would_be_late_passes_its_turn_on_and_lambda_has_what_none_admits():
    targets = [Place("a", 0, 8), Place("b", 0, 8)]
    assert dispatched(100.0, targets, 50, admits=lambda place: place == 1) == {"b": 50}
    assert dispatched(100.0, targets, 50, admits=lambda _place: False) == {"": 50}


def test_without_instances_all_is_lambdas():
    assert dispatched(100.0, [], 10) == {"": 10}
    assert dispatched(0.0, [], 10) == {"": 10}


@given(TARGETS, st.floats(1.0, 2000.0), st.integers(2, 4))
def test_drivers_that_divide_alone_divide_as_one(targets, rate, drivers):
    expected = shares(rate, targets, WORLD)
    total = sum((dispatched(rate, targets, 200) for _ in range(drivers)), Counter())
    for name, share in expected.of.items():
        assert abs(total[name] - drivers * 200 * share) <= drivers * (len(targets) + 1)
