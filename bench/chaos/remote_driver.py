"""A driver in a process of its own, which can be killed; store and Lambda service are the caller's.

    here:  RemoteDriver.submit ── [number, pixels] ──▶ there: Pipeline.submit ──▶ store, Invoke API
           futures             ◀── [number, logits, budget, problem] ──

A frame is its length in 4 bytes and msgpack; any number of queries may be in flight.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.costs.aws import AwsFacts
from serfer.core.errors import QueryError
from serfer.local.die_with_parent import dying_with_me
from serfer.local.lambda_.function import REGION
from serfer.pipeline.result import Result
from serfer.settings import Settings
from serfer.wiring.open_pipeline import open_pipeline
from serfer_bench.chaos.budget import InvocationBudget, Reply, reply_of
from serfer_bench.core.processes import pipe_of, read_frame, write_frame


@dataclass(frozen=True)
class Configuration:
    """The configuration of the process: plan directory, store's URL, Invoke API's endpoint and access, limits."""

    directory: str
    store: str
    driver: str
    endpoint: str
    key_id: str
    secret: str = field(repr=False)
    concurrency: int
    deadline_s: float


class RemoteDriver:
    """The process, which dies with the thread that makes it; one thread at a time may submit.

    Raises QueryError where it does not start.
    """

    def __init__(self, configuration: Configuration) -> None:
        command = dying_with_me(sys.executable, "-P", "-m", __name__)
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            command,
            env={
                **os.environ,
                "AWS_DEFAULT_REGION": REGION,
                "AWS_ACCESS_KEY_ID": configuration.key_id,
                "AWS_SECRET_ACCESS_KEY": configuration.secret,
                "AWS_ENDPOINT_URL_LAMBDA": configuration.endpoint,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._lock = threading.Lock()
        self._open: dict[int, Future[Reply]] = {}
        self._sent = 0
        self._ended = False
        self._reader = threading.Thread(target=self._receive, name="serfer-bench-driver")
        self._send(asdict(configuration))
        up = read_frame(pipe_of(self._process.stdout)) is not None
        self._reader.start()
        if not up:
            self.close()
            raise QueryError("the driver's process did not start")

    def submit(self, batch: NDArray[Any]) -> Future[Reply]:
        answer: Future[Reply] = Future()
        with self._lock:
            number, self._sent = self._sent, self._sent + 1
            if self._ended:
                answer.set_exception(QueryError("the driver's process has ended"))
                return answer
            self._open[number] = answer
        self._send([number, batch.dtype.str, batch.shape, np.ascontiguousarray(batch).data])
        return answer

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self.close()

    def close(self) -> None:
        with suppress(BrokenPipeError):  # of a query that it never read
            pipe_of(self._process.stdin).close()
        self._process.wait()
        self._reader.join()
        pipe_of(self._process.stdout).close()

    def _send(self, value: Any) -> None:  # noqa: ANN401 - any plain value
        with suppress(BrokenPipeError):  # it has died: the reader ends its queries
            write_frame(pipe_of(self._process.stdin), value)

    def _receive(self) -> None:
        while (frame := read_frame(pipe_of(self._process.stdout))) is not None:
            number, shape, logits, budget, served_s, problem = frame
            with self._lock:
                answer = self._open.pop(number)
            if problem:
                answer.set_exception(QueryError(problem))
            else:
                values = np.frombuffer(logits, dtype="<f4").reshape(shape)
                answer.set_result(Reply(values, InvocationBudget(*budget), served_s))
        with self._lock:
            self._ended, left = True, [*self._open.values()]
        for answer in left:
            answer.set_exception(QueryError("the driver's process has ended"))


class _LimitedSettings(Settings):
    def facts(self) -> AwsFacts:
        facts = super().facts()
        return replace(facts, functions=replace(facts.functions, concurrency=self.local_concurrency))


def main() -> None:
    queries, answers, lock = sys.stdin.buffer, sys.stdout.buffer, threading.Lock()

    def reply(number: int, done: Future[Result]) -> None:
        if not done.cancelled():
            with lock:
                write_frame(answers, [number, *_answer(done)])

    configuration = Configuration(**read_frame(queries))
    settings = _LimitedSettings(local_concurrency=configuration.concurrency)
    with open_pipeline(
        configuration.directory,
        store=configuration.store,
        workers="aws",
        driver=configuration.driver,
        settings=settings,
    ) as pipeline:
        write_frame(answers, "ready")
        while (query := read_frame(queries)) is not None:
            number, dtype, shape, data = query
            answer = pipeline.submit(np.frombuffer(data, dtype).reshape(shape), deadline_s=configuration.deadline_s)
            answer.add_done_callback(lambda done, number=number: reply(number, done))  # type: ignore[misc]


def _answer(done: Future[Result]) -> list[Any]:
    if problem := done.exception():
        return [[], b"", [], 0.0, f"{type(problem).__name__}: {problem}"]
    reply = reply_of(done.result())
    logits = np.ascontiguousarray(reply.logits, "<f4")
    return [logits.shape, logits.data, astuple(reply.budget), reply.served_s, ""]


if __name__ == "__main__":
    main()
