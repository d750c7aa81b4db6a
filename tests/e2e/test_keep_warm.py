"""Windows that keep an open pipeline's functions warm, over the local Lambda service; a test has hours pass."""

import asyncio

import httpx
import numpy as np
import pytest

import serfer
from serfer.fleet import control_loop
from serfer.plan_directory import load_plan
from serfer.registry import open_registry
from tests.applications.worlds import plan_variant, register, version
from tests.e2e.conftest import PATIENCE, SERVED, eventually, keys
from tests.e2e.gangs import Invocations
from tests.e2e.small import batch
from tests.e2e.test_applications import white

PERIOD_S, STEP_S = 1800.0, 30.0


class Hours:
    """The loop's clock, which stands still unless a test has it go on."""

    def __init__(self):
        self.now_s = 1e6

    def now(self):
        return self.now_s

    unix = now

    async def sleep(self, _seconds):
        await asyncio.Event().wait()


@pytest.fixture
def hours(monkeypatch):
    made = Hours()
    monkeypatch.setattr(control_loop, "Timing", lambda: made)
    return made


class Scene:
    """A pipeline whose hours pass, and the warm-up requests that its functions get."""

    def __init__(self, pipeline, hours, invocations):
        self.pipeline, self.hours, self.invocations = pipeline, hours, invocations

    def query(self):
        self.pipeline.run(batch())
        self.since = self.hours.now_s
        self._tick()
        return sum(stage.cold for stage in self.pipeline.last_report.stages)

    def until(self, idle_s):
        """Go on to so many seconds after the last query; return when pings were sent, in seconds after it."""
        sent = []
        while self.hours.now_s < self.since + idle_s:
            self.hours.now_s += STEP_S
            before = self._pings()
            self._tick()
            if self._pings() > before:
                sent.append(self.hours.now_s - self.since)
        return sent

    def _pings(self):
        return sum(task is None for task in self.invocations.seen)

    def _tick(self):
        async def ticked():
            warmth = self.pipeline.asynchronous.warmth
            await warmth.tick()
            for pinging in warmth.duties.values():
                await pinging

        self.pipeline.asynchronous.loop.submit(ticked()).result(PATIENCE)


@pytest.mark.slow
def test_pings_stop_and_begin_again_before_the_next_query_which_finds_a_warm_function(
    single, settings, redis, hours, monkeypatch
):
    invocations = Invocations(monkeypatch)
    with serfer.open(single, store=redis, workers="local", keep_warm="lsth", settings=settings) as pipeline:
        scene = Scene(pipeline, hours, invocations)
        assert scene.query() == 1
        assert len(scene.until(PERIOD_S)) >= 6  # nothing is known yet
        for _ in range(3):
            scene.query()
            scene.until(PERIOD_S)
        scene.query()
        assert scene.until(0.85 * PERIOD_S) == []
        assert invocations.kill(load_plan(single).function(0, 0)) >= 1  # as Lambda does with what is idle
        eventually(lambda: all(one.dead for one in invocations._environments), "the service knows")
        (prewarmed,) = scene.until(PERIOD_S)
        assert prewarmed >= 0.85 * PERIOD_S
        assert scene.query() == 0
        windows_end = 1.1 * (PERIOD_S + 120.0)
        assert all(0.85 * PERIOD_S < sent < windows_end for sent in scene.until(2 * PERIOD_S))
    eventually(lambda: keys(redis) == [], "the record has expired")


def test_answers_are_the_same_with_and_without(single, settings, redis, hours):
    with serfer.open(single, store=redis, workers="local", settings=settings) as pipeline:
        plain = pipeline.run(batch())
        assert pipeline.asynchronous.warmth is None
    with serfer.open(single, store=redis, workers="local", keep_warm="300", settings=settings) as pipeline:
        assert np.array_equal(pipeline.run(batch()), plain)
    del hours
    eventually(lambda: keys(redis) == [], "the record has expired")


@pytest.mark.slow
def test_the_variants_of_applications_are_kept_warm_too(start, redis, tmp_path):
    registry = open_registry(str(tmp_path / "registry"))
    variants = [
        plan_variant(registry, tmp_path / f"{seed}", f"net.{seed}", seed=seed, grids=[(1, 1)]) for seed in (0, 1)
    ]
    register(registry, "faces", version("net", 1, *variants))
    options = ("--store", redis, "--set", "keep_warm=300", *SERVED)
    serving = start("serve", "--registry", str(registry), "--app", "faces", *options)
    url = serving.said()["url"]
    for each in variants:
        asked = f"{url}/v1/classify?variant={each.name}"
        assert httpx.post(asked, files={"image": white()}, timeout=PATIENCE).status_code == 200
    records = {f"serfer:warm:{{{each.plan[:16]}}}" for each in variants}
    eventually(lambda: sum(any(record in str(key) for record in records) for key in keys(redis)) == 2, "both are kept")
    serving.stop()
    eventually(lambda: keys(redis) == [], "the record has expired")
