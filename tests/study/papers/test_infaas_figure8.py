"""INFaaS' figure 8: the load that it offers, and what it counts above the threshold."""

import pytest

from serfer_bench.core.workload import Sent
from serfer_bench.study.papers.infaas import figure8
from serfer_bench.study.papers.infaas.figure8 import Load, Together, _one, _Seen

pytestmark = pytest.mark.weekly

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


def test_a_query_is_late_after_the_objective_or_without_an_answer(monkeypatch, tmp_path):
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


def test_what_was_not_there_has_no_figures():
    shown = Together("offline alone", 0, 0, 0.0, 0.0, 0.0, 0.0, 7, 0, 0.7).shown
    assert (shown["p50 ms"], shown["late"], shown["windows"]) == ("", "", "7")
