"""A pipeline with a target: it gets each query first, and queries that it refuses run on the plan's functions."""

import asyncio

import numpy as np
import pytest

import serfer
from serfer.api.observability.timeline import timeline_of
from serfer.api.service import ServiceResult
from serfer.core.errors import DeadlineError, InputError, UnavailableError
from serfer.drivers.driver import NO_CONTEXT
from serfer.drivers.target import InstanceAnswer
from serfer.pipeline.blocking import Pipeline
from serfer.pipeline.event_loop import LoopThread
from serfer.pipeline.health import Probe
from serfer.pipeline.pipeline import AsyncPipeline
from serfer.pipeline.reference import unsplit
from serfer.pipeline.trace import trace_events
from serfer.plan_directory import load_plan
from serfer.storage import open_store
from tests.e2e.small import CLASSES, SIZE, batch

PIXELS = np.random.default_rng(5).integers(0, 256, (2, SIZE, SIZE, 3), dtype=np.uint8)


class Whole:
    """A target that computes the whole network, or takes nothing while `takes` is False."""

    def __init__(self, directory, *, takes=True, slow_s=0.0):
        self._run = unsplit(load_plan(directory), directory)
        self.takes = takes
        self.slow_s = slow_s
        self.requests = []
        self.closed = 0

    async def run(self, array, deadline_s, context):
        self.requests.append((array, deadline_s, context))
        await asyncio.sleep(self.slow_s)
        return InstanceAnswer(self._run(array), "one", 3, 1.5, 2e-6) if self.takes else None

    async def close(self):
        self.closed += 1


@pytest.fixture
def open_with(plan, settings):
    opened = []

    def make(target):
        loaded, loop, store = load_plan(plan), LoopThread(), open_store("memory://")

        async def close():
            store.close()

        facts, limits = settings.facts().functions, settings.image_limits()
        pipeline = Pipeline(
            AsyncPipeline(loaded, None, loop, close, facts, limits, Probe(loaded, store, None), target=target)
        )
        opened.append(pipeline)
        return pipeline

    yield make
    for pipeline in opened:
        pipeline.close()


@pytest.mark.parametrize("images", [batch(2), PIXELS], ids=["float32", "pixels"])
def test_an_instances_report_has_no_stages_and_its_own_price(open_with, plan, images):
    target = Whole(plan)
    pipeline = open_with(target)
    assert np.array_equal(pipeline.run(images, deadline_s=7), unsplit(pipeline.plan, plan)(images))
    report = pipeline.last_report
    assert (report.target, report.stages, report.cost_usd, report.store.puts) == ("gpu", (), 2e-6, 0)
    assert pipeline.last.served.batch == 3
    request, deadline_s, context = target.requests[0]
    assert np.array_equal(request, images)
    assert (deadline_s, context) == (7, NO_CONTEXT)


def test_images_are_classified_on_a_target_with_report_and_trace(open_with, plan, examples):
    pipeline = open_with(Whole(plan))
    answers = pipeline.classify([examples / "chelsea.png"], top_k=2)
    assert len(answers[0].predictions) == 2
    result = pipeline.last
    timeline = timeline_of(ServiceResult(result, result.split[0], 0.0), pipeline.plan, pipeline.facts)
    assert (result.report.target, timeline.tasks) == ("gpu", ())
    spans = [event for event in trace_events([("q", result)]) if event["ph"] == "X"]
    assert [(span["name"], span["args"].get("serfer.target")) for span in spans] == [("q", "gpu"), ("decode", None)]


def test_later_writes_of_the_caller_do_not_reach_the_query(open_with, plan):
    target = Whole(plan, slow_s=0.05)
    pipeline = open_with(target)
    images = batch(1)
    expected = unsplit(pipeline.plan, plan)(images)
    future = pipeline.submit(images)
    images[:] = 0
    assert np.array_equal(future.result().logits, expected)


def test_a_target_that_refuses_is_an_error_without_functions(open_with, plan):
    pipeline = open_with(Whole(plan, takes=False))
    with pytest.raises(UnavailableError, match="no functions"):
        pipeline.run(batch())


def test_arrays_are_checked_before_a_target_sees_them(open_with, plan):
    target = Whole(plan)
    with pytest.raises(InputError, match="this plan takes"):
        open_with(target).run(batch()[:, :1])
    assert target.requests == []


def test_closing_a_pipeline_closes_its_target_once(open_with, plan):
    target = Whole(plan)
    pipeline = open_with(target)
    pipeline.close()
    pipeline.close()
    assert target.closed == 1


def test_queries_that_a_target_refuses_run_on_functions(plan, settings):
    with serfer.open(plan, settings=settings) as pipeline:
        pipeline.asynchronous.target = target = Whole(plan, takes=False)
        assert pipeline.run(PIXELS).shape == (2, CLASSES)
        assert (pipeline.last_report.target, len(pipeline.last_report.stages)) == ("serverless", 3)
        assert pipeline.last.served is None
        target.slow_s = 0.3
        with pytest.raises(DeadlineError):  # what the target took is gone
            pipeline.run(batch(), deadline_s=0.2)
