"""Algorithm 1 of MArk: greedy by the price of a query, launch overhead included. All inputs here are constructed."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.control.scenario import Market
from serfer_bench.study.policies.mark.schedule import Candidate, fill
from tests.control.worlds import scenario

SMALL, LARGE = ("small", Market.ON_DEMAND), ("large", Market.ON_DEMAND)
SPOT = ("small", Market.SPOT)
A_SMALL = Candidate(SMALL, 10.0, 1.0, 4.0)
A_LARGE = Candidate(LARGE, 50.0, 4.0, 20.0)


def test_the_cheapest_type_for_the_load_and_its_duration_is_taken():
    # 60 units of full load: small (4 + 60) / 600 a query, large (20 + 240) / 3000
    assert fill(np.full(60, 50.0), [A_SMALL, A_LARGE], {}) == {LARGE: 1}
    # a load that the large one has no use for: (4 + 60) / 600 against (20 + 240) / 600
    assert fill(np.full(60, 10.0), [A_SMALL, A_LARGE], {}) == {SMALL: 1}
    # over two units its launch is too dear: 5 small ones at (4 + 2) / 20 each, not (20 + 8) / 100
    assert fill(np.full(2, 50.0), [A_SMALL, Candidate(LARGE, 50.0, 4.0, 200.0)], {}) == {SMALL: 5}


def test_running_instances_have_no_launch_overhead_are_taken_once_and_only_where_needed():
    worse = Candidate(SMALL, 10.0, 1.2, 4.0)
    other = Candidate(LARGE, 10.0, 1.0, 60.0)
    # running: 72 / 600; launched again: (60 + 60) / 600 or (4 + 72) / 600
    assert fill(np.full(60, 20.0), [worse, other], {SMALL: 1}) == {SMALL: 2}
    # what is cheaper in the long run replaces a running one that costs more than the other with its launch
    assert fill(np.full(60, 20.0), [Candidate(SMALL, 10.0, 3.0, 4.0), other], {SMALL: 2}) == {LARGE: 2}
    assert fill(np.full(60, 20.0), [Candidate(SMALL, 10.0, 1.9, 4.0), other], {SMALL: 2}) == {SMALL: 2}
    assert fill(np.full(60, 5.0), [A_SMALL], {SMALL: 7}) == {SMALL: 1}
    assert fill(np.zeros(60), [A_SMALL], {SMALL: 7}) == {}


def test_spot_instances_are_candidates_at_their_price():
    cheap = Candidate(SPOT, 10.0, 0.3, 1.2)
    assert fill(np.full(60, 25.0), [A_SMALL, cheap], {}) == {SPOT: 3}
    kind = scenario(usd_per_hour=36.0).instance
    made = Candidate.of(kind, Market.ON_DEMAND, 60.0)
    assert (made.capacity, made.unit_usd, made.launch_usd) == (10.0, pytest.approx(0.6), pytest.approx(2.4))


candidates = st.lists(
    st.builds(
        Candidate,
        st.sampled_from([SMALL, LARGE, SPOT]),
        st.sampled_from([1.0, 7.0, 10.0, 50.0]),
        st.floats(0.1, 10.0),
        st.floats(0.0, 100.0),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda one: one.key,
)


@settings(derandomize=True, max_examples=200)
@given(
    forecast=st.lists(st.floats(0.0, 200.0), min_size=1, max_size=12),
    types=candidates,
    counts=st.lists(st.integers(0, 6), min_size=3, max_size=3),
)
def test_taking_several_at_once_plans_what_one_at_a_time_does(forecast, types, counts):
    running = {one.key: count for one, count in zip(types, counts, strict=False)}
    plan = fill(np.array(forecast), types, running)
    slow = one_by_one(forecast, types, dict(running))
    assert sum(capacity(plan, types)) >= forecast[0] - 1e-6
    assert priced(plan, types, running, len(forecast)) == pytest.approx(priced(slow, types, running, len(forecast)))


def capacity(plan, types):
    return [one.capacity * plan[one.key] for one in types]


def priced(plan, types, running, units):
    return sum(
        plan[one.key] * units * one.unit_usd + max(plan[one.key] - running.get(one.key, 0), 0) * one.launch_usd
        for one in types
    )


def one_by_one(forecast, types, left):
    """Return the plan as the paper writes it: one instance is added, and FILL begins again."""
    plan = Counter()
    while True:
        need = [rate - sum(capacity(plan, types)) for rate in forecast]
        least = 1e-9 * max(one.capacity for one in types)
        if need[0] <= least:
            return plan
        span = next((need[:step] for step, rate in enumerate(need) if rate <= least), need)

        def cost(one, span=span):
            overhead = 0.0 if left.get(one.key) else one.launch_usd
            return (overhead + len(span) * one.unit_usd) / sum(min(rate, one.capacity) for rate in span)

        best = min(types, key=cost)
        if left.get(best.key):
            left[best.key] -= 1
        plan[best.key] += 1
