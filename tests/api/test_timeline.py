"""The timeline and the spans of a gang: a member's invocation appears once, cut into its stages."""

import pytest

from serfer.api.observability.timeline import timeline_of
from serfer.api.service import ServiceResult
from serfer.core.costs.aws import shipped_aws
from serfer.core.costs.cost_model import invocation_usd
from serfer.core.run_machine import Failure, FailureKind, Run, TaskDone, TaskFailed, TaskStarted, TimePassed
from serfer.drivers.driver import Answer, Overheads
from serfer.pipeline.report import make_report
from serfer.pipeline.result import Result
from tests.pipeline.test_trace import GANG, member

FACTS = shipped_aws().functions


def served(*events):
    """Return what a service knows of a run of the gang, whose events come at given times; it was admitted at 10 s."""
    run = Run([2, 1], 1000.0, 0, gangs={0: 2})
    run.start(10.0)
    for time, event in events:
        run.handle(event, time)
    assert run.finished
    answer = Answer("q", 10.0, events[-1][0], run.stages, [], [0, 0], Overheads())
    report = make_report(GANG, answer, [], 0.1, FACTS)
    return ServiceResult(Result(None, report, answer, (9.99, 10.0), events[-1][0]), 10.0, 0.0)


FIRST, SECOND = member((1, 0, 20, 2), (12, 10, 5, 3), init_ms=4), member((1, 0, 30, 2))
STARTED = [(10.001, TaskStarted(0, tile, 0)) for tile in (0, 1)]


def test_a_members_stages_follow_one_another_and_share_its_price():
    result = served(*STARTED, (10.035, TaskDone(0, 1, 0, SECOND)), (10.061, TaskDone(0, 0, 0, FIRST)))
    tasks = timeline_of(result, GANG, FACTS).tasks
    assert [(one.stage, one.tile, one.gang) for one in tasks] == [(0, 0, 0), (0, 1, 0), (1, 0, 0)]
    first, last = tasks[0], tasks[2]
    assert (first.asked_ms, first.started_ms, first.ended_ms) == (0, 1, pytest.approx(1 + 6.5 + 27))
    assert (last.asked_ms, last.started_ms, last.ended_ms) == (first.ended_ms, first.ended_ms, 61)
    assert (first.cold, first.wait_ms, last.cold, last.wait_ms, last.read_ms) == (True, 0, False, 10, 12)
    memory = GANG.stages[0].memory_mb
    assert first.cost_usd + last.cost_usd == pytest.approx(invocation_usd(memory, 47, FACTS))
    assert sum(one.cost_usd for one in tasks) == pytest.approx(result.result.report.cost_usd)


def test_a_member_that_failed_and_was_retried_is_there_twice_in_the_first_stage_only():
    crashed = Failure(FailureKind.FAILED_IN_CODE, "ValueError", "bug")
    result = served(
        *STARTED,
        (10.02, TaskFailed(0, 0, 0, crashed)),
        (10.035, TaskDone(0, 1, 0, SECOND)),
        (11.0, TimePassed()),
        (11.001, TaskStarted(0, 0, 1)),
        (11.061, TaskDone(0, 0, 1, FIRST)),
    )
    tasks = timeline_of(result, GANG, FACTS).tasks
    known = [(one.stage, one.tile, one.attempt, one.outcome, one.gang) for one in tasks]
    assert sorted(known) == [
        (0, 0, 0, "failed in code", None),
        (0, 0, 1, "answered", 0),
        (0, 1, 0, "answered", 0),
        (1, 0, 1, "answered", 0),
    ]


def test_spans_of_a_members_stages_hang_under_its_task(tracing, exporter):
    result = served(*STARTED, (10.035, TaskDone(0, 1, 0, SECOND)), (10.061, TaskDone(0, 0, 0, FIRST)))
    begun = tracing.begin({"headers": [], "method": "POST"})
    tracing.answered("small", result)
    tracing.end(begun, "POST", None, 200, "id")
    known = {span.context.span_id: span for span in exporter.get_finished_spans()}
    tree = [
        (span.name, known[span.parent.span_id].name, span.attributes.get("serfer.wait_ms"))
        for span in known.values()
        if span.parent and span.name.startswith(("stage", "task"))
    ]
    assert sorted(tree, key=str) == [
        ("stage-0", "task 0", None),
        ("stage-0", "task 1", None),
        ("stage-0..1", "query", None),
        ("stage-1", "task 0", 10),
        ("task 0", "stage-0..1", None),
        ("task 1", "stage-0..1", None),
    ]
