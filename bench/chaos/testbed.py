"""The testbed of a chaos scenario: a Redis, a Lambda service, workers and a driver of its own, and faults to inject."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any, Self

import psutil
from numpy.typing import NDArray

from serfer.core.errors import StoreUnavailableError, UnavailableError, UsageError
from serfer.core.retry import Backoff, RetryPolicy, retry
from serfer.local.lambda_.access import fetch, random_access
from serfer.local.lambda_.runtime import BOOTSTRAP
from serfer.local.lambda_.service import COUNTS
from serfer.local.server import free_port
from serfer.local.servers.redis import RedisServer
from serfer.pipeline.blocking import Pipeline
from serfer.pipeline.event_loop import LoopThread
from serfer.pipeline.result import Result
from serfer.settings import Settings, access_setting
from serfer.storage.redis.store import RedisStore
from serfer.wiring.open_pipeline import open_pipeline
from serfer_bench.chaos.budget import Reply, reply_of
from serfer_bench.chaos.remote_driver import Configuration, RemoteDriver
from serfer_bench.core.faults import Faults, injected
from serfer_bench.core.processes import descendants, used_s

_KEYS = "serfer:*"
_MAX_BYTES = 1 << 20
_ANSWER_S = 10.0
_OPENING = RetryPolicy("chaos", StoreUnavailableError, Backoff(0.0, 0.0), attempts=8)
_MS_PER_S = 1000.0


@dataclass(frozen=True)
class Conditions:
    """Under what queries run: faults of the service, a driver, what `wrap` makes of the store's URL."""

    faults: Faults | None = None
    driver: str = ""
    hedge: bool = True
    wrap: Callable[[str], str] = str


@dataclass(frozen=True)
class Left:
    """Keys in the store, those of them without a time to live, and the longest of the others', in seconds."""

    keys: int
    forever: int
    longest_s: float


class OwnRedis:
    """A Redis server that can be killed and started again, empty, at the same URL."""

    def __init__(self) -> None:
        self._loop = LoopThread()  # servers die with the thread that starts them
        try:
            self._server = self._loop.wait(_started(RedisServer))
        except BaseException:
            self._loop.close()
            raise
        self.url = self._server.url

    def restart(self) -> None:
        port = int(self.url.rpartition(":")[2].partition("/")[0])
        password = self.url.removeprefix("redis://:").partition("@")[0]
        os.kill(self._server.pid, signal.SIGKILL)
        self._server.stop()
        self._server = self._loop.wait(_started(lambda: RedisServer(port, password)))

    def close(self) -> None:
        self._server.stop()
        self._loop.close()


async def _started(build: Callable[[], RedisServer]) -> RedisServer:
    return build()


class Testbed:
    """A pipeline on parts of its own, as a context manager that leaves none of them; `store` is used instead of ours.

    Raises UsageError for a store whose keys cannot be listed, and whatever opening a pipeline raises.
    """

    def __init__(
        self, directory: Path, conditions: Conditions, settings: Settings, store: str | None, deadline_s: float
    ) -> None:
        if store is not None and not store.startswith(("redis://", "rediss://")):
            raise UsageError("--store must be redis:// or rediss://, whose keys can be listed")
        self._before = {*descendants()}
        self._parts = ExitStack()
        self._deadline_s = deadline_s
        self._directory = directory
        self._driver = conditions.driver
        self._start_s = 0.0  # processor seconds of a worker until it has answered once
        self._random = random.Random(0)  # noqa: S311 - which workers it kills is not a secret
        self._access = settings.signing_access() or random_access()
        own = {"local_port": settings.local_port or free_port(), "local_access": access_setting(self._access)}
        self._settings = settings.model_copy(update=own)
        with ExitStack() as parts:
            self._redis = None if store else OwnRedis()
            if self._redis:
                parts.callback(self._redis.close)
            self._url = self._redis.url if self._redis else str(store)
            self._keys = parts.enter_context(RedisStore(self._url))
            self._foreign = {*self._listed()}
            self._wrapped = conditions.wrap(self._url)
            self._pipeline = self._open(conditions)
            parts.callback(self._pipeline.close)
            self._parts = parts.pop_all()

    def _open(self, conditions: Conditions) -> Pipeline:
        build = partial(
            open_pipeline,
            self._directory,
            store=self._wrapped,
            workers="local",
            driver=conditions.driver,
            hedge=conditions.hedge,
            settings=self._settings,
        )
        with injected(conditions.faults):
            return retry(build, _OPENING, time.sleep)

    @property
    def tasks(self) -> int:
        return sum(len(stage.tiles) for stage in self._pipeline.plan.stages)

    @property
    def processes(self) -> int:
        return len({*descendants()} - self._before)

    def submit(self, batch: NDArray[Any]) -> Future[Reply]:
        answer: Future[Reply] = Future()
        query = self._pipeline.submit(batch, deadline_s=self._deadline_s)
        query.add_done_callback(lambda done: _pass_on(done, answer))
        answer.add_done_callback(lambda given: given.cancelled() and query.cancel())
        return answer

    def counts(self) -> dict[str, Any]:
        try:
            counts: dict[str, Any] = json.loads(fetch(self._endpoint, COUNTS, self._access, _ANSWER_S, _MAX_BYTES))
        except (OSError, HTTPException) as error:
            raise UnavailableError(f"the Lambda service at {self._endpoint} does not report its counts") from error
        return {**counts, "invocations": sum(counts["invocations"].values())}

    @property
    def _endpoint(self) -> str:
        return f"http://127.0.0.1:{self._settings.local_port}"

    def warm_up(self) -> None:
        """Start as many workers as invocations fit at once, for the functions of the stages with most tiles."""
        widest = max(len(stage.tiles) for stage in self._pipeline.plan.stages)
        self._pipeline.warm(max(1, self._settings.local_concurrency // widest))
        self._start_s = min((used_s([worker]) for worker in self._workers()), default=0.0)

    @staticmethod
    def _workers() -> list[psutil.Process]:
        return [process for process in descendants() if _is_worker(process)]

    def remote_driver(self) -> RemoteDriver:
        return RemoteDriver(
            Configuration(
                directory=str(self._directory),
                store=self._wrapped,
                driver=self._driver,
                endpoint=self._endpoint,
                key_id=self._access.key_id,
                secret=self._access.secret,
                concurrency=self._settings.local_concurrency,
                deadline_s=self._deadline_s,
            )
        )

    def kill_workers(self, count: int) -> int:
        """Kill this many workers as `kill -9` does, those that compute first; return how many there were to kill.

        Workers that are still starting are spared. A task whose worker was killed waits in one of them, which computes
        longer than any other: it would be killed again, and three failures of a task end its query
        (serfer.core.run_machine).
        """
        states = {worker: _state(worker) for worker in self._workers() if used_s([worker]) >= self._start_s}
        self._random.shuffle(workers := [*states])
        chosen = sorted(workers, key=lambda worker: states[worker] != psutil.STATUS_RUNNING)[:count]
        for worker in chosen:
            with suppress(psutil.NoSuchProcess):
                worker.kill()
        return len(chosen)

    def restart_store(self) -> None:
        if self._redis is None:
            raise UsageError("a store of --store cannot be restarted: leave --store out, or restarted out of --only")
        self._redis.restart()

    def close_pipeline(self) -> None:
        self._pipeline.close()

    def left(self) -> Left:
        keys = [key for key in self._listed() if key not in self._foreign]
        ttls = [ttl for ttl in self._keys.execute([("PTTL", key) for key in keys]) if ttl != _GONE]
        return Left(len(ttls), ttls.count(_FOR_EVER), max([0, *ttls]) / _MS_PER_S)

    def _listed(self) -> set[bytes]:
        cursor, listed = b"0", set[bytes]()
        while True:
            [(cursor, keys)] = self._keys.execute([("SCAN", cursor, "MATCH", _KEYS, "COUNT", 1000)])
            listed.update(keys)
            if cursor == b"0":
                return listed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._parts.close()


_FOR_EVER, _GONE = -1, -2  # what PTTL answers for a key without a time to live, and for none


def _pass_on(done: Future[Result], answer: Future[Reply]) -> None:
    if not answer.set_running_or_notify_cancel():
        return
    if done.cancelled():
        answer.set_exception(UnavailableError("the query was cancelled"))
    elif error := done.exception():
        answer.set_exception(error)
    else:
        answer.set_result(reply_of(done.result()))


def _is_worker(process: psutil.Process) -> bool:
    try:
        return str(BOOTSTRAP) in process.cmdline()
    except psutil.NoSuchProcess:
        return False


def _state(process: psutil.Process) -> str:
    """Return a process's state, empty for one that has just ended; one that waits for a processor is running."""
    try:
        return process.status()
    except psutil.NoSuchProcess:
        return ""
