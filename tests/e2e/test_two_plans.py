"""Plan directories with a cold plan: which plan queries run on, over local workers that start and are killed."""

import shutil

import numpy as np
import pytest

import serfer
from serfer.core.errors import PlanError
from serfer.core.exactness import difference
from serfer.drivers.dispatching.plan_policy import COLD, WARM
from serfer.pipeline.reference import unsplit
from serfer.plan_directory import COLD_DIRECTORY, load_cold_plan, load_plan
from serfer.storage import open_store
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


def test_warming_a_pipeline_spares_it_the_cold_plan(directory, settings, redis):
    with serfer.open(directory, store=redis, workers="local", settings=settings) as pipeline:
        pipeline.warm()
        pipeline.run(batch())
        assert pipeline.last_report.plan_reason == WARM


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


def test_a_service_that_runs_already_has_the_functions_of_both(directory, warm, cold, redis, share):
    _, shared = share(directory, directory / COLD_DIRECTORY)
    with serfer.open(directory, store=redis, workers="local", settings=shared) as pipeline:
        assert on_plan(pipeline, warm)[0].report.plan == cold.digest
        assert pipeline.health().ready
