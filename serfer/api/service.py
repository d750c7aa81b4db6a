"""The service behind the routes: models by name, decoding in processes, fair turns, an answer or an error in time.

arrives ──▶ a place (serfer/api/admission.py) ──▶ decoded (serfer/api/decoding/decoders.py) ──▶ its turn ──▶ answer
└────────────────────────── one deadline over all of it: DeadlineError ─────────────────────────┘
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from serfer.api.admission import Admission, HeldBytes, Place
from serfer.api.decoding.decoders import Decoders
from serfer.api.decoding.plain import plain_heads
from serfer.api.http.problems import Problem
from serfer.api.jobs.offline import OfflineJobs
from serfer.applications.applications import Applications
from serfer.control.dispatch import Batching
from serfer.control.online_load import LoadMonitor
from serfer.core.errors import (
    DeadlineError,
    LambdaThrottledError,
    LambdaUnavailableError,
    StoreUnavailableError,
    TaskFailedError,
    UsageError,
)
from serfer.core.http_messages import InstanceState, ModelState
from serfer.drivers.driver import RequestContext
from serfer.images import decode_image
from serfer.pipeline.health import Health
from serfer.pipeline.pipeline import AsyncPipeline
from serfer.pipeline.query import NamedImage, Wanted, check_images
from serfer.pipeline.result import Result
from serfer.pipeline.thread_work import EncodedImages
from serfer.results import ResultManifest
from serfer.storage.store import Store

_Run = Callable[..., Awaitable[Result]]
_Seconds = tuple[float, float]  # that decoding waited, and took
_PROBE_EVERY_S = 2.0
_LEAST_S = 0.001  # of time left: no pipeline takes a query without any
_MS_PER_S = 1000
_NOT_BEGUN = "nothing was begun"
_KNOWN_S = 20.0  # how long the last health is reported while it is being looked at again
_UNSOUND = (TaskFailedError, LambdaUnavailableError, StoreUnavailableError)  # these say something of more than a query


@dataclass(frozen=True)
class ServiceQuery:
    """A query to a model, and the deadline of its answer, on time.monotonic's clock.

    `allowed_s` is the time between the request's arrival and its deadline; `client` names who shares the service
    fairly with other clients: an API key's name, or an address. `place` is the one that is kept for it, if any, and
    `held` the bytes that its request holds.
    """

    model: str
    deadline: float
    allowed_s: float
    context: RequestContext
    client: str = ""
    place: Place | None = None
    held: HeldBytes | None = None

    @property
    def left_s(self) -> float:
        return self.deadline - time.monotonic()

    def remaining_s(self, doing: str) -> float:
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise self.late(doing)
        return left_s

    def late(self, doing: str) -> DeadlineError:
        return DeadlineError(f"no answer by the deadline of {self.allowed_s * _MS_PER_S:.0f} ms: {doing}; allow more")

    @asynccontextmanager
    async def in_time(self, doing: str) -> AsyncIterator[None]:
        """Stop what is done within the context at the deadline, or begin nothing after it: DeadlineError."""
        bound = asyncio.timeout(self.remaining_s(doing))
        try:
            async with bound:
                yield
        except TimeoutError:
            if bound.expired():
                raise self.late(doing) from None
            raise


@dataclass(frozen=True)
class ServiceResult:
    """A query's result, and how long it waited for decoders and its turn, in seconds on the pipeline's clock.

    An image is decoded before its query's turn has come; here, as in the report, that counts after `admitted`.
    """

    result: Result
    admitted: float
    queued_s: float


class Observer(Protocol):
    """Is notified of every query's end."""

    def answered(self, model: str, answered: ServiceResult) -> None: ...

    def failed(self, model: str, error: BaseException) -> None: ...


class ModelRepository(Protocol):
    """Networks that come and go."""

    def states(self) -> Mapping[str, ModelState]: ...

    def state(self) -> InstanceState: ...

    async def load(self, name: str, patience_s: float) -> None:
        """Load a network; raises OverloadedError where there was no room in time, NetworkLoadError."""
        ...

    async def unload(self, name: str) -> bool:
        """Unload a network, unless it has queries to answer, and return whether it is unloaded."""
        ...

    async def set_batching(self, name: str, max_batch: int | None, window_s: float) -> Batching:
        """Set the images computed at once and the window for them, None: as at the start; return what holds now."""
        ...


class Service:
    """Answers for several models; the first of `pipelines` is the one that is meant where none is named.

    `applications` select among variants, whose pipelines come and go beside those of the `models`; `jobs` are
    offline work, and a `plan_watch` blocks while it looks at plan directories.
    `results` is the store of the results that it keeps, which it closes; None where it keeps none. `repository` are
    the networks of an instance, None elsewhere. `store` is that of the state that drivers share, by default the first
    model's.
    """

    def __init__(
        self,
        pipelines: Mapping[str, AsyncPipeline],
        admission: Admission,
        observer: Observer,
        decoders: Decoders | None = None,
        *,
        results: Store | None = None,
        repository: ModelRepository | None = None,
        store: Store | None = None,
    ) -> None:
        self.pipelines = dict(pipelines)
        self.models = tuple(pipelines)
        self.applications: Applications | None = None
        self.jobs: OfflineJobs | None = None
        self.plan_watch: Callable[[], None] | None = None
        self.admission = admission
        self.load = LoadMonitor(self.pipelines, admission.in_flight, time.monotonic)
        self.decoders = decoders or Decoders()
        self.draining, self.restarts = False, 0  # of the process that serves, by its parent
        self._observer = observer
        self.results = results
        self.repository = repository
        self._store = store
        self._health = Health()
        self._looked = float("-inf")
        self._looking: asyncio.Task[Health] | None = None
        self._doubtful = False  # whether a query failed for a reason that others may share, until a true start

    @property
    def default(self) -> str | None:
        """The model that is meant where none is named; None where there are applications alone."""
        return self.models[0] if self.models else None

    @property
    def store(self) -> Store:
        """The store in which drivers share the state of requests; raises UsageError where there is none."""
        if self._store is not None:
            return self._store
        if self.default is None:
            raise UsageError("a service without models needs a store of its own")
        return self.pipelines[self.default].store

    def name(self, requested: str | None) -> str:
        if requested is None and self.models:
            return self.models[0]
        if requested is None or requested not in self.models:
            application = (requested or "").partition(":")[0]
            if self.applications is not None and self.applications.releases.is_deleted(application):
                raise Problem(404, self.applications.releases.why_absent(application))
            known = ", ".join(self.models) or "none, but applications (GET /v1/applications)"
            raise Problem(404, f"no model {(requested or '')[:80]!r} here: there is {known}")
        return requested

    def check(self, query: ServiceQuery) -> float:
        """Return the seconds that are left of a query which could be answered in time; Problem 429, DeadlineError."""
        left_s = query.remaining_s(_NOT_BEGUN)
        self.admission.check(query.client, left_s)
        return left_s

    async def predict(
        self, query: ServiceQuery, images: Sequence[bytes], names: Sequence[str], wanted: Wanted
    ) -> ServiceResult:
        """Return what a network finds in a query's images, in its report; where its context names a result, it is kept.

        Raises Problem 429 where there is no room, DeadlineError, ImageError that names the image, else as
        `AsyncPipeline.answer`.
        """
        pipeline = self.pipelines[query.model]
        recipe = pipeline.recipe
        try:
            check_images(pipeline.plan, images, names, wanted)  # first: what is refused takes no other query's place
            count, left_s = len(images), query.remaining_s(_NOT_BEGUN)
            with query.place or self.admission.place(query.client, left_s) as place:
                if query.held is not None:
                    query.held.add(count * recipe.shape.elements)
                if (
                    pipeline.in_threads
                    and pipeline.decodes(count, query.context)
                    and (heads := plain_heads(images, recipe, *self.decoders.plain_limits))
                ):
                    named = zip(images, names, heads, strict=True)
                    decode = [partial(decode_image, data, name, recipe, head=head) for data, name, head in named]
                    encoded = EncodedImages(names, decode)
                    run: _Run = partial(pipeline.answer_encoded, encoded, context=query.context, wanted=wanted)
                    return await self._in_turn(query, place, count, run, left_s)
                async with query.in_time("its images were not decoded"):
                    decoded = await self.decoders.decode(images, names, recipe, place)
                run = partial(
                    pipeline.answer,
                    decoded.pixels,
                    context=query.context,
                    decoded_s=decoded.busy_s,
                    images=[NamedImage(name, size) for name, size in zip(names, decoded.sizes, strict=True)],
                    wanted=wanted,
                )
                return await self._in_turn(query, place, count, run, query.left_s, (decoded.waited_s, decoded.busy_s))
        except BaseException as error:
            self._count_failure(query.model, error)
            raise

    async def run(self, query: ServiceQuery, batch: Any) -> ServiceResult:  # noqa: ANN401 - as AsyncPipeline.run's
        """Return what the network makes of an array, as `AsyncPipeline.answer` takes it; raises as `predict` does."""
        pipeline = self.pipelines[query.model]
        try:
            run = partial(pipeline.answer, batch, context=query.context)
            left_s = query.remaining_s(_NOT_BEGUN)
            with query.place or self.admission.place(query.client, left_s) as place:
                return await self._in_turn(query, place, len(batch), run, left_s)
        except BaseException as error:
            self._count_failure(query.model, error)
            raise

    async def keep(self, query: ServiceQuery, batch: Any, owner: str) -> tuple[ServiceResult, ResultManifest]:  # noqa: ANN401 - same
        """Have the outputs of an array kept for an owner, and return what describes them; raises as `run` does."""
        context = replace(query.context, result=self.pipelines[query.model].new_result(owner))
        answered = await self.run(replace(query, context=context), batch)
        if answered.result.kept is None:
            raise UsageError("the outputs of this model are not kept")
        return answered, answered.result.kept

    def _count_failure(self, model: str, error: BaseException) -> None:
        if not isinstance(error, Problem):
            self._observer.failed(model, error)
            throttled = isinstance(error, LambdaThrottledError)  # that there are too many, not that one is ill
            self._doubtful = self._doubtful or (isinstance(error, _UNSOUND) and not throttled)

    async def _in_turn(
        self, query: ServiceQuery, place: Place, images: int, run: _Run, left_s: float, decoding: _Seconds = (0, 0)
    ) -> ServiceResult:
        turns, admitted, (waited_s, busy_s) = self.admission.turns, None, decoding
        try:
            async with turns.hold(place, left_s) as turn:
                admitted = turn.since
                self.load.change(admitted, 1)
                try:
                    left_s = max(query.deadline - admitted, _LEAST_S)
                    if self.pipelines[query.model].in_threads:  # whose queries end by themselves at their deadlines
                        result = await run(deadline_s=left_s)
                    else:
                        async with query.in_time("it was running"):
                            result = await run(deadline_s=left_s)
                finally:
                    self.load.change(time.monotonic(), -1)
        except DeadlineError:
            if admitted is None:  # the error is of the time that was left, which no client knows
                raise query.late("it waited for its turn") from None
            raise
        answered = ServiceResult(result, admitted - busy_s, turn.waited_s + waited_s)
        self._doubtful = False
        self.load.answered(turns.ended, query.model, images, result.report)
        self._observer.answered(query.model, answered)
        return answered

    def drain(self) -> None:
        """Report from now on that the service takes no new queries; those that come all the same are answered."""
        self.draining = True

    async def ready(self) -> bool:
        return not self.draining and (await self.health()).ready

    async def health(self) -> Health:
        """Return whether store and functions are there, as last seen: they are looked at every two seconds at most.

        A caller waits for a look only where there was none lately: a busy service must not seem dead.
        """
        age_s = time.monotonic() - self._looked
        if self._looking is None and age_s > _PROBE_EVERY_S:
            self._looking = asyncio.create_task(self._look())
        if self._looking is not None and age_s > _KNOWN_S:
            return await asyncio.shield(self._looking)
        return self._health

    async def _look(self) -> Health:
        """Check every model's store and functions; after a doubtful failure, functions have to start.

        Of the variants that are open one that is well suffices: selection leaves the others out.
        """
        try:
            doubtful = self._doubtful
            looks = {name: pipeline.health(start=doubtful) for name, pipeline in self.pipelines.items()}
            found = await asyncio.gather(*looks.values(), return_exceptions=True)
            if self.plan_watch is not None:
                await asyncio.to_thread(self.plan_watch)
            states = dict(zip(looks, found, strict=True))
            models = [_raise_or_return(states[name]) for name in self.models]
            others = [state for name, state in states.items() if name not in self.models]
            variants = [state for state in others if isinstance(state, Health)]
            if variants and not any(health.ready for health in variants):
                models.append(variants[0])
            self._health = next((health for health in models if not health.ready), Health())
            if doubtful and self._health.ready and not any(health.busy for health in (*models, *variants)):
                self._doubtful = False
        finally:
            self._looked, self._looking = time.monotonic(), None
        return self._health

    async def close(self) -> None:
        if self.jobs is not None:
            await self.jobs.close()
        if self.applications is not None:
            await self.applications.close()
        await self.close_pipelines()
        if self._store is not None:
            await asyncio.to_thread(self._store.close)
        if self.results is not None:
            await asyncio.to_thread(self.results.close)
        await self.decoders.close()

    async def close_pipelines(self) -> None:
        for pipeline in [*self.pipelines.values()]:
            await pipeline.close()


def _raise_or_return(state: Health | BaseException) -> Health:
    if isinstance(state, BaseException):
        raise state
    return state
