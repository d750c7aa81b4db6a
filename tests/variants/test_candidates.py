"""Which variants are worth making and having: pure decisions, on any figures."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.plan import Alternative
from serfer.core.variants import Accuracy, Place
from serfer.variants.candidates import (
    GAIN,
    SLACK,
    Candidate,
    choose,
    gains,
    loss,
    plan_requests,
    spread,
    worthwhile_batches,
)

FIGURES = st.floats(0.1, 1000)
ALTERNATIVES = st.lists(
    st.builds(
        Alternative, st.just("stages"), st.integers(1, 40), FIGURES, FIGURES, st.booleans(), st.sampled_from([False])
    ),
    max_size=20,
)


@st.composite
def candidates(draw):
    some = []
    for number in range(draw(st.integers(0, 25))):
        place = draw(st.sampled_from(Place))
        identity = draw(st.sampled_from([f"identity {number}", f"shared {place}"]))
        figures = (draw(FIGURES), draw(FIGURES), draw(FIGURES))
        lost = draw(st.sampled_from([None, 0.0, 0.01, 0.02]))
        some.append(Candidate(f"c{number}", identity, place, draw(st.booleans()), *figures, lost))
    return some


@given(candidates(), st.integers(1, 12))
def test_what_is_kept_is_few_and_each_once(some, most):
    chosen = choose(some, most)
    assert len(chosen.kept) <= most
    assert len({each.identity for each in chosen.kept}) == len(chosen.kept)
    assert {each.name for each in chosen.kept} | chosen.dropped.keys() == {each.name for each in some}
    assert not {each.name for each in chosen.kept} & chosen.dropped.keys()


@given(candidates())
def test_with_room_for_all_what_goes_is_beaten_by_or_the_same_as_what_stays(some):
    chosen = choose(some, len(some) + 1)
    for gone in (each for each in some if each.name in chosen.dropped):
        assert any(kept.beats(gone) or kept.identity == gone.identity for kept in chosen.kept)


@given(candidates(), st.randoms())
def test_the_choice_does_not_depend_on_the_order(some, random):
    shuffled = random.sample(some, len(some))
    assert choose(shuffled, 6) == choose(some, 6)


@pytest.mark.exact
@given(candidates())
def test_the_cheapest_exact_variant_of_each_place_stays_within_slack(some):
    kept = choose(some, len(some) + 1).kept
    for place in Place:
        exact = [each.usd for each in some if each.place is place and each.exact]
        if exact:
            assert min(each.usd for each in kept if each.place is place and each.exact) <= (1 + SLACK) * min(exact)


@pytest.mark.exact
def test_a_variant_that_loses_accuracy_beats_no_exact_one():
    exact = Candidate("exact", "1", Place.FUNCTIONS, exact=True, latency_ms=10, load_ms=10, usd=10)
    lossy = replace(exact, name="lossy", identity="2", exact=False)
    assert choose([exact, lossy], 5).kept == (exact,)
    faster = replace(lossy, latency_ms=5.0)
    assert set(choose([exact, faster], 5).kept) == {exact, faster}


def test_a_faster_variant_that_loses_more_does_not_displace_one_that_loses_less():
    int8 = Candidate("int8", "1", Place.INSTANCE, exact=False, latency_ms=1, load_ms=1, usd=1, loss=0.01)
    fp16 = replace(int8, name="fp16", identity="2", latency_ms=2.0, usd=2.0, loss=0.001)
    assert set(choose([int8, fp16], 5).kept) == {int8, fp16}
    assert choose([int8, replace(fp16, loss=0.01)], 5).kept == (int8,)
    assert set(choose([int8, replace(fp16, loss=None)], 5).kept) == {int8, replace(fp16, loss=None)}


def test_places_do_not_compete_with_each_other():
    one = Candidate("one", "1", Place.FUNCTIONS, exact=True, latency_ms=10, load_ms=10, usd=10)
    other = replace(one, name="other", identity="2", place=Place.INSTANCE, latency_ms=1.0, usd=1.0)
    assert set(choose([one, other], 2).kept) == {one, other}


def test_where_there_is_little_room_the_cheapest_and_the_fastest_stay():
    row = [
        Candidate(f"c{n}", f"{n}", Place.FUNCTIONS, exact=True, latency_ms=100 / n, load_ms=1, usd=n)
        for n in range(1, 10)
    ]
    assert [each.name for each in choose(row, 3).kept] == ["c1", "c5", "c9"]


@given(st.lists(st.integers()), st.integers(0, 9))
def test_spread_keeps_order_and_ends(items, most):
    some = spread(items, most)
    assert len(some) == min(len(items), most)
    if most >= 2 and items:
        assert (some[0], some[-1]) == (items[0], items[-1])


@given(ALTERNATIVES, st.integers(1, 12))
def test_requested_plans_are_on_the_frontier_that_fits(alternatives, most):
    requests = plan_requests(alternatives, most)
    prices = [each.most_usd for each in requests if each.most_usd is not None and each.precision == "fp32"]
    fits = [each for each in alternatives if each.fits]
    assert len(prices) <= most
    assert prices == sorted(prices)
    assert all(price in {each.usd for each in fits} for price in prices)
    reached = [min(each.ms for each in fits if each.usd <= price) for price in prices]
    assert all(faster <= (1 - SLACK) * slower for slower, faster in pairwise(reached))


def test_a_latency_that_is_hinted_at_gets_a_plan_of_its_own():
    assert [each.slo_ms for each in plan_requests([], 5, 80.0) if each.slo_ms] == [80.0]
    assert not any(each.slo_ms for each in plan_requests([], 5))


@given(st.dictionaries(st.sampled_from([1, 4, 8, 16, 32]), FIGURES, min_size=1))
def test_each_larger_batch_that_is_kept_saves_time_an_image(times):
    kept = worthwhile_batches(times)
    assert kept[0] == min(times)
    assert all(times[b] / b <= (1 - GAIN) * times[a] / a for a, b in pairwise(kept))


def test_another_precision_gains_where_some_batch_is_faster():
    assert gains({1: 10.0, 4: 30.0}, {1: 10.0, 4: 40.0})
    assert not gains({1: 9.8, 4: 40.0}, {1: 10.0, 4: 40.0})
    assert not gains({1: 1.0}, {4: 40.0})


@pytest.mark.parametrize(("correct", "lost"), [(90, 0.05), (95, 0.0), (97, 0.0)])
def test_loss_is_what_fewer_images_are_right(correct, lost):
    assert loss(Accuracy(correct, 100), Accuracy(95, 100)) == pytest.approx(lost)
