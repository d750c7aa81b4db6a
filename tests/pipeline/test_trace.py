import json
import os
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.core.errors import InputError, UsageError
from serfer.core.keys import StoreCounts
from serfer.core.plan import Gang
from serfer.core.run_machine import (
    Attempt,
    Failure,
    FailureKind,
    Run,
    StageRun,
    TaskDone,
    TaskFailed,
    TaskStarted,
    TileRun,
    TimePassed,
)
from serfer.core.wire import Report
from serfer.drivers.driver import Answer, Overheads, WarmUpRecord
from serfer.pipeline.trace import TracedQuery, check_trace, trace_events, write_trace
from tests.core.plans import small_plan

PLAN = small_plan()
STEPS = ("cold start", "read", "compute", "write")
FAILED = Failure(FailureKind.THROTTLED, "TooManyRequestsException", "slow down")


def report(init_ms=0.0, read_ms=1.0, compute_ms=2.0, write_ms=3.0, environment="e"):
    return Report(
        environment, init_ms, read_ms, compute_ms, write_ms, read_ms + compute_ms + write_ms, 1, 1, StoreCounts(5, 6)
    )


def answered(submitted, started, ended, result=None, number=0):
    return Attempt(number, submitted, started, ended, result or report())


def tile(*attempts):
    return TileRun([*attempts], next(one.result for one in attempts if isinstance(one.result, Report)))


def query(*stages, name="a.jpg", submitted=None, puts=0):
    """A query of stages, each given by its tiles: it came 5 ms before the first, and ended 1 ms after the last."""
    runs = [
        StageRun(min(one.requested for run in tiles for one in run.attempts), [*tiles], max(map(last, tiles)))
        for tiles in stages
    ]
    start, end = runs[0].started, runs[-1].ended
    came = start - 0.005 if submitted is None else submitted
    answer = Answer("q", start - 0.001, end, runs, [], [0, 0], Overheads(counts=StoreCounts(puts=puts)))
    return TracedQuery(name, came, start - 0.002, end + 0.001, answer)


def last(run):
    return max(one.ended for one in run.attempts if one.ended is not None)


MS = st.one_of(st.just(0.0), st.floats(0, 3000))
SECONDS = st.one_of(st.just(0.0), st.floats(0, 2))
REPORTS = st.builds(replace, st.builds(report, MS, MS, MS, MS, st.sampled_from("ef")), shared=st.integers(1, 3))


@st.composite
def tiles(draw, released):
    """Attempts that failed one after the other, then one that answered, perhaps beside one that was given up."""
    attempts, now = [], released
    for number in range(draw(st.integers(0, 2))):
        started = now + draw(SECONDS)
        attempts.append(Attempt(number, now, started, started + draw(SECONDS), FAILED))
        now = attempts[-1].ended + draw(SECONDS)
    started = now + draw(SECONDS)
    tile = answered(now, started, started + draw(SECONDS), draw(REPORTS), len(attempts))
    attempts.append(tile)
    if draw(st.booleans()):
        begun = draw(st.sampled_from([None, started, tile.ended]))
        attempts.append(Attempt(len(attempts), started, begun))
    return TileRun(attempts, tile.result)


@st.composite
def queries(draw):
    submitted = draw(st.floats(0, 1e6))
    cut = submitted + draw(SECONDS)
    begun = now = cut + draw(SECONDS)
    runs = []
    for stage in PLAN.stages:
        released = now
        tiles_ = [draw(tiles(released)) for _ in stage.tiles]
        now = max(map(last, tiles_))
        runs.append(StageRun(released, tiles_, now))
    answer = Answer("q", begun, now, runs, [], [0, 0], Overheads(counts=StoreCounts(puts=draw(st.integers(0, 1)))))
    return TracedQuery("a.jpg", submitted, cut, now + draw(SECONDS), answer)


SOME = st.lists(queries(), min_size=1, max_size=3)


def spans(events, kind=None):
    return [event for event in events if event["ph"] == "X" and kind in (None, event["cat"])]


def end(event):
    return event["ts"] + event["dur"]


def inside(events, outer):
    return [one for one in spans(events) if one["tid"] == outer["tid"] and outer["ts"] <= one["ts"] < end(outer)]


def names(events, kind="thread_name"):
    """What rows or processes are called."""
    return {event["tid"] or event["pid"]: event["args"]["name"] for event in events if event["name"] == kind}


def arrows(events):
    """The span at which each arrow begins and the one at which it ends: a viewer takes the last one before it there."""
    by_id, before = defaultdict(dict), {}
    for event in events:
        if event["ph"] == "X":
            before[event["tid"]] = event
        elif event["ph"] in "sf":
            assert event["ph"] not in by_id[event["id"]]
            assert event["ts"] == before[event["tid"]]["ts"]
            by_id[event["id"]][event["ph"]] = before[event["tid"]]
    return [(ends["s"], ends["f"]) for ends in by_id.values()]


def attempts(traced):
    return [one for each in traced for stage in each.answer.stages for run in stage.tiles for one in run.attempts]


def reports(traced):
    return [one.result for one in attempts(traced) if isinstance(one.result, Report)]


class TestAnyQueries:
    @settings(deadline=None)
    @given(SOME)
    def test_spans_of_a_row_nest_in_the_order_of_the_file(self, traced):
        """Viewers sort by start, keep the file's order among equals, and drop whatever overlaps without nesting."""
        rows = defaultdict(list)
        for event in spans(trace_events(PLAN, traced)):
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            rows[event["pid"], event["tid"]].append(event)
        for row in rows.values():
            around = []
            for event in sorted(row, key=lambda one: one["ts"]):
                while around and end(around[-1]) <= event["ts"] and end(around[-1]) < end(event):
                    around.pop()
                assert not around or end(event) <= end(around[-1])
                around.append(event)

    @settings(deadline=None)
    @given(SOME)
    def test_a_worker_stands_in_the_middle_of_its_invocation(self, traced):
        drawn = arrows(trace_events(PLAN, traced))
        assert len(drawn) == len(reports(traced))
        for invoke, work in drawn:
            assert (invoke["cat"], work["cat"]) == ("invoke", "work")
            before, after = work["ts"] - invoke["ts"], end(invoke) - end(work)
            assert before >= 0
            assert 0 <= after - before <= 1
            assert work["args"]["network_and_service_ms"] == pytest.approx((before + after) / 1000)

    @settings(deadline=None)
    @given(SOME)
    def test_all_worker_reports_are_in_the_trace(self, traced):
        events = trace_events(PLAN, traced)
        reported = [(one.read_ms, one.compute_ms, one.write_ms) for one in reports(traced)]
        for step, wanted in zip(STEPS[1:], zip(*reported, strict=True), strict=True):
            assert sorted(one["args"]["ms"] for one in spans(events, step)) == sorted(wanted)
        cold = [one.init_ms for one in reports(traced) if one.init_ms]
        assert sorted(one["args"]["ms"] for one in spans(events, "cold start")) == sorted(cold)
        for work in spans(events, "work"):
            shown = [one["dur"] for one in inside(events, work) if one["cat"] in STEPS]
            assert sum(shown) == pytest.approx(work["dur"], abs=2)

    @settings(deadline=None)
    @given(SOME)
    def test_an_attempt_is_the_queue_and_the_invocation(self, traced):
        events = trace_events(PLAN, traced)
        assert len(spans(events, "task")) == len(spans(events, "queue")) == len(attempts(traced))
        sent = [one for one in attempts(traced) if one.started is not None]
        assert len(spans(events, "invoke")) == len(sent)
        wanted = sum(one.ended - one.started for one in sent if one.ended is not None)
        closed = [one for one in spans(events, "task") if not one["args"]["outcome"].startswith("given up")]
        given_up = [one for one in spans(events, "task") if one not in closed]
        assert len(given_up) == sum(one.ended is None for one in attempts(traced))
        shown = sum(one["dur"] for one in closed) / 1e6
        assert shown == pytest.approx(wanted + sum(one.started - one.requested for one in sent if one.ended), abs=1e-4)

    @settings(deadline=None)
    @given(SOME)
    def test_a_query_is_its_parts(self, traced):
        events = trace_events(PLAN, traced)
        assert len(spans(events, "query")) == len(traced)
        assert min(one["ts"] for one in spans(events)) == 0
        for kind, wanted in [
            ("query", sum(one.answered - one.submitted for one in traced)),
            ("split", sum(one.cut - one.submitted for one in traced)),
            ("stage", sum(stage.ended - stage.started for one in traced for stage in one.answer.stages)),
            ("merge", sum(one.answered - one.answer.ended for one in traced)),
        ]:
            shown = sum(one["dur"] for one in spans(events, kind) if one["name"] != "store crops")
            assert shown / 1e6 == pytest.approx(wanted, abs=1e-5)

    @settings(deadline=None)
    @given(SOME)
    def test_every_row_has_a_name_of_its_own_and_belongs_to_a_named_process(self, traced):
        events = trace_events(PLAN, traced)
        processes, rows = names(events, "process_name"), names(events)
        assert [*processes.values()] == ["driver", "stage-0 workers", "stage-1 workers"]
        places = {(event["pid"], event["tid"]) for event in spans(events)}
        assert {tid for _, tid in places} == set(rows)
        assert len({(pid, rows[tid]) for pid, tid in places}) == len(rows)

    @settings(deadline=None)
    @given(SOME)
    def test_the_events_are_json(self, traced):
        events = trace_events(PLAN, traced)
        assert json.loads(json.dumps(events, allow_nan=False)) == events


ONE = query(
    [tile(answered(10.0, 10.002, 10.1, report(init_ms=50.0, environment="x"))), tile(answered(10.0, 10.003, 10.05))],
    [tile(answered(10.1, 10.101, 10.121))],
)


def test_times_are_microseconds_since_the_trace_began():
    events = trace_events(PLAN, [ONE])
    at = {one["name"]: (one["ts"], one["dur"]) for one in spans(events) if one["pid"] == 1}
    assert at["a.jpg"] == (0, 127_000)
    assert at["split"] == (0, 3_000)
    assert at["stage-0"] == (5_000, 100_000)
    assert at["stage-0 tile 0"] == (5_000, 100_000)
    assert at["stage-1"] == (105_000, 21_000)
    assert at["merge"] == (126_000, 1_000)
    [cold] = spans(events, "cold start")
    [compute, *_] = [one for one in spans(events, "compute") if one["tid"] == cold["tid"]]
    assert (cold["ts"], cold["dur"]) == (7_000 + (98_000 - 56_000) // 2, 50_000)
    assert (compute["ts"], compute["dur"]) == (end(cold) + 1_000, 2_000)


def test_a_span_says_whose_it_is():
    events = trace_events(PLAN, [ONE])
    work = next(one for one in spans(events, "work") if one["args"]["init_ms"])
    whose = {"name": "a.jpg", "query": "q", "function": PLAN.function(0, 0), "environment": "x"}
    times = {"init_ms": 50.0, "fetch_ms": 0.0, "total_ms": 6.0, "shared": 1, "network_and_service_ms": 42.0}
    counts = {"bytes_put": 5, "bytes_get": 6, "puts": 0, "gets": 0, "exists": 0, "sessions": 1, "weight_loads": 1}
    assert work["args"] == {**whose, **times, **counts, "placed": "in the middle of its invocation"}
    assert spans(events, "task")[0]["args"]["outcome"] == "answered"


def test_a_cold_start_from_before_the_invocation_gives_way_to_the_work():
    """An environment may start for another task, or early: its cold start is not this invocation's."""
    events = trace_events(PLAN, [query([tile(answered(0, 0, 0.010, report(init_ms=500)))], [tile(answered(1, 1, 2))])])
    work, *parts = inside(events, spans(events, "work")[0])
    assert [(one["cat"], one["dur"]) for one in parts] == [*zip(STEPS, (4_000, 1_000, 2_000, 3_000), strict=True)]
    assert (parts[0]["args"]["ms"], work["args"]["network_and_service_ms"]) == (500, 0)


def test_a_query_waits_for_all_of_an_invocation_that_it_shares():
    shared = replace(report(init_ms=1), shared=4)
    events = trace_events(PLAN, [query([tile(answered(0, 0, 0.030, shared))], [tile(answered(1, 1, 2))])])
    work, *parts = inside(events, spans(events, "work")[0])
    assert [(one["cat"], one["dur"]) for one in parts] == [*zip(STEPS, (4_000, 4_000, 8_000, 12_000), strict=True)]
    assert [one["args"]["ms"] for one in parts] == [1, 1, 2, 3]
    assert (work["dur"], work["args"]["shared"], work["args"]["network_and_service_ms"]) == (28_000, 4, 2)


def member(*stages, init_ms=0.0):
    """Return the report of a member on each of its stages: (read, wait, compute, write) ms."""
    first, *later = (
        replace(report(0.0 if number else init_ms, read, compute, write), wait_ms=wait, shared=len(stages))
        for number, (read, wait, compute, write) in enumerate(stages)
    )
    return replace(first, later=tuple(later))


GANG = replace(PLAN, gangs=(Gang(0, 2, 30.0, 1e-6),))


def ran(*events, started=10.0):
    """Return the traced query of a run of the gang, by the run machine; `events` come at given times."""
    run = Run([2, 1], 1000.0, 0, gangs={0: 2})
    run.start(started)
    for time, event in events:
        run.handle(event, time)
    answer = Answer("q", started - 0.001, events[-1][0], run.stages, [], [0, 0], Overheads())
    return TracedQuery("a.jpg", started - 0.005, started - 0.002, events[-1][0] + 0.001, answer)


def test_a_member_of_a_gang_is_one_invocation_with_its_stages_inside():
    first, second = member((1, 0, 20, 2), (12, 10, 5, 3), init_ms=4), member((1, 0, 30, 2))
    events = trace_events(
        GANG,
        [
            ran(
                *((10.001, TaskStarted(0, tile, 0)) for tile in (0, 1)),
                (10.035, TaskDone(0, 1, 0, second)),
                (10.061, TaskDone(0, 0, 0, first)),
            )
        ],
    )
    assert [one["name"] for one in spans(events, "task")] == ["stage-0..1 tile 0", "stage-0..1 tile 1"]
    assert len(spans(events, "work")) == len(arrows(events)) == 2
    assert sorted(one["name"] for one in spans(events, "member stage")) == ["stage-0", "stage-1"]
    work, *parts = inside(events, next(one for one in spans(events, "work") if one["args"]["init_ms"]))
    assert (work["args"]["total_ms"], work["args"]["shared"], work["args"]["bytes_get"]) == (43, 1, 12)
    assert work["args"]["network_and_service_ms"] == 13
    steps = [(one["name"], one["dur"]) for one in parts]
    assert steps == [
        ("cold start", 4_000),
        ("stage-0", 23_000),
        *(("read", 1_000), ("compute", 20_000), ("write", 2_000)),
        ("stage-1", 20_000),
        *(("wait", 10_000), ("read", 2_000), ("compute", 5_000), ("write", 3_000)),
    ]
    assert [one["args"].get("gang") for one in spans(events, "stage")] == [0, 0]
    assert names(events, "process_name")[2] == "stage-0..1 workers"


def test_members_of_an_aborted_gang_stay_in_the_trace():
    traced = ran(
        *((10.001, TaskStarted(0, tile, 0)) for tile in (0, 1)),
        (10.002, TaskFailed(0, 1, 0, FAILED)),
        (11.0, TimePassed()),
        *((11.0, TaskStarted(0, tile, 1)) for tile in (0, 1)),
        *((11.1, TaskDone(0, tile, 1, report())) for tile in (0, 1)),
        (11.1, TaskStarted(1, 0, 0)),
        (11.2, TaskDone(1, 0, 0, report())),
    )
    events = trace_events(GANG, [traced])
    assert {one["name"]: one["args"]["outcome"] for one in spans(events, "task")} == {
        "stage-0..1 tile 0": "given up: its gang was aborted",
        "stage-0..1 tile 1": "throttled: slow down",
        "stage-0 tile 0 (retry 1)": "answered",
        "stage-0 tile 1 (retry 1)": "answered",
        "stage-1 tile 0": "answered",
    }
    assert [one["args"].get("gang") for one in spans(events, "stage")] == [None, None]


def test_crops_that_went_through_the_store_are_seen():
    assert "store crops" not in [one["name"] for one in spans(trace_events(PLAN, [ONE]))]
    stages = [stage.tiles for stage in ONE.answer.stages]
    [put] = [one for one in spans(trace_events(PLAN, [query(*stages, puts=2)])) if one["name"] == "store crops"]
    assert (put["ts"], put["dur"]) == (4_000, 1_000)


def test_retries_and_hedges_are_named_and_say_how_they_ended():
    retried = tile(Attempt(0, 1.0, 1.1, 1.2, FAILED), answered(1.5, 1.6, 1.9, number=1))
    hedged = tile(Attempt(0, 1.0, 1.1), answered(1.4, 1.5, 1.8, number=1))
    unsent = tile(answered(2.0, 2.1, 2.8), Attempt(1, 2.4))
    events = trace_events(PLAN, [query([retried, hedged], [unsent])])
    outcomes = {one["name"]: one["args"]["outcome"] for one in spans(events, "task")}
    assert outcomes == {
        "stage-0 tile 0": "throttled: slow down",
        "stage-0 tile 0 (retry 1)": "answered",
        "stage-0 tile 1": "given up: another attempt answered first",
        "stage-0 tile 1 (hedge 1)": "answered",
        "stage-1 tile 0": "answered",
        "stage-1 tile 0 (hedge 1)": "given up: another attempt answered first",
    }
    assert sorted(one["name"] for one in spans(events, "work")) == [
        "stage-0 tile 0 (retry 1)",
        "stage-0 tile 1 (hedge 1)",
        "stage-1 tile 0",
    ]
    unsent = next(one for one in spans(events, "task") if one["name"] == "stage-1 tile 0 (hedge 1)")
    assert [one["cat"] for one in inside(events, unsent)] == ["task", "queue"]


def test_queries_one_after_the_other_share_rows_and_those_side_by_side_do_not():
    stages = [stage.tiles for stage in ONE.answer.stages]
    later = query(*([tile(answered(20.0, 20.1, 20.2))] for _ in stages), name="b.jpg")
    assert [*names(trace_events(PLAN, [ONE, later])).values()].count("queries") == 1
    rows = [*names(trace_events(PLAN, [ONE, replace(ONE, name="b.jpg")])).values()]
    assert rows[:2] == ["queries", "queries (2)"]
    assert [row for row in rows if row.startswith("invocations")] == ["invocations"] + [
        f"invocations ({number})" for number in (2, 3, 4)
    ]


def test_names_need_not_be_text(tmp_path):
    write_trace(tmp_path / "out.json", PLAN, [replace(ONE, name=b"\xff.jpg".decode(errors="surrogateescape"))])
    trace = json.loads((tmp_path / "out.json").read_text(encoding="ascii"))
    assert spans(trace["traceEvents"])[0]["name"] == "\\udcff.jpg"
    assert trace["otherData"]["plan"] == PLAN.digest


def test_a_warm_up_of_the_other_plan_is_the_drivers():
    record = WarmUpRecord(0, 1769, ONE.answer.started, 250.0, None, "f" * 64)
    warmed = replace(ONE, answer=replace(ONE.answer, overheads=Overheads(warm_ups=(record,))))
    [span] = spans(trace_events(PLAN, [warmed]), "warm-up")
    assert (span["name"], span["dur"]) == ("plan ffffffffffff warm-up", 250_000)


def test_no_queries_make_an_empty_trace():
    assert trace_events(PLAN, []) == []


def test_a_trace_replaces_an_earlier_file_atomically(tmp_path):
    path = tmp_path / "out.json"
    path.write_text("old")
    check_trace(path)
    assert path.read_text() == "old"
    write_trace(path, PLAN, [ONE])
    assert json.loads(path.read_text())["displayTimeUnit"] == "ms"
    assert [*tmp_path.iterdir()] == [path]


def test_a_place_that_cannot_hold_a_trace_is_refused(tmp_path):
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path, tmp_path / "nowhere" / "out.json", tmp_path / "file" / "out.json", tmp_path / "pipe"):
        with pytest.raises(InputError, match=f"'{place}' cannot be written"):
            check_trace(place)
    with pytest.raises(UsageError, match="--trace takes the path of a file"):
        check_trace(Path("-"))
