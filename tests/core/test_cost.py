from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.aws import shipped_aws
from serfer.core.cost import Roofline, invocation_usd, operator_seconds, task_seconds

FACTS = shipped_aws()


@pytest.mark.parametrize(("milliseconds", "billed"), [(0.01, 1), (1, 1), (1.0001, 2), (99.2, 100), (100, 100)])
def test_time_is_billed_in_whole_milliseconds_rounded_up(milliseconds, billed):
    assert invocation_usd(1024, milliseconds, FACTS) == pytest.approx(0.2e-6 + billed / 1000 * 0.0000166667, rel=1e-12)


def test_a_gigabyte_for_a_second_costs_what_aws_lists():
    assert invocation_usd(1024, 1000, FACTS) == pytest.approx(0.0000168667)


def test_a_million_invocations_at_one_vcpu_and_120_ms():
    """By hand: 1769/1024 GB * 0.12 s * 1e6 = 207,304.6875 GB-s at 0.0000166667, plus 0.20 for the requests."""
    assert 1e6 * invocation_usd(1769, 120, FACTS) == pytest.approx(3.45508503 + 0.20, abs=1e-4)


@pytest.mark.parametrize(("memory", "usd"), [(512, 0.000000834), (1216, 0.000001980), (2048, 0.000003334)])
def test_100_ms_cost_what_the_serfer_paper_lists(memory, usd):
    """Table 2 of the paper, which counts no requests."""
    assert invocation_usd(memory, 100, FACTS) - FACTS.price_request == pytest.approx(usd, abs=1e-9)


def test_a_query_costs_what_the_serfer_paper_says():
    """Equation 2 over Table 2: (workers, MB, ms) of each layer; 0.00014271638 dollars a query."""
    layers = [(4, 512, 124), (4, 1216, 116), (1, 2048, 3881)]
    usd = sum(count * (invocation_usd(memory, ms, FACTS) - FACTS.price_request) for count, memory, ms in layers)
    assert usd == pytest.approx(0.00014271638, rel=1e-3)


@given(st.integers(128, 10240), st.floats(0, 900_000), st.floats(0, 1000))
def test_more_time_never_costs_less(memory, milliseconds, more):
    assert invocation_usd(memory, milliseconds, FACTS) <= invocation_usd(memory, milliseconds + more, FACTS)


def test_an_operator_is_as_slow_as_its_slower_ceiling():
    roofline = Roofline(macs_per_s=100, bytes_per_s=10)
    assert operator_seconds(200, 10, roofline) == 2
    assert operator_seconds(100, 50, roofline) == 5


def test_a_tasks_time_adds_invoke_transfer_and_compute():
    facts = replace(FACTS, invoke_latency=0.5, bandwidth=10.0)
    assert task_seconds(2.0, 30, 1769, facts) == pytest.approx(0.5 + 3 + 2)


@pytest.mark.parametrize(("memory", "compute"), [(1769, 1.0), (10240, 1.0), (884.5, 2.0), (128, 1769 / 128)])
def test_less_memory_is_a_share_of_a_vcpu_and_more_is_no_faster(memory, compute):
    facts = replace(FACTS, invoke_latency=1e-9, bandwidth=1e18)
    assert task_seconds(1.0, 0, memory, facts) == pytest.approx(compute)
