"""SerFer's Table 1 and figures 5 to 14: who is given what, shares of the unsplit network's rate, extrapolations."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.errors import UsageError
from serfer_bench.core.part_times import LAYER, POLL, READ, PartTimes
from serfer_bench.core.processes import held
from serfer_bench.core.quantiles import holds
from serfer_bench.core.system import Totals
from serfer_bench.core.workload import Sent
from serfer_bench.load.results import Log, make_round
from serfer_bench.load.systems import UNSPLIT
from serfer_bench.study.papers.serfer.costs import TABLE_2
from serfer_bench.study.papers.serfer.emulated import paper_ms
from serfer_bench.study.papers.serfer.evaluation import part_rows
from serfer_bench.study.papers.serfer.loads import (
    BURSTS,
    SHARES,
    STEP_FUNCTIONS,
    UNIFORM,
    Load,
    Measured,
    limited,
    load_rows,
)
from tests.bench import running

ALL = (*BURSTS, *UNIFORM, *STEP_FUNCTIONS)
SYSTEMS = sorted({name for load in ALL for name in load.systems})
serfer = partial(running.rows, "study", "paper", "serfer")


def measured(system, images, *seconds, times=(), gap_s=0.0):
    """Return rounds of a burst whose last query ends after so many seconds, the others evenly before."""
    load = Load(images, gap_s, (system,), len(seconds))
    logs = []
    for number, end in enumerate(seconds):
        queries = tuple(Sent(k, 0.0, 0.0, end * (k + 1) / images) for k in range(images))
        logs.append(Log(system, number, queries, dict(times)))
    return Measured(load, system, [make_round(log, Totals(), held(), held()) for log in logs], logs)


@given(st.integers(1, 1200), st.sets(st.sampled_from(SYSTEMS)))
def test_a_limit_leaves_no_load_larger_gives_none_twice_and_drops_no_system_that_was_named(most, systems):
    loads = limited(ALL, most, sorted(systems))
    given_ = [(load.traffic, load.images, name) for load in loads for name in load.systems]
    assert len(given_) == len(set(given_))
    assert all(load.images <= most for load in loads)
    assert {name for _, _, name in given_} == (systems or set(SYSTEMS))
    assert limited(ALL, 1000, ()) == [*ALL]  # those of table 1
    assert [load.arrivals[0][:3] for load in (BURSTS[0], UNIFORM[1])] == [(0.0, 0.0, 0.0), (0.0, 0.2, 0.4)]


def test_a_rate_is_a_share_of_the_unsplit_networks_in_the_same_round_of_the_same_load():
    rows = load_rows([measured("a", 10, 2.0, 4.0), measured("b", 10, 4.0), measured(UNSPLIT, 10, 1.0, 1.0)])
    shares = {row.system: row.of_unsplit for row in rows}
    assert shares == {"a": (0.5, 0.25), "b": (0.25,), UNSPLIT: (1.0, 1.0)}
    assert (rows[0].shown["of unsplit"], rows[0].shown["range"]) == ("0.38", "0.25 to 0.50")
    assert load_rows([measured("a", 10, 2.0)])[0].of_unsplit == ()


def test_bursts_that_a_system_was_not_given_are_extrapolated_from_its_largest_and_uniform_traffic_is_not():
    rows = load_rows([measured("slow", 10, 4.0), measured("slow", 20, 10.0), measured("fast", 100, 2.0)])
    slow = [row for row in rows if row.system == "slow"]
    assert [(row.images, row.figures, row.a_second) for row in slow] == [
        (10, "measured", 2.5),
        (20, "measured", 2.0),
        (100, "extrapolated", 2.0),
    ]
    assert slow[2].latency_ms == tuple(5 * ms for ms in slow[1].latency_ms)
    assert [row.figures for row in rows if row.system == "fast"] == ["measured"]
    rows = load_rows([measured("a", 10, 4.0, gap_s=1.0), measured("b", 50, 4.0, gap_s=1.0)])
    assert [row.figures for row in rows] == ["measured", "measured"]


def test_quantiles_that_the_queries_of_all_rounds_do_not_hold_are_left_empty():
    few, more = load_rows([measured("a", 8, 4.0), measured("a", 32, 4.0, 4.0, 4.0)])
    assert [share for share in SHARES if few.shown[f"{share}% ms"]] == [25, 50, 75, 100]
    assert [share for share in SHARES if more.shown[f"{share}% ms"]] == [5, 10, 25, 50, 75, 90, 95, 100]
    assert [holds(*given_) for given_ in ((100, 99), (99, 99), (0, 100))] == [True, False, False]


def test_parts_are_those_of_the_largest_burst_that_all_who_time_them_were_given():
    rounds = [
        measured("ours", 8, 1.0, times={READ: [1.0]}),
        measured("ours", 100, 1.0, 1.0, times={READ: [2.0, 4.0], LAYER.format(1): [7.0]}),
        measured("ours", 500, 1.0, times={READ: [9.0]}),
        measured("theirs", 8, 1.0, times={POLL: [3.0]}),
        measured("theirs", 100, 1.0, times={POLL: [5.0]}),
        measured("silent", 8, 1.0),
    ]
    rows = [(row.figure, row.part, row.system, row.images, row.timed, row.ms[-1]) for row in part_rows(rounds)]
    assert rows == [
        (5, READ, "ours", 100, 4, 4.0),
        (6, "layer 1", "ours", 100, 2, 7.0),
        (7, POLL, "theirs", 100, 1, 5.0),
    ]
    assert [*part_rows([])] == []


def test_times_are_taken_once_and_stages_beyond_table_2_are_parts_of_its_last_function():
    times = PartTimes()
    times.add(READ, [1.0, 2.0])
    assert {part: [*ms] for part, ms in times.take().items()} == {READ: [1.0, 2.0]}
    assert times.take() == {}
    ms = [layer.ms for layer in TABLE_2]
    assert paper_ms(4) == [*ms, 0.0]
    with pytest.raises(UsageError, match="Table 2 has 3 functions, this plan 2 stages"):
        paper_ms(2)


@pytest.mark.parametrize(
    ("system", "fault"),
    [("pocket", "systems are serfer, .*not 'pocket'"), ("gillis", "gillis is not a system of this")],
)
def test_a_system_that_is_not_there_or_not_in_a_figure_is_refused_before_anything_starts(system, fault):
    with pytest.raises(UsageError, match=fault):
        serfer("--figure", 14, "--system", system)


def test_functions_that_wait_answer_a_burst_in_the_time_that_they_take(directory, settings, monkeypatch):
    monkeypatch.setenv("SERFER_CACHE_DIR", str(settings.cache_dir))
    monkeypatch.setattr("serfer_bench.study.papers.serfer.emulated.measured_ms", lambda *_: [100.0, 0.0, 50.0])
    monkeypatch.setattr("serfer_bench.study.papers.serfer.emulated.paper_ms", lambda stages: [10.0] * stages)
    rows = serfer("emulated", "--plan", directory, "--most", 3)
    assert {(row["images"], row["figures"], row["failed"]) for row in rows} == {(3, "simulated", 0)}
    waited = {row["system"]: row["latency_ms"][0] for row in rows}
    assert waited["times measured here"] >= 150
    assert waited["Table 2's times"] >= 30


@pytest.mark.weekly
def test_table_1_of_one_run_has_every_load_and_what_parts_of_the_bursts_took(lean, settings, monkeypatch):
    monkeypatch.setenv("SERFER_CACHE_DIR", str(settings.cache_dir))
    names = ("serfer", "serfer-repaired", "unsplit", "stepfunctions-express")
    rows = serfer("--table", 1, "--plan", lean, "--most", 2, *(word for name in names for word in ("--system", name)))
    loads = {(row["traffic"], row["system"]) for row in rows if "traffic" in row}
    assert {name for traffic, name in loads if traffic == "burst"} == {"serfer", "serfer-repaired", "unsplit"}
    assert {name for traffic, name in loads if traffic == "one every 0.2 s"} == {"serfer", "serfer-repaired"}
    assert ("one every 0.8 s", "stepfunctions-express") in loads
    assert all(row["figures"] == "measured" and row["failed"] == 0 for row in rows if "traffic" in row)
    assert all(row["of_unsplit"] for row in rows if row.get("traffic") == "burst")
    parts = {(row["part"], row["system"]): row["timed"] for row in rows if "part" in row}
    queries = 2 * 3
    assert parts[LAYER.format(1), "serfer"] == parts[LAYER.format(2), "serfer-repaired"] == queries
    assert parts[POLL, "serfer-repaired"] == 2 * queries
    assert (POLL, "serfer") not in parts
