"""INFaaS' evaluation redone: figures 5 to 8, Table 7 and the scaling of section 4.2, on little loads."""

import numpy as np
import pytest
from typer.testing import CliRunner

from serfer.cli.main import app
from serfer.core.errors import UsageError
from serfer_bench.core.workload import Sent
from serfer_bench.study.papers.infaas import figure5, figure7, figure8
from serfer_bench.study.papers.infaas.day import GENERATED, pressed, read_day, smoothed
from serfer_bench.study.papers.infaas.figure8 import Load, Together, _one, _Seen
from tests.bench.running import rows

pytestmark = pytest.mark.weekly


DAY = 1.5 - np.cos(np.arange(1440) / 1440 * 2 * np.pi)


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.csv"
    rows = [f"{minute},{round(600 * rate)}" for minute, rate in enumerate(np.tile(DAY, 2))]
    path.write_text("minute,requests\n" + "\n".join(rows) + "\n")
    return path


def test_a_day_is_pressed_into_a_range_or_smoothed_and_about_its_queries_stay():
    rates = pressed(DAY, 50.0, 500.0, 20_000)
    assert (rates.min(), rates.max()) == (pytest.approx(50.0), pytest.approx(500.0))
    assert rates.sum() == pytest.approx(20_000, rel=0.02)
    jumping = DAY + 5.0 * (np.arange(1440) % 60 == 0)
    assert smoothed(jumping).sum() == pytest.approx(jumping.sum(), rel=0.02)
    assert np.abs(np.diff(smoothed(jumping))).max() < 0.2


def test_a_day_is_read_from_a_trace_by_its_number_or_generated_from_the_seed(trace):
    assert len(read_day(str(trace), 1, 0, print)) == 1440
    with pytest.raises(UsageError, match="has no whole day 2"):
        read_day(str(trace), 2, 0, print)
    days = [read_day(GENERATED, 1, seed, print) for seed in (0, 0, 1)]
    assert np.array_equal(days[0], days[1])
    assert not np.array_equal(days[0], days[2])


def test_variants_that_scale_answer_as_much_as_each_baseline_and_cost_less():
    rows = {row.system: row for row in figure5.run("a day", DAY, queries=16_000)}
    ours = rows[figure5.INFAAS]
    assert all(rows[name].qps < 1.001 * ours.qps for name in (figure5.CLIPPER, figure5.SM))
    assert all(rows[name].usd_ratio > 1.2 for name in (figure5.CLIPPER, figure5.SM))


def test_the_command_shows_all_systems_and_networks_under_both_forms_of_the_day_by_seed(trace, monkeypatch):
    monkeypatch.setattr(figure7, "_LOW", 5.0)
    monkeypatch.setattr(figure7, "_HIGH", 50.0)
    monkeypatch.setattr(figure7, "_QUERIES", 3000)
    found = rows("study", "paper", "infaas", "--figure", "7", "--trace", trace, "--day", "1", "--seeds", "2")
    assert len(found) == 2 * 2 * 4 * 2
    assert {row["seed"] for row in found} == {0, 1}


LOAD = Load(low=1.0, high=5.0, phase_s=10.0, phases=4, slo_ms=500.0)


def test_the_load_alternates_between_its_rates():
    arrivals = LOAD.arrivals()
    counts = [sum(10 * phase <= at < 10 * phase + 10 for at in arrivals) for phase in range(4)]
    assert counts == [10, 50, 10, 50]
    assert arrivals == sorted(arrivals)
    assert LOAD.seconds == 40


@pytest.mark.parametrize(
    ("seen", "above"),
    [
        ([], (0.0, 0)),
        ([(0, 0.1, 0), (1, 0.3, 5), (2, 0.4, 9)], (0.0, 0)),
        ([(0, 0.1, 0), (1, 0.5, 5), (2, 0.6, 6), (3, 0.9, 6), (4, 0.1, 8)], (0.6, 1)),
    ],
)
def test_windows_count_as_above_that_ended_between_two_such_seconds(seen, above):
    assert _Seen(seen).above(0.40) == above


def test_a_query_is_late_after_the_objective_or_without_an_answer_and_what_was_not_there_has_no_figures(
    monkeypatch, tmp_path
):
    ends = [
        Sent(0, 0.0, 0.0, 0.2, result=200),
        Sent(1, 0.0, 0.0, 0.6, result=200),
        Sent(2, 0.0, 0.0, 0.1, result=429),
        Sent(3, 0.0, 0.0, 0.1, error="NoAnswer"),
    ]

    async def run(_testbed, _load, _url, _files, _arrivals, seen):
        seen.at += [(0.0, 0.1, 0), (39.0, 0.1, 80)]
        return ends

    monkeypatch.setattr("serfer_bench.study.papers.infaas.figure8._run", run)
    row = _one(figure8.Testbed(tmp_path, tmp_path, b""), LOAD, "both", "http://here", "run", online=True)
    assert (row.queries, row.answered, row.late, row.windows, row.windows_per_s) == (4, 2, 0.75, 80, 2.0)
    assert row.p50_ms == pytest.approx(400.0)
    assert row.shown["late"] == "75.0%"
    shown = Together("offline alone", 0, 0, 0.0, 0.0, 0.0, 0.0, 7, 0, 0.7).shown
    assert (shown["p50 ms"], shown["late"], shown["windows"]) == ("", "", "7")


def test_the_heuristic_is_compared_with_the_programme_for_each_number_of_networks():
    found = rows("study", "paper", "infaas", "--section", "4.2", "--networks", 1, "--networks", 3, "--loads", 5)
    assert [(row["networks"], row["loads"]) for row in found] == [(1, 5), (3, 5)]
    for row in found:
        assert 1 - 1e-9 <= row["ratio_median"] <= row["ratio_p90"] <= row["ratio_max"]
        assert 0 < row["program_ms"] <= row["program_max_ms"]


COMMAND = ("study", "paper", "infaas", "--table", "7", "--queries", "100")


def test_selections_are_timed_for_every_mix_of_states_beside_infaas_and_may_be_bounded():
    found = rows(*COMMAND)
    assert len(found) == 15
    assert {row["variants"] for row in found} == {200}
    assert all(0 < row["p50_us"] <= row["p99_us"] for row in found)
    published = {(row["states"], row["query"]): row["published_ms"] for row in found}
    assert published["active", "asked"] == pytest.approx(2.2)
    assert published["overloaded", "asked"] == pytest.approx(3.5)
    assert published["mixed", "any"] is None
    assert CliRunner().invoke(app, [*COMMAND, "--at-most", "0.0001"]).exit_code == 1
