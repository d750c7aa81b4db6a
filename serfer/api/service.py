"""What the routes call: models by name, a turn for each query, decoding off the event loop, an answer or an error."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

from drivers.driver import Asker
from serfer.api.admission import Admission
from serfer.api.problems import Problem
from serfer.core.errors import (
    DeadlineError,
    LambdaThrottledError,
    LambdaUnavailableError,
    StoreUnavailableError,
    TaskFailedError,
)
from serfer.pipeline import Pipeline, Result
from serfer.probe import Health
from storage.store import Store

_PROBE_EVERY_S = 2.0
_UNSOUND = (TaskFailedError, LambdaUnavailableError, StoreUnavailableError)  # these say something of more than a query


@dataclass(frozen=True)
class Question:
    """What a request asks of a model: `deadline_s` counts from its arrival, the time that it waits included."""

    model: str
    deadline_s: float
    asker: Asker


@dataclass(frozen=True)
class Answered:
    """A query's result, and how long it waited for its turn, in seconds on the pipeline's clock."""

    result: Result
    admitted: float
    queued_s: float


class Observer(Protocol):
    """Is told of every query's end."""

    def answered(self, model: str, answered: Answered) -> None:
        """Note an answer."""
        ...

    def failed(self, model: str, error: BaseException) -> None:
        """Note a query that was admitted and got no answer."""
        ...


class Service:
    """Answers for several models; the first of `pipelines` is the one that is meant where none is named."""

    def __init__(
        self, pipelines: Mapping[str, Pipeline], admission: Admission, observer: Observer, *, decoders: int = 2
    ) -> None:
        self.pipelines = dict(pipelines)
        self.admission = admission
        self.draining = False
        self._observer = observer
        self._decoders = ThreadPoolExecutor(decoders, thread_name_prefix="serfer-decode")
        self._health = Health()
        self._looked = float("-inf")
        self._looking: asyncio.Task[Health] | None = None
        self._doubtful = (
            False  # a query failed for a reason that others may share: only a true start proves the contrary
        )

    @property
    def default(self) -> str:
        """The model that is meant where none is named."""
        return next(iter(self.pipelines))

    @property
    def store(self) -> Store:
        """Where drivers share what they know of requests: the default model's store."""
        return self.pipelines[self.default].store

    def name(self, asked: str | None) -> str:
        """Return the model that a request means; raises Problem 404 for one that is not served."""
        if asked is None:
            return self.default
        if asked not in self.pipelines:
            raise Problem(HTTPStatus.NOT_FOUND, f"no model {asked[:80]!r} here: there is {', '.join(self.pipelines)}")
        return asked

    async def classify(self, question: Question, images: Sequence[bytes], names: Sequence[str], top_k: int) -> Answered:
        """Answer what a query's images show; raises Problem 429 where there is no room, else as `Pipeline.ask`."""
        pipeline = self.pipelines[question.model]
        return await self._in_turn(
            question,
            lambda left_s: pipeline.ask(images, names=names, top_k=top_k, deadline_s=left_s, asker=question.asker),
        )

    async def run(self, question: Question, batch: Any) -> Answered:  # noqa: ANN401 - as Pipeline.run's
        """Return what the network makes of an array, as `Pipeline.submit` takes it."""
        pipeline = self.pipelines[question.model]
        return await self._in_turn(
            question, lambda left_s: pipeline.submit(batch, deadline_s=left_s, asker=question.asker)
        )

    async def _in_turn(self, question: Question, begin: Callable[[float], Future[Result]]) -> Answered:
        """Wait for a turn, begin a query in a thread, and wait for it; whoever stops waiting cancels it."""
        deadline = time.monotonic() + question.deadline_s
        try:
            async with self.admission.turn(question.deadline_s) as queued_s:
                admitted = time.monotonic()
                result = await self._begun(begin, deadline)
        except Problem:
            raise  # whom it refuses the admission counts
        except BaseException as error:
            self._observer.failed(question.model, error)
            throttled = isinstance(
                error, LambdaThrottledError
            )  # which says that there are too many, not that one is ill
            self._doubtful = self._doubtful or (isinstance(error, _UNSOUND) and not throttled)
            raise
        self._doubtful = False
        answered = Answered(result, admitted, queued_s)
        self._observer.answered(question.model, answered)
        return answered

    async def _begun(self, begin: Callable[[float], Future[Result]], deadline: float) -> Result:
        def in_time() -> Future[Result]:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise DeadlineError("no answer by the deadline: it passed before the query could begin")
            return begin(left_s)

        started = self._decoders.submit(in_time)
        try:
            query = await asyncio.wrap_future(started)
        except asyncio.CancelledError:
            started.add_done_callback(_cancel)  # decoding goes on; what it begins must not
            raise
        return await asyncio.wrap_future(query)

    def drain(self) -> None:
        """Say from now on that no new queries should come; those that come all the same are answered."""
        self.draining = True

    async def health(self) -> Health:
        """Say whether store and functions are there, as last seen: they are looked at every two seconds at most."""
        if self._looking is None and time.monotonic() - self._looked > _PROBE_EVERY_S:
            self._looking = asyncio.create_task(self._look())
        if self._looking is not None:
            return await asyncio.shield(self._looking)
        return self._health

    async def _look(self) -> Health:
        """Look at every model's store and functions; after a doubtful failure, functions have to start."""
        try:
            doubtful = self._doubtful
            looks = [pipeline.health(start=doubtful) for pipeline in self.pipelines.values()]
            found = await asyncio.gather(*(asyncio.wrap_future(look) for look in looks))
            self._health = next((health for health in found if not health.ready), Health())
            if doubtful and self._health.ready and not any(health.busy for health in found):
                self._doubtful = False
        finally:
            self._looked, self._looking = time.monotonic(), None
        return self._health

    async def close(self) -> None:
        """End what runs and close every model."""
        for pipeline in self.pipelines.values():
            await asyncio.to_thread(pipeline.close)
        self._decoders.shutdown()


def _cancel(started: Future[Future[Result]]) -> None:
    if not started.cancelled() and started.exception() is None:
        started.result().cancel()
