import json
import os
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.costs.aws import shipped_aws
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
from serfer.pipeline.report import make_report
from serfer.pipeline.result import Result
from serfer.pipeline.trace import check_trace, stage_times, trace_events, write_trace
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


def query(*stages):
    runs = [
        StageRun(min(one.requested for run in tiles for one in run.attempts), [*tiles], max(map(last, tiles)))
        for tiles in stages
    ]
    return traced(runs, runs[0].started, runs[-1].ended)


def traced(runs, start, end, plan=PLAN):
    """Return a query as it is traced: it came 5 ms before its first stage, and ended 1 ms after its last."""
    answer = Answer("q", start - 0.001, end, runs, [], [0, 0], Overheads())
    return "a.jpg", result(answer, start - 0.005, start - 0.002, end + 0.001, plan)


def result(answer, submitted, cut, ended, plan=PLAN):
    report = make_report(plan, answer, (), ended - submitted, shipped_aws().functions)
    return Result({}, report, answer, (submitted, cut), ended, plan=plan)


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
    return "a.jpg", result(answer, submitted, cut, now + draw(SECONDS))


SOME = st.lists(queries(), min_size=1, max_size=3)


def spans(events, *names):
    return [event for event in events if event["ph"] == "X" and (not names or event["name"] in names)]


def tasks(events):
    return [event for event in spans(events) if event["name"].startswith("task ")]


def end(event):
    return event["ts"] + event["dur"]


def inside(events, outer):
    row = [event for event in spans(events) if (event["pid"], event["tid"]) == (outer["pid"], outer["tid"])]
    return [event for event in row if event is not outer and outer["ts"] <= event["ts"] < end(outer)]


def attempts(traces):
    stages = [stage for _, result in traces for stage in result.answer.stages]
    return [attempt for stage in stages for run in stage.tiles for attempt in run.attempts]


class TestAnyQueries:
    @given(SOME)
    def test_spans_of_a_row_nest_in_the_order_of_the_file(self, traces):
        """Viewers sort by start, keep the file's order among equals, and drop whatever overlaps without nesting."""
        rows = defaultdict(list)
        for event in spans(trace_events(traces)):
            assert min(event["ts"], event["dur"]) >= 0
            rows[event["pid"], event["tid"]].append(event)
        for row in rows.values():
            around = []
            for event in sorted(row, key=lambda event: event["ts"]):
                while around and end(around[-1]) <= event["ts"] and end(around[-1]) < end(event):
                    around.pop()
                assert not around or end(event) <= end(around[-1])
                around.append(event)

    @given(SOME)
    def test_worker_stands_in_the_middle_of_its_invocation(self, traces):
        for attempt in attempts(traces):
            for part in stage_times(attempt):
                work = part.report.billed_ms * part.report.shared / 1000
                before, after = part.begun - attempt.started, attempt.ended - part.begun - work
                assert before >= 0
                assert after == pytest.approx(before, abs=1e-6) or (before == 0 and after < 0)

    @given(SOME)
    def test_all_worker_reports_are_in_the_trace(self, traces):
        events = trace_events(traces)
        reports = [attempt.result for attempt in attempts(traces) if isinstance(attempt.result, Report)]
        for step, field in zip(STEPS, ("init_ms", "read_ms", "compute_ms", "write_ms"), strict=True):
            reported = [getattr(report, field) for report in reports]
            assert sorted(event["args"]["ms"] for event in spans(events, step)) == sorted(filter(None, reported))

    @given(SOME)
    def test_query_is_its_parts(self, traces):
        events = trace_events(traces)
        assert min(event["ts"] for event in spans(events)) == 0
        for name, seconds in [
            ("a.jpg", [result.answered - result.split[0] for _, result in traces]),
            ("decode", [result.split[1] - result.split[0] for _, result in traces]),
            ("stage-1", [result.answer.stages[1].ended - result.answer.stages[1].started for _, result in traces]),
        ]:
            shown = [event["dur"] / 1e6 for event in spans(events, name)]
            assert shown == pytest.approx(seconds, abs=2e-6)

    @given(SOME)
    def test_every_row_has_a_name_of_its_own_in_a_named_process_and_all_is_json(self, traces):
        events = trace_events(traces)
        names = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["ph"] == "M"}
        places = {(event["pid"], event["tid"]) for event in spans(events)}
        assert places | {(pid, 0) for pid, _ in places} == set(names)
        assert len({(pid, name) for (pid, _), name in names.items()}) == len(names)
        assert json.loads(json.dumps(events, allow_nan=False)) == events


QUERY = query(
    [tile(answered(10.0, 10.002, 10.1, report(init_ms=50.0, environment="x"))), tile(answered(10.0, 10.003, 10.05))],
    [tile(answered(10.1, 10.101, 10.121))],
)


def test_times_are_microseconds_since_the_trace_began():
    events = trace_events([QUERY])
    at = {event["name"]: (event["ts"], event["dur"]) for event in reversed(spans(events))}
    assert at["a.jpg"] == (0, 127_000)
    assert at["decode"] == (0, 3_000)
    assert at["stage-0"] == (5_000, 100_000)
    assert at["task 0"] == (5_000, 100_000)
    assert at["stage-1"] == (105_000, 21_000)
    [cold] = spans(events, "cold start")
    [compute, *_] = [event for event in spans(events, "compute") if event["tid"] == cold["tid"]]
    assert (cold["ts"], cold["dur"]) == (7_000 + (98_000 - 56_000) // 2, 50_000)
    assert (compute["ts"], compute["dur"]) == (end(cold) + 1_000, 2_000)


def test_query_waits_for_all_of_an_invocation_that_it_shares():
    shared = replace(report(init_ms=1), shared=4)
    events = trace_events([query([tile(answered(0, 0, 0.030, shared))], [tile(answered(1, 1, 2))])])
    steps = inside(events, tasks(events)[0])
    assert [(event["name"], event["dur"]) for event in steps] == [*zip(STEPS, (4000, 4000, 8000, 12000), strict=True)]
    assert [event["args"]["ms"] for event in steps] == [1, 1, 2, 3]


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
    return traced(run.stages, started, events[-1][0], GANG)


def test_member_of_a_gang_is_one_invocation_with_its_stages_inside():
    first, second = member((1, 0, 20, 2), (12, 10, 5, 3), init_ms=4), member((1, 0, 30, 2))
    events = trace_events(
        [
            ran(
                *((10.001, TaskStarted(0, tile, 0)) for tile in (0, 1)),
                (10.035, TaskDone(0, 1, 0, second)),
                (10.061, TaskDone(0, 0, 0, first)),
            )
        ]
    )
    [first, second] = tasks(events)
    assert [(event["name"], event["dur"]) for event in inside(events, first)] == [
        ("stage-0", 33_500),
        *(("cold start", 4_000), ("read", 1_000), ("compute", 20_000), ("write", 2_000)),
        ("stage-1", 26_500),
        *(("wait", 10_000), ("read", 2_000), ("compute", 5_000), ("write", 3_000)),
    ]
    assert [event["name"] for event in inside(events, second)] == ["stage-0", "read", "compute", "write"]


def test_members_of_an_aborted_gang_stay_in_the_trace():
    aborted = ran(
        *((10.001, TaskStarted(0, tile, 0)) for tile in (0, 1)),
        (10.002, TaskFailed(0, 1, 0, FAILED)),
        (11.0, TimePassed()),
        *((11.0, TaskStarted(0, tile, 1)) for tile in (0, 1)),
        *((11.1, TaskDone(0, tile, 1, report())) for tile in (0, 1)),
        (11.1, TaskStarted(1, 0, 0)),
        (11.2, TaskDone(1, 0, 0, report())),
    )
    outcomes = [event["args"]["serfer.outcome"] for event in tasks(trace_events([aborted]))]
    assert outcomes == ["given up", "answered", "throttled", "answered", "answered"]


def test_retries_and_hedges_have_rows_of_their_own_and_say_how_they_ended():
    retried = tile(Attempt(0, 1.0, 1.1, 1.2, FAILED), answered(1.5, 1.6, 1.9, number=1))
    unsent = tile(answered(2.0, 2.1, 2.8), Attempt(1, 2.4))
    events = trace_events([query([retried], [unsent])])
    rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert [(rows[event["tid"]], event["args"]["serfer.outcome"]) for event in tasks(events)] == [
        ("tile 0", "throttled"),
        ("tile 0, attempt 1", "answered"),
        ("tile 0", "answered"),
        ("tile 0, attempt 1", "given up"),
    ]


def test_warm_up_of_the_other_plan_is_the_drivers():
    name, found = QUERY
    record = WarmUpRecord(0, 1769, found.answer.started, 250.0, None, "f" * 64)
    warmed = replace(found, answer=replace(found.answer, overheads=Overheads(warm_ups=(record,))))
    [span] = spans(trace_events([(name, warmed)]), "plan ffffffffffff warm-up")
    assert span["dur"] == 250_000


def test_a_trace_replaces_an_earlier_file_atomically(tmp_path):
    path = tmp_path / "out.json"
    path.write_text("old")
    check_trace(path)
    assert path.read_text() == "old"
    write_trace(path, [(b"\xff.jpg".decode(errors="surrogateescape"), QUERY[1])])  # a name need not be text
    trace = json.loads(path.read_text(encoding="ascii"))
    assert (trace["displayTimeUnit"], spans(trace["traceEvents"])[0]["name"]) == ("ms", "\\udcff.jpg")
    assert [*tmp_path.iterdir()] == [path]


def test_a_place_that_cannot_hold_a_trace_is_refused(tmp_path):
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path, tmp_path / "nowhere" / "out.json", tmp_path / "file" / "out.json", tmp_path / "pipe"):
        with pytest.raises(InputError, match=f"'{place}' cannot be written"):
            check_trace(place)
    with pytest.raises(UsageError, match="--trace takes the path of a file"):
        check_trace(Path("-"))
