"""Plan directories with a cold plan: which plan queries run on, over local workers that start and are killed."""

import itertools
import shutil
import threading
import time

import numpy as np
import pytest

import serfer
from serfer.core.errors import PlanError
from serfer.core.exactness import difference
from serfer.drivers.dispatching.plan_policy import COLD, NO_ROOM, WARM
from serfer.pipeline.event_loop import LoopThread
from serfer.pipeline.reference import unsplit
from serfer.plan_directory import COLD_DIRECTORY, load_cold_plan, load_plan
from serfer.settings import access_setting
from serfer.storage import open_store
from serfer.wiring.local import local_service, start_service
from tests.e2e.conftest import PATIENCE, eventually, keys
from tests.e2e.gangs import Invocations
from tests.e2e.small import batch, split_small


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """One function; four tiles and one."""
    home = tmp_path_factory.mktemp("two")
    directory = split_small(home, grids=[(1, 1)])
    split_small(home / "cold", grids=[(2, 2), (1, 1)]).rename(directory / COLD_DIRECTORY)
    return directory


@pytest.fixture(scope="module")
def warm(directory):
    return load_plan(directory)


@pytest.fixture(scope="module")
def cold(directory, warm):
    return load_cold_plan(directory, warm)


@pytest.fixture
def invocations(monkeypatch):
    return Invocations(monkeypatch)


def on_plan(pipeline, plan):
    """Send queries until one runs on a plan; return all of their results."""
    results = []

    def asked():
        results.append(pipeline.submit(batch()).result(PATIENCE))
        return results[-1].report.plan == plan.digest

    eventually(asked, "a query on that plan")
    return results


@pytest.mark.killed
def test_queries_move_to_the_whole_function_when_it_is_warm_and_back_when_it_was_killed(
    directory, warm, cold, settings, redis, invocations
):
    whole = unsplit(warm, directory)
    with serfer.open(directory, store=redis, workers="local", settings=settings) as pipeline:
        results = on_plan(pipeline, warm)
        first, last = results[0].report, results[-1].report
        assert (first.plan, first.plan_reason) == (cold.digest, COLD)
        assert first.warm_ups >= 1
        assert first.cost_usd > 10 * last.cost_usd  # the warm-up's dollars
        assert (last.plan_reason, last.warm_ups, [stage.cold for stage in last.stages]) == (WARM, 0, [0])
        assert all(difference(each.logits, whole(batch())).exact for each in results)
        assert invocations.kill(warm.function(0, 0)) == 1
        found = pipeline.submit(batch())  # it expects what is gone
        eventually(lambda: invocations.seen[-1] and invocations.seen[-1].plan == warm.digest, "it is being started")
        beside = pipeline.submit(batch()).result(PATIENCE).report
        assert (beside.plan, beside.plan_reason) == (cold.digest, COLD)
        assert [stage.cold for stage in found.result(PATIENCE).report.stages] == [1]
        pipeline.run(batch())
        assert pipeline.last_report.plan_reason == WARM


@pytest.mark.slow
def test_a_change_over_under_load_loses_no_query(directory, warm, cold, settings, redis, invocations):
    """Ten queries a second; the whole function is killed twice, each time once queries have moved to it."""
    twenty = settings.model_copy(update={"local_concurrency": 20})
    pause, queries, killed = threading.Event(), [], 0
    with serfer.open(directory, store=redis, workers="local", settings=twenty) as pipeline:
        for kills in range(3):
            begun = len(queries)
            deadline = time.monotonic() + PATIENCE
            while not moved(queries[begun:]):
                assert time.monotonic() < deadline
                queries.append(pipeline.submit(batch(seed=len(queries))))
                pause.wait(0.1)
            if kills < 2:
                killed += invocations.kill(warm.function(0, 0))
        results = [future.result(PATIENCE) for future in queries]
    whole = unsplit(warm, directory)
    assert all(difference(result.logits, whole(batch(seed=seed))).exact for seed, result in enumerate(results))
    reports = [result.report for result in results]
    changes = [plan for plan, _ in itertools.groupby(report.plan for report in reports)]
    assert changes[:2] == [cold.digest, warm.digest]
    assert all(report.plan_reason in (WARM, COLD, NO_ROOM) for report in reports)
    # With the whole function alone, all queries that come while it starts would wait for it.
    late = sum(report.plan_reason == WARM and started(report) for report in reports)
    assert 1 <= late <= killed
    assert sum(report.retries for report in reports) <= killed
    assert sum(report.warm_ups for report in reports) >= 1


def started(report):
    """Return whether a query has waited for an environment to start."""
    return any(stage.cold for stage in report.stages)


def moved(queries):
    """Return whether a query has waited for environments, and the newest three answers are of warm ones."""
    done = [future.result().report for future in queries if future.done()]
    newest = [(report.plan_reason, started(report)) for report in done[-3:]]
    return any(map(started, done)) and newest == [(WARM, False)] * 3


def test_warming_a_pipeline_spares_it_the_cold_plan(directory, settings, redis):
    with serfer.open(directory, store=redis, workers="local", settings=settings) as pipeline:
        pipeline.warm()
        pipeline.run(batch())
        assert pipeline.last_report.plan_reason == WARM


def test_too_little_concurrency_is_a_reason(directory, warm, settings, redis):
    few = settings.model_copy(update={"local_concurrency": 4})
    with serfer.open(directory, store=redis, workers="local", settings=few) as pipeline:
        pipeline.run(batch())
        report = pipeline.last_report
    why = "it needs 5 invocations at once, the concurrency is 4"
    assert (report.plan, report.plan_reason) == (warm.digest, f"The cold plan is not used: {why}.")


def test_kept_answers_are_found_whichever_plan_has_computed_them(directory, warm, settings, redis):
    with serfer.open(directory, store=redis, workers="local", settings=settings, cache_s=60.0) as pipeline:
        answer = pipeline.run(batch())
        again = pipeline.run(batch())
        report = pipeline.last_report
        assert np.array_equal(answer, again)
        assert (report.target, report.plan) == ("cache", warm.digest)
    with open_store(redis) as store:
        store.delete([key.decode() for key in keys(redis)])


def test_a_cold_plan_whose_files_were_altered_is_refused_where_it_runs_here(directory, tmp_path, settings, redis):
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    weights = next((copy / COLD_DIRECTORY).glob("stage-0/weights-*.bin"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(PlanError, match="was altered"):
        serfer.open(copy, store=redis, workers="local", settings=settings)
    with serfer.open(copy) as pipeline:
        pipeline.run(batch())


def test_a_service_that_runs_already_has_the_functions_of_both(directory, warm, cold, settings, redis):
    loop = LoopThread()
    service = local_service([(warm, directory), (cold, directory / COLD_DIRECTORY)], redis, settings)
    loop.wait(start_service(service))
    access = {"local_url": service.url, "local_access": access_setting(service.access)}
    try:
        shared = settings.model_copy(update=access)
        with serfer.open(directory, store=redis, workers="local", settings=shared) as pipeline:
            assert on_plan(pipeline, warm)[0].report.plan == cold.digest
            assert pipeline.health().ready
    finally:
        loop.wait(service.stop())
        loop.close()
