"""Stored values that are altered while queries run: answers are right or errors, never wrong."""

import itertools
import shutil
from dataclasses import replace

import numpy as np
import pytest

import serfer
from serfer.core.errors import StoreUnavailableError
from serfer.core.exactness import difference
from serfer.core.keys import stage_of
from serfer.drivers.inprocess import InProcessInvoker
from serfer.pipeline.reference import unsplit
from serfer.storage.memory import MemoryStore
from serfer.storage.redis.store import RedisStore
from tests.e2e.small import batch, hand_on

ALTERATIONS = {
    "garbage": lambda value: np.random.default_rng(len(value)).bytes(len(value)),
    "NaN": lambda value: b"\xff\xff\xff\x7f" * (len(value) // 4),
    "zeros": lambda value: bytes(len(value)),
    "one bit": lambda value: value[:40] + bytes([value[40] ^ 1]) + value[41:],
    "longer": lambda value: value + bytes(4),
    "shorter": lambda value: value[:-4],
    "empty": lambda _: b"",
}
QUERIES = 3


class Altering:
    """Alters values right after they are put: every `every`-th that a tile of `stages` wrote."""

    def __init__(self, monkeypatch, kind, alter, stages, every):
        put, numbers = kind.put, itertools.count(1)
        self.altered = 0

        def altering(store, key, value, ttl):
            put(store, key, value, ttl)
            if stage_of(key) in stages and next(numbers) % every == 0:
                self.altered += 1
                put(store, key, alter(bytes(value)), ttl)

        monkeypatch.setattr(kind, "put", altering)


def classify(directory, url, driver="push"):
    """Run queries, check every answer, and return how often they restarted; duplicates would put values again."""
    with serfer.open(directory, store=url, workers="inprocess", driver=driver, hedge=False) as pipeline:
        whole, restarts = unsplit(pipeline.plan, directory), 0
        for seed in range(QUERIES):
            images = batch(2, seed=seed)
            assert difference(pipeline.run(images), whole(images)).exact
            restarts += pipeline.last_report.restarts
    return restarts


@pytest.mark.parametrize("alter", ALTERATIONS)
def test_altered_pieces_cause_a_restart_and_no_wrong_answer(plan, monkeypatch, alter):
    """A query has eight puts, and gets past an eleventh that is altered by its second try."""
    altering = Altering(monkeypatch, MemoryStore, ALTERATIONS[alter], {0, 1}, every=11)
    assert classify(plan, "memory://") == altering.altered >= QUERIES - 1


@pytest.mark.parametrize("driver", ["push", "poll"])
def test_altered_pieces_in_redis(plan, redis, monkeypatch, driver):
    altering = Altering(monkeypatch, RedisStore, ALTERATIONS["NaN"], {0, 1}, every=11)
    assert classify(plan, redis, driver) == altering.altered >= QUERIES - 1


def test_a_store_that_alters_everything_is_an_error(plan, monkeypatch):
    Altering(monkeypatch, MemoryStore, ALTERATIONS["garbage"], {0}, every=1)
    with pytest.raises(StoreUnavailableError, match="loses or alters what is written"):
        classify(plan, "memory://")


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_answers_altered_in_transit_are_detected(plan, tmp_path, monkeypatch, stage):
    """All stages hand on inside answers and payloads; of one answer one bit is flipped."""
    directory = hand_on(shutil.copytree(plan, tmp_path / "plan"), inline=(0, 1))
    invoke, invoke_shared, altered = InProcessInvoker.invoke, InProcessInvoker.invoke_shared, []

    def alter(task, report):
        if task.stage != stage or altered:
            return report
        altered.append(task)
        return replace(report, output=ALTERATIONS["one bit"](bytes(report.output)))

    async def altering(invoker, function, task, timeout_s):
        return alter(task, await invoke(invoker, function, task, timeout_s))

    async def altering_shared(invoker, function, tasks, timeout_s):
        return [*map(alter, tasks, await invoke_shared(invoker, function, tasks, timeout_s))]

    monkeypatch.setattr(InProcessInvoker, "invoke", altering)
    monkeypatch.setattr(InProcessInvoker, "invoke_shared", altering_shared)
    assert classify(directory, "memory://") == len(altered) == 1
