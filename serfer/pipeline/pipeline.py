"""A plan that is ready to answer: images or arrays in, outputs or classes out.

Its coroutines may be awaited on any event loop; its other methods block a thread, or return what is to come.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import cached_property, partial
from math import inf, prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.arrays import array_of
from serfer.core.costs.aws import LambdaFacts
from serfer.core.errors import DeadlineError, UnavailableError, UsageError
from serfer.core.keys import LOCAL_OWNER, ResultPlace
from serfer.core.plan import ImageLimits, Plan
from serfer.core.report import FunctionLoad
from serfer.core.wire import MAX_TTL
from serfer.drivers.driver import NO_CONTEXT, TTL_MARGIN_S, Driver, RequestContext
from serfer.drivers.push import PushDriver
from serfer.drivers.target import Target
from serfer.images import DecodedImage, Recipe, decode_image, read_image, stacked
from serfer.pipeline.event_loop import LoopThread, never_free_in_forks
from serfer.pipeline.health import FunctionGauge, Health, Probe
from serfer.pipeline.plan_choice import OnePlan, TwoPlans
from serfer.pipeline.query import (
    NamedImage,
    Query,
    Wanted,
    check_batch,
    check_finite,
    cut_crops,
    plan_for,
    preprocess_of,
    size_of,
)
from serfer.pipeline.result import Result, from_cache, from_functions, from_instance, with_counts
from serfer.pipeline.result_cache import Keeper, ResultCache
from serfer.pipeline.thread_work import EncodedImages, ThreadWork
from serfer.pipeline.warm import HOLD_S, Warmer, Warmth, warm
from serfer.results import Results, StoredResult, planned_manifest

Image = bytes | str | Path
_ALL = Wanted()
_NO_ARRAY = np.empty(0, np.uint8)
_ELEMENT_BYTES = 4  # float32
DEADLINE_S = 120.0
_now = time.monotonic  # the event loop's, and so the driver's, clock
MAX_DEADLINE_S = MAX_TTL - TTL_MARGIN_S


class AsyncPipeline:
    """Answers queries through one plan, of coroutines on any event loop; they run on `loop`, which `close` ends.

    A `target` is asked for every query first; those that it does not take, `driver` takes through the plan's functions.
    Without a driver the target takes all. With `plans`, which has the driver then, queries also run on a second plan.
    With a `keeper`, answers may be kept as results; with a `gauge`, the load of the functions is known. `warmth` is
    what keeps the functions warm, if anything does, for metrics. Where its only function computes `in_threads` of this
    process, queries of arrays end by themselves at their deadlines.
    """

    def __init__(  # noqa: PLR0913 - its parts, by name
        self,
        plan: Plan,
        driver: Driver | None,
        loop: LoopThread,
        close: Callable[[], Awaitable[None]],
        facts: LambdaFacts,
        limits: ImageLimits,
        probe: Probe,
        *,
        warmer: Warmer | None = None,
        cache: ResultCache | None = None,
        target: Target | None = None,
        plans: OnePlan | TwoPlans | None = None,
        keeper: Keeper | None = None,
        gauge: FunctionGauge | None = None,
        warmth: object | None = None,
    ) -> None:
        never_free_in_forks(self)
        self.plan = plan
        self.warmth = warmth
        self._last: Result | None = None
        self._plans = OnePlan(plan, driver) if driver and not plans else plans
        self.target = target
        self.store = probe.store
        self.loop = loop
        self._close = close
        self.facts = facts
        self._limits = limits
        self._probe = probe
        self._warmer = warmer
        self._cache = cache
        self._keeper = keeper
        self._gauge = gauge
        self.closed = False
        only = self._plans if isinstance(self._plans, OnePlan) and not (target or cache) else None
        push = only.driver if only and isinstance(only.driver, PushDriver) else None
        self._reason = only.reason if only else ""
        self._short = push if push and push.threads else None  # that may take the short way
        self.in_threads = self._short is not None

    @property
    def last(self) -> Result:
        """The newest query's result, whichever thread asked; raises UsageError before the first one."""
        if self._last is None:
            raise UsageError("the pipeline has answered no query yet")
        return self._last

    def new_result(self, owner: str = LOCAL_OWNER, ttl_s: float | None = None) -> ResultPlace:
        """Return a place for a query's answer (`RequestContext.result`).

        Raises UsageError without a store of results.
        """
        return self._required_keeper().place(owner, ttl_s)

    @property
    def results(self) -> Results:
        """The results that can be read here; raises UsageError where there is no store of them."""
        return self._required_keeper().results

    def stored(self, result: str, owner: str = LOCAL_OWNER) -> StoredResult:
        """Return the result with an id; raises ResultGoneError where its owner has none, or none any more."""
        return StoredResult(self.results, self.results.read(owner, result))

    async def answer(
        self,
        batch: Any,  # noqa: ANN401 - as run's
        *,
        deadline_s: float = DEADLINE_S,
        context: RequestContext = NO_CONTEXT,
        decoded_s: float = 0.0,
        images: Sequence[NamedImage] = (),
        wanted: Wanted = _ALL,
    ) -> Result:
        """Return the result of a query of what `submit` takes; the caller leaves the array as it is until then.

        Where it was made from `images`, decoding took `decoded_s`, and the report has what is `wanted` of each of them.
        Raises what `submit` does; a cancelled caller cancels the query.
        """
        array = batch if type(batch) is np.ndarray else array_of(batch, "batch")  # nothing to do for most
        size = inf if self._cache is not None else array.nbytes  # a look into the store blocks
        values = self._short is None  # else in the task's thread
        made = partial(self._query, array, deadline_s, context, decoded_s, images, wanted, values=values)
        query = await self.loop.compute(size if values else 0, made)
        return query if isinstance(query, Result) else await self.loop.run(self._answer(query))

    def decodes(self, images: int, context: RequestContext) -> bool:
        """Return whether `answer_encoded` takes a query of so many images."""
        threads, plan = self._short, self.plan
        return (
            threads is not None
            and plan.sizes is None
            and threads.is_short(images, images * plan.input.elements, context)
        )

    def answer_encoded(
        self, encoded: EncodedImages, *, deadline_s: float, context: RequestContext = NO_CONTEXT, wanted: Wanted = _ALL
    ) -> Awaitable[Result]:
        """Return the result of a query of images that are decoded in the thread of its task, where `decodes` says so.

        Raises what `submit` does, and what decoding raises; a cancelled caller cancels the query.
        """
        self.check(deadline_s)
        query = Query(_NO_ARRAY, (), wanted, (0.0, 0.0), deadline_s, None, context)
        return self.loop.run(self._in_thread(query, len(encoded.names), encoded))

    def begin(self, batch: Any, deadline_s: float, context: RequestContext) -> Future[Result]:  # noqa: ANN401 - as run's
        """Start a query whose array the caller may change from then on, and return its result to come."""
        query = self._query(array_of(batch, "batch"), deadline_s, context)
        if isinstance(query, Query):
            own = replace(query, array=query.array.copy()) if query.array.flags.writeable else query
            return self.loop.submit(self._answer(own))
        future: Future[Result] = Future()
        future.set_result(query)
        return future

    def _query(
        self,
        array: NDArray[Any],
        deadline_s: float,
        context: RequestContext,
        decoded_s: float = 0.0,
        images: Sequence[NamedImage] = (),
        wanted: Wanted = _ALL,
        *,
        values: bool = True,
    ) -> Query | Result:
        """Check a query of an array, and return it, or its result where the answer is kept."""
        started, plan = _now() - decoded_s, plan_for(self.plan, array, context.window)
        check_batch(plan, array, values=values)
        self.check(deadline_s)
        if context.result is not None:
            self._check_result(context.result, len(array))
        query = Query(array, images, wanted, (started, _now()), deadline_s, None, context, finite=values)
        if self._cache is None or context.result is not None:
            return query
        what = f"{array.dtype} {array.shape} {context.window} {context.levels or ''}"
        key = self._cache.key([what.encode(), context.statistics, np.ascontiguousarray(array).data])
        if (outputs := self._cache.find(key, len(array), plan)) is None:
            return replace(query, key=key)
        self._last = from_cache(plan, query, outputs, _now())
        return self._last

    async def warm(self, queries: int = 1, hold_s: float = HOLD_S) -> list[Warmth]:
        """Get every function ready for so many queries at once; raises UsageError where workers are in process.

        Each request keeps its environment for `hold_s` seconds, so that the others find another one.
        """
        if self._warmer is None:
            raise UsageError("workers in process are always warm: warm local or deployed ones")
        return await self.loop.run(warm(self.plan, self._warmer, queries, hold_s))

    @cached_property
    def recipe(self) -> Recipe:
        """The preprocessing of an image; raises PlanError where the plan does not say."""
        sizes = self.plan.sizes.input if self.plan.sizes else None
        return Recipe(preprocess_of(self.plan), self.plan.input, self._limits, sizes)

    def pixels(self, images: Sequence[Image], names: Sequence[str] | None = None) -> NDArray[np.uint8]:
        """Decode images (encoded bytes, or paths) to the (N, H, W, C) uint8 pixels that the network takes.

        Raises ImageError where a plan of many sizes takes them at several.
        """
        names = names or names_of(images)
        return stacked(self.decode(images, names), names)

    def decode(self, images: Sequence[Image], names: Sequence[str]) -> list[DecodedImage]:
        """Decode named images to the size that the network takes; raises ImageError that names the image."""
        recipe, limits = self.recipe, self.recipe.limits
        encoded = [image if isinstance(image, bytes) else read_image(Path(image), limits) for image in images]
        return [decode_image(data, name, recipe) for data, name in zip(encoded, names, strict=True)]

    def function_load(self) -> FunctionLoad | None:
        """Return how much its functions have to do; None for a pipeline without functions, or with a state machine."""
        return self._gauge.read() if self._gauge else None

    async def health(self, *, start: bool = False) -> Health:
        """Check the store and the functions; with `start`, every function has to start an environment."""
        return await self.loop.run(self._probe.look(start=start))

    def check(self, deadline_s: float) -> None:
        """Raise UsageError for a closed pipeline, and for a deadline that no query can have."""
        if self.closed:
            raise UsageError("the pipeline is closed")
        if not 0 < deadline_s <= MAX_DEADLINE_S:
            raise UsageError(f"the deadline must be more than 0 s and at most {MAX_DEADLINE_S:g} s, not {deadline_s}")

    async def _in_thread(self, query: Query, batch: int, encoded: EncodedImages | None = None) -> Result:
        """Take the short way (serfer/drivers/short_run.py), which the driver said that there is."""
        if self._short is None:
            raise UsageError("this pipeline computes elsewhere, and takes decoded images")
        plan = self.plan if encoded else plan_for(self.plan, query.array)
        work = ThreadWork(plan, query, self.facts, self._reason, encoded)
        self._last = made = await self._short.run_in_thread(work, batch, query.deadline_s, query.context)
        return made

    async def _answer(self, query: Query) -> Result:
        if self._short:
            if size := size_of(self.plan, query.array):
                query = replace(query, context=replace(query.context, size=size))
            if self._short.is_short(query.batch, query.array.nbytes, query.context):
                return await self._in_thread(query, query.batch)
        started, served = _now(), None
        # Instances write to no store, and know the plan's levels alone.
        if self.target is not None and query.context.result is None and query.context.levels is None:
            served = await self.target.run(query.array, query.deadline_s, query.context)
        if served is None:
            result = await self._by_functions(query, started + query.deadline_s)
        else:
            plan = plan_for(self.plan, query.array) if query.images else self.plan
            make = partial(from_instance, plan, query, served, started)
            result = await self.loop.compute(_output_bytes(self.plan, query), make, _now())
        self._last = result
        if self._cache and query.key:
            await asyncio.to_thread(self._cache.keep, query.key, result.outputs)
        return result

    async def _by_functions(self, query: Query, deadline: float) -> Result:
        if self._plans is None:
            raise UnavailableError("no instance took the query, and this pipeline has no functions")
        with self._plans.choose() as chosen:
            plan, size = plan_for(chosen.plan, query.array, query.context.window), query.array.nbytes
            if not query.finite:
                await self.loop.compute(size, check_finite, query.array)
            crops = await self.loop.compute(size, cut_crops, plan, query.array, query.context.levels)
            query = replace(query, cut=(query.cut[0], _now()))
            left_s = deadline - _now()
            if left_s <= 0:
                raise DeadlineError("no answer by the deadline: it passed before the query could begin")
            place = query.context.result  # whose lifetime begins now
            kept = planned_manifest(chosen.plan, place, query.batch, self.results.now()) if place else None
            context = query.context
            if chosen.plan.sizes:
                context = replace(context, size=size_of(chosen.plan, query.array))
            answer = chosen.complete(await chosen.driver.run(crops, query.batch, left_s, context))
        if kept and self._keeper:
            answer = with_counts(answer, await self._keeper.finish(kept, deadline))
        make = partial(from_functions, plan, query, answer, self.facts, plan_reason=chosen.reason, kept=kept)
        return await self.loop.compute(0 if kept else _output_bytes(plan, query), make, _now())

    def _required_keeper(self) -> Keeper:
        if self._keeper is None:
            raise UsageError("there is no store of results: set SERFER_RESULTS to its URL, or pass --results")
        return self._keeper

    def _check_result(self, place: ResultPlace, images: int) -> None:
        if self._plans is None:
            raise UsageError("instances do not keep results: use the plan's functions")
        self._required_keeper().check(self.plan, place, images)

    async def close(self) -> None:
        """Stop what the pipeline started, and delete what its queries left in the store; in a fork, do nothing."""
        if not (self.closed or self.loop.forked):
            self.closed = True
            try:
                await self.loop.run(self.stop())
            finally:
                await asyncio.to_thread(self.loop.close)

    async def stop(self) -> None:
        """Do what `close` does, on the loop, which goes on."""
        try:
            if self._keeper is not None:
                await self._keeper.close()
            if self.target is not None:
                await self.target.close()
        finally:
            await self._close()


def _output_bytes(plan: Plan, query: Query) -> float:
    """Return the bytes of a query's outputs, as float32; pictures and boxes made of them take longer than that."""
    if query.images and not query.wanted.classes:
        return inf
    return query.batch * _ELEMENT_BYTES * sum(prod(tensor.dims) for tensor in plan.output_tensors)


def names_of(images: Sequence[Image]) -> list[str]:
    return [f"image {number}" if isinstance(image, bytes) else str(image) for number, image in enumerate(images)]
