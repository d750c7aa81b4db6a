"""A burst whose queries share invocations of the fully connected stage: the same logits, fewer invocations."""

from fractions import Fraction

import numpy as np
import pytest

import serfer
from serfer.core.exactness import difference
from serfer.pipeline.reference import unsplit
from serfer.plan_directory import load_plan
from serfer.settings import Settings
from serfer.wiring import open_pipeline
from tests.e2e.small import batch, hand_on, split_small

QUERIES = 24


@pytest.fixture
def few(cache):
    """Settings under which a burst has to wait for slots."""
    return Settings(cache_dir=cache, local_concurrency=2)


def burst(pipeline):
    """Send queries of one to three images at once and return their results."""
    return [future.result(120) for future in [pipeline.submit(images(number)) for number in range(QUERIES)]]


def images(number):
    return batch(1 + number % 3, seed=number)


def invocations(results, stage):
    """Return how many invocations ran a stage's tasks, of which each has its share in one."""
    reports = [report for result in results for report in result.answer.stages[stage].reports]
    return sum(Fraction(1, report.shared) for report in reports)


@pytest.mark.exact
@pytest.mark.parametrize("workers", ["inprocess", "local"])
def test_a_burst_over_few_slots_gives_the_same_logits_with_fewer_invocations(plan, few, redis, workers):
    whole, last = unsplit(load_plan(plan), plan), len(load_plan(plan).stages) - 1
    with serfer.open(plan, store=redis, workers=workers, settings=few) as pipeline:
        alone = [pipeline.run(images(number)) for number in range(QUERIES)]
        assert pipeline.last.answer.stages[last].reports[0].shared == 1
        results = burst(pipeline)
    for number, (result, logits) in enumerate(zip(results, alone, strict=True)):
        assert difference(result.logits, whole(images(number))).exact
        assert np.abs(result.logits - logits).max() <= 1e-5 * np.ptp(logits)
        assert result.report.retries == 0
    for stage in range(last):  # four tiles in two invocations, but for a few duplicates
        assert 2 * QUERIES <= invocations(results, stage) < 3 * QUERIES
    assert invocations(results, last) <= QUERIES / 2
    with serfer.open(plan, share=False, settings=few) as pipeline:
        assert invocations(burst(pipeline), last) == QUERIES


@pytest.mark.parametrize(("cores", "expected"), [(1, 1), (2, 2), (3, 2), (4, 4), (64, 4)])
def test_tiles_share_as_many_invocations_as_there_are_processors(plan, monkeypatch, cores, expected):
    monkeypatch.setattr(open_pipeline, "processors", lambda: cores)
    with serfer.open(plan, hedge=False) as pipeline:
        pipeline.run(images(0))
        assert [invocations([pipeline.last], stage) for stage in (0, 1)] == [expected] * 2
    with serfer.open(plan, hedge=False, share=False) as pipeline:
        pipeline.run(images(0))
        assert invocations([pipeline.last], 0) == 4


@pytest.mark.parametrize("inline", [(), (0, 1)])
def test_columns_of_a_fully_connected_layer_share_invocations_on_any_data_path(few, redis, tmp_path, inline):
    columns = hand_on(split_small(tmp_path, grids=[(1, 2), (1, 1), "col2"]), inline)
    whole, last = unsplit(load_plan(columns), columns), len(load_plan(columns).stages) - 1
    with serfer.open(columns, store=redis, settings=few) as pipeline:
        results = burst(pipeline)
    for number, result in enumerate(results):
        assert difference(result.logits, whole(images(number))).exact
    assert invocations(results, last) <= QUERIES  # of two for each query


@pytest.mark.exact
def test_counts_and_bytes_equal_those_of_separate_queries(plan, few):
    def moved(report):
        return report.store, [(stage.tasks, stage.bytes_in, stage.bytes_out) for stage in report.stages]

    with serfer.open(plan, settings=few) as pipeline:
        alone = []
        for number in range(QUERIES):
            pipeline.run(images(number))
            alone.append(moved(pipeline.last_report))
        assert [moved(result.report) for result in burst(pipeline)] == alone
