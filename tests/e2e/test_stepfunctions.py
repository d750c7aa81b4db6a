"""Queries through real state machines: moto and ministack run them, the local Lambda service their tasks."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import serfer
from serfer.core.exactness import difference
from serfer.local.lambda_.function import FunctionConfig
from serfer.local.lambda_.runtime import runtime_directory
from serfer.pipeline.reference import unsplit
from serfer.plan_directory import load_plan
from serfer.wiring import local
from tests.e2e.small import batch, split_small

FLAKY = Path(__file__).with_name("flaky")


@pytest.fixture(scope="module")
def failures(tmp_path_factory):
    """Where flaky.py looks."""
    return tmp_path_factory.mktemp("failures")


@pytest.fixture(scope="module")
def pipelines(lean, settings, _redis, failures):
    """Pipelines by their drivers, over functions that fail as often as `failures` says."""
    runtime = runtime_directory(settings.cache_dir / "runtime")
    more = {"PYTHONPATH": f"{runtime}:{FLAKY}", "FLAKY": str(failures)}

    def flaky(**given):
        config = FunctionConfig(**given)
        return replace(config, handler="flaky.handler", environment={**config.environment, **more})

    with pytest.MonkeyPatch.context() as patch, ExitStack() as opened:
        patch.setattr(local, "FunctionConfig", flaky)
        chosen = {"store": _redis.url, "workers": "local", "settings": settings}
        yield {
            driver: opened.enter_context(serfer.open(lean, driver=driver, **chosen))
            for driver in ("push", "stepfunctions", "stepfunctions-express")
        }


@pytest.mark.exact
@pytest.mark.usefixtures("redis")
def test_every_engine_gives_the_same_answer(pipelines, lean):
    images = batch(2)
    pushed = pipelines["push"].run(images)
    assert difference(pushed, unsplit(load_plan(lean), lean)(images)).exact
    for driver in ("stepfunctions", "stepfunctions-express"):
        assert np.array_equal(pipelines[driver].run(images), pushed)
        answer = pipelines[driver].last.answer
        assert [len(stage.reports) for stage in answer.stages] == [2, 1]
        assert answer.overheads.retries == answer.overheads.restarts == 0
        assert answer.started < answer.stages[0].ended < answer.stages[1].ended <= answer.ended


@pytest.mark.usefixtures("redis")
def test_a_failed_attempt_is_retried(pipelines, lean, failures):
    for file, error in (("0-1-0", "OSError"), ("1-0-0", "RuntimeError")):
        (failures / file).write_text(error, encoding="utf-8")
    logits, answer = pipelines["stepfunctions"].run(batch()), pipelines["stepfunctions"].last.answer
    assert difference(logits, unsplit(load_plan(lean), lean)(batch())).exact
    assert answer.overheads.retries == 2
    assert [[len(tile.attempts) for tile in stage.tiles] for stage in answer.stages] == [[1, 2], [2]]
    assert [*failures.iterdir()] == []


@pytest.mark.slow
def test_more_tiles_than_a_map_runs_side_by_side(tmp_path, settings, redis):
    directory = split_small(tmp_path, grids=[(6, 7), (1, 1)])
    eight = settings.model_copy(update={"local_concurrency": 8})
    with serfer.open(directory, store=redis, workers="local", driver="stepfunctions", settings=eight) as pipeline:
        logits = pipeline.run(batch())
        assert difference(logits, unsplit(load_plan(directory), directory)(batch())).exact
        assert len(pipeline.last.answer.stages[0].reports) == 42
