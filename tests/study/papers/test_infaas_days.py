"""Figures 5 and 7 of INFaaS redone: many networks, and shared GPUs, under a day that is pressed into minutes."""

import numpy as np
import pytest

from serfer.core.errors import UsageError
from serfer_bench.study.papers.infaas import figure5, figure7
from serfer_bench.study.papers.infaas.day import GENERATED, pressed, read_day, smoothed
from tests.bench.running import rows

pytestmark = pytest.mark.weekly

DAY = 1.5 - np.cos(np.arange(1440) / 1440 * 2 * np.pi)


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.csv"
    rows = [f"{minute},{round(600 * rate)}" for minute, rate in enumerate(np.tile(DAY, 2))]
    path.write_text("minute,requests\n" + "\n".join(rows) + "\n")
    return path


def test_a_pressed_day_has_its_range_and_about_the_queries_that_are_asked_for():
    rates = pressed(DAY, 50.0, 500.0, 20_000)
    assert (rates.min(), rates.max()) == (pytest.approx(50.0), pytest.approx(500.0))
    assert rates.sum() == pytest.approx(20_000, rel=0.02)


def test_hours_means_keep_the_day_s_queries_and_take_its_jumps():
    jumping = DAY + 5.0 * (np.arange(1440) % 60 == 0)
    assert smoothed(jumping).sum() == pytest.approx(jumping.sum(), rel=0.02)
    assert np.abs(np.diff(smoothed(jumping))).max() < 0.2


def test_a_day_that_a_trace_does_not_have_is_refused_by_its_number(trace):
    assert len(read_day(str(trace), 1, 0, print)) == 1440
    with pytest.raises(UsageError, match="has no whole day 2"):
        read_day(str(trace), 2, 0, print)


def test_variants_that_scale_answer_as_much_as_each_baseline_and_cost_less():
    rows = {row.system: row for row in figure5.run("a day", DAY, queries=16_000)}
    ours = rows[figure5.INFAAS]
    assert all(rows[name].qps < 1.001 * ours.qps for name in (figure5.CLIPPER, figure5.SM))
    assert all(rows[name].usd_ratio > 1.2 for name in (figure5.CLIPPER, figure5.SM))


def test_a_network_that_shares_a_gpu_is_slower_than_on_one_of_its_own():
    rows = {(row.system, row.network): row for row in figure7.run("a day", DAY, queries=16_000)}
    assert rows[figure7.INFAAS, figure7.SMALL].p99_ms > 1.2 * rows[figure7.CLIPPER, figure7.SMALL].p99_ms
    alone = {(row.system, row.network): row for row in figure7.run("a day", DAY, sharing=0.0, queries=16_000)}
    assert alone[figure7.INFAAS, figure7.SMALL].p99_ms < 1.2 * alone[figure7.CLIPPER, figure7.SMALL].p99_ms


def test_without_a_trace_a_day_is_generated_from_the_seed():
    days = [read_day(GENERATED, 1, seed, print) for seed in (0, 0, 1)]
    assert np.array_equal(days[0], days[1])
    assert not np.array_equal(days[0], days[2])


def test_the_command_shows_all_systems_and_networks_under_both_forms_of_the_day_by_seed(trace, monkeypatch):
    monkeypatch.setattr(figure7, "_LOW", 5.0)
    monkeypatch.setattr(figure7, "_HIGH", 50.0)
    monkeypatch.setattr(figure7, "_QUERIES", 3000)
    found = rows("study", "paper", "infaas", "--figure", "7", "--trace", trace, "--day", "1", "--seeds", "2")
    assert len(found) == 2 * 2 * 4 * 2
    assert {row["seed"] for row in found} == {0, 1}
