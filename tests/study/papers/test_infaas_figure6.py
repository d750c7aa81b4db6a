"""Figure 6 of INFaaS redone: what a fixed or replicated variant cannot do, and what it costs more."""

import pytest

from serfer_bench.study.papers.infaas.figure6 import FLAT, FLUCTUATING, INFAAS, STEADY, run

pytestmark = pytest.mark.weekly


def by_system(load, seconds=None):
    return {row.system: row for row in run(load, seconds)}


def test_under_a_low_load_the_gpu_costs_many_times_what_infaas_does():
    rows = by_system(FLAT)
    assert min(rows["Clipper+ GPU"].cost_ratio, rows["SM+ GPU"].cost_ratio) > 10
    assert rows[INFAAS].qps == pytest.approx(rows["Clipper+ GPU"].qps, rel=0.02)


def test_under_a_high_load_infaas_upgrades_to_what_serves_it_and_cpus_serve_ten_queries_a_second():
    rows = by_system(STEADY, 30.0)
    assert rows["Clipper+ CPU"].qps == pytest.approx(10.0, abs=0.5)
    assert rows[INFAAS].qps > 30 * rows["Clipper+ CPU"].qps
    assert rows["SM+ GPU"].qps < rows["Clipper+ GPU"].qps


def test_under_spikes_infaas_answers_what_cpus_cannot_at_a_part_of_the_gpu_s_cost():
    rows = by_system(FLUCTUATING)
    assert rows["Clipper+ GPU"].cost_ratio > 2
    assert rows[INFAAS].late_share < 0.5 * rows["SM+ CPU"].late_share
