import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.costs.aws import shipped_aws
from serfer.core.keys import StoreCounts
from serfer.core.plan import Gang
from serfer.core.report import ImageAnswer, Prediction
from serfer.core.run_machine import (
    Attempt,
    Failure,
    FailureKind,
    Run,
    StageRun,
    TaskDone,
    TaskFailed,
    TileRun,
    TimePassed,
)
from serfer.core.wire import Report, WarmUpAnswer
from serfer.drivers.driver import Answer, Overheads, WarmUpRecord
from serfer.pipeline.report import best_classes, make_report
from serfer.plan_directory import load_plan
from tests.e2e.small import CLASSES, LABELS, split_small

FACTS = shipped_aws().functions
LOGITS = np.array([1.0, 3.0, 2.0, -100.0, 0.0, 3.0, 1.5], dtype=np.float32)
NO_FUNCTIONS = Answer("", 1.0, 2.0, (), (), (), Overheads())


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return load_plan(split_small(tmp_path_factory.mktemp("small"), grids=[(1, 2), (1, 1)]))


def done(init_ms, total_ms, counts=None, output=None):
    report = Report("e", init_ms, 1.0, 2.0, 3.0, total_ms, 1, 1, counts or StoreCounts(), output)
    return TileRun([Attempt(0, 0.0, 0.0, 1.0, report)], report)


@pytest.fixture
def answer():
    first = StageRun(10.0, [done(500.0, 20.0, StoreCounts(100, 0, 1)), done(0.0, 30.2, StoreCounts(200, 0, 1))], 10.7)
    last = StageRun(10.7, [done(0.0, 5.0, StoreCounts(0, 300, 0, 4), b"x" * 28)], 10.75)
    return Answer("q", 10.0, 10.8, [first, last], [b"x" * 28], [50, 7], Overheads(2, 3, 1, StoreCounts(1000, 0, 1)))


def test_a_report_sums_the_tasks_reports(plan, answer):
    images = [ImageAnswer("a.jpg", (Prediction("l", 0, 1.0),))]
    report = make_report(plan, answer, images, latency_s=0.8123456, facts=FACTS)
    assert (report.model, report.plan, report.target) == ("small", plan.digest, "serverless")
    assert (report.latency_ms, report.retries, report.hedges, report.restarts) == (812.346, 2, 3, 1)
    assert report.store == StoreCounts(1300, 300, 3, 4, 0)
    first, last = report.stages
    assert (first.name, first.grid, first.tasks, first.cold) == ("stage-0", "1x2", 2, 1)
    assert (last.name, last.grid, last.tasks, last.cold) == ("stage-1", "1", 1, 0)
    assert first.ms == pytest.approx(700)
    assert last.ms == pytest.approx(50)
    assert (first.bytes_in, first.bytes_out) == (50, 300)
    assert (last.bytes_in, last.bytes_out) == (307, 28)
    plain = json.loads(json.dumps(report.as_dict()))
    assert plain["images"] == [{"name": "a.jpg", "predictions": [{"label": "l", "index": 0, "score": 1.0}]}]
    assert plain["store"] == {"bytes_put": 1300, "bytes_get": 300, "puts": 3, "gets": 4, "exists": 0}


def test_a_stage_has_what_its_environments_waited_for_weights(plan, answer):
    first = answer.stages[0]
    for tile, fetch_ms in zip(first.tiles, (300.5, 100.0), strict=True):
        tile.report = replace(tile.report, fetch_ms=fetch_ms)
    report = make_report(plan, answer, [], 1.0, FACTS)
    assert [stage.fetch_ms for stage in report.stages] == [400.5, 0]


def test_warm_ups_are_counted_and_priced(plan, answer):
    warmed = replace(
        answer.overheads,
        warm_ups=(
            WarmUpRecord(1, 1769, 10.0, 250.0, WarmUpAnswer("e", 200.0, 1, 120.25)),
            WarmUpRecord(1, 1769, 10.0, 99.5, None),
        ),
    )
    report, without = (
        make_report(plan, replace(answer, overheads=each), [], 1.0, FACTS) for each in (warmed, answer.overheads)
    )
    assert (report.warm_ups, without.warm_ups) == (2, 0)
    assert [stage.cold for stage in report.stages] == [1, 1]  # one had no response
    assert [stage.fetch_ms for stage in report.stages] == [0, 120.25]
    gb_s = 1769 / 1024 * (0.250 + 0.100)
    assert report.cost_usd - without.cost_usd == pytest.approx(
        2 * FACTS.price_request + gb_s * FACTS.price_gb_second, rel=1e-6
    )


@pytest.mark.parametrize(("weights", "untrained"), [("random (seed 0): answers mean nothing", True), ("given", False)])
def test_a_report_says_where_no_trained_weights_answered(plan, answer, weights, untrained):
    random = replace(plan, weights=weights)
    for report in (
        make_report(random, answer, [], 1.0, FACTS),
        make_report(random, NO_FUNCTIONS, [], 1.0, target="cache"),
        make_report(random, NO_FUNCTIONS, [], 1.0, target="gpu", usd=0.5),
    ):
        document = report.as_dict()
        assert (document["weights"], document["untrained"]) == (weights, untrained)


def test_the_price_is_lambdas(plan, answer):
    """Each task: its request, and memory times the milliseconds that it began, cold start included."""
    report = make_report(plan, answer, [], 1.0, FACTS)
    gb = plan.stages[0].memory_mb / 1024
    expected = 3 * FACTS.price_request + gb * (520 + 31 + 5) / 1000 * FACTS.price_gb_second
    assert report.cost_usd == pytest.approx(expected)


def member(*stages):
    """Return the run of a member: (read, wait, compute, bytes received) of each of its stages, the first one cold."""
    reports = [
        Report(
            *("e", 0.0 if number else 500.0, read, compute, 1.0, read + compute + 1.0, 1, 1),
            counts=StoreCounts(bytes_get=received, gets=1),
            shared=len(stages),
            wait_ms=wait,
        )
        for number, (read, wait, compute, received) in enumerate(stages)
    ]
    whole = replace(reports[0], later=tuple(reports[1:]))
    return TileRun([Attempt(0, 0.0, 0.0, 1.0, whole)], whole)


@pytest.fixture
def gang(plan):
    """A plan of one gang, and the answer of its run, by the run machine."""
    gang = Gang(0, 2, 30.0, 1e-6)
    run = Run([2, 1], 100.0, 0, gangs={0: 2})
    run.start(10.0)
    run.handle(TaskDone(0, 1, 0, member((2.0, 0.0, 20.3, 90)).report), 10.6)
    run.handle(TaskDone(0, 0, 0, member((1.0, 0.0, 10.2, 80), (12.0, 11.5, 4.1, 64)).report), 10.7)
    overheads = Overheads(0, 0, 0, StoreCounts())
    return replace(plan, gangs=(gang,)), Answer("q", 10.0, 10.8, run.stages, [b"x" * 28], [50, 0], overheads)


def test_a_member_of_a_gang_is_one_invocation_however_many_stages_it_runs(gang):
    report = make_report(*gang, [], 1.0, FACTS)
    gb = gang[0].stages[0].memory_mb / 1024
    billed = math.ceil(500 + 12.2 + 17.1) + math.ceil(500 + 23.3)
    assert report.cost_usd == pytest.approx(2 * FACTS.price_request + gb * billed / 1000 * FACTS.price_gb_second)
    assert [stage.cold for stage in report.stages] == [2, 0]


def test_stages_of_a_gang_say_what_was_exchanged_and_waited(gang, answer):
    report = make_report(*gang, [], 1.0, FACTS)
    assert [(one.gang, one.bytes_in, one.bytes_exchanged) for one in report.stages] == [(0, 220, 0), (0, 64, 64)]
    assert [one.wait_ms for one in report.stages] == [0, 11.5]
    assert report.wait_gb_s == pytest.approx(gang[0].stages[0].memory_mb / 1024 * 0.0115)
    staged = make_report(gang[0], answer, [], 1.0, FACTS)
    assert {(one.gang, one.bytes_exchanged, one.wait_ms) for one in staged.stages} == {(None, 0, 0)}
    assert staged.wait_gb_s == 0


def test_a_disbanded_gang_is_counted(gang):
    run = Run([2, 1], 100.0, 0, gangs={0: 2})
    run.start(10.0)
    run.handle(TaskFailed(0, 1, 0, Failure(FailureKind.THROTTLED, "", "full")), 10.1)
    run.handle(TimePassed(), 11.0)
    for stage, tile, attempt in ((0, 0, 1), (0, 1, 1), (1, 0, 0)):
        run.handle(TaskDone(stage, tile, attempt, done(0.0, 5.0).report), 11.0 + stage)
    answer = replace(gang[1], stages=run.stages)
    report = make_report(gang[0], answer, [], 1.0, FACTS)
    assert (report.disbanded, [stage.gang for stage in report.stages]) == (1, [None, None])
    assert make_report(*gang, [], 1.0, FACTS).disbanded == 0


def test_queries_that_share_an_invocation_share_its_price(plan, answer):
    alone = make_report(plan, answer, [], 1.0, FACTS).cost_usd
    last = answer.stages[-1].tiles[0]
    last.report = replace(last.report, total_ms=last.report.total_ms / 4, shared=4)
    gb = plan.stages[1].memory_mb / 1024
    saved = 0.75 * (FACTS.price_request + gb * 5 / 1000 * FACTS.price_gb_second)
    assert make_report(plan, answer, [], 1.0, FACTS).cost_usd == pytest.approx(alone - saved)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=CLASSES), st.integers(1, CLASSES + 1))
def test_the_best_classes_are_those_of_a_stable_sort(plan, logits, count):
    best = best_classes(replace(plan, activation="none"), np.array(logits, dtype=np.float32), count)
    expected = sorted(enumerate(logits), key=lambda one: -one[1])[:count]
    assert [(one.index, one.score) for one in best] == expected
    assert [one.label for one in best] == [LABELS[index] for index, _ in expected]


def test_scores_are_of_the_plans_activation_even_of_extreme_logits(plan):
    scores = [best.score for best in best_classes(plan, LOGITS, CLASSES)]
    assert sum(scores) == pytest.approx(1)
    assert scores == sorted(scores, reverse=True)
    assert best_classes(plan, np.array([0, 5000] + [0] * 5, dtype=np.float32), 1)[0].score == 1
    sigmoid = replace(plan, activation="sigmoid")
    assert best_classes(sigmoid, LOGITS, 1)[0].score == pytest.approx(1 / (1 + np.exp(-3)))
    scores = [best.score for best in best_classes(sigmoid, np.array([-5000, 5000] + [0] * 5, np.float32), CLASSES)]
    assert (scores[0], scores[-1]) == (1, 0)
    [best] = best_classes(replace(plan, activation="none", labels=()), LOGITS, 1)
    assert (best.label, best.score) == ("1", 3)
