"""The push driver: the return of a synchronous invocation is the completion of its task, so nothing is polled.

What happens to a query stands in two files: the run machine decides (serfer/core/run_machine.py), and one shell carries
out its decisions (drivers/push_run.py). A query whose data the store has lost is restarted (drivers/driver.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from drivers.batching import Batching
from drivers.clock import LOOP_CLOCK, Clock
from drivers.dispatching.dispatcher import Dispatcher
from drivers.dispatching.prewarming import Prewarming
from drivers.dispatching.priority_semaphore import PrioritySemaphore
from drivers.driver import NO_CONTEXT, Answer, QueryDriver, QueryRequest, RequestContext
from drivers.invoker import Invoker
from drivers.push_run import PushRun, Route, data_paths
from drivers.query_store import delete
from serfer.core.errors import UsageError
from serfer.core.hedging import LearntHedging
from serfer.core.keys import ResultPlace
from serfer.core.plan import Plan
from serfer.core.plan.borders import members
from serfer.core.run_machine import Retry
from serfer.core.wire import Crop
from storage.exchange import Exchange
from storage.store import Store


class PushDriver(QueryDriver):
    """Takes queries through one plan, any number at once.

    A crop of more than `inline_limit` bytes goes through the store, and so does a stage of which any payload would
    carry more, or any answer more than `answer_limit` (the same, unless given). A crop of more than `crop_limit` does
    too while the store takes it at once; without, payloads carry crops. A task may take `timeout_s`. As many
    invocations run at once as there are `slots`, with those of other drivers that have the same; those of the oldest
    query start first, unless `oldest_first` is off. With `hedge`, a task that is later than others of its stage have
    been gets a duplicate. With `batching`, tasks of several queries that wait for the same tile may be one invocation,
    and so may tiles of one query if a stage has more of them than there are slots; raises UsageError
    if the invoker cannot share invocations. The plan's gangs run as such where
    the store has inboxes, unless `gangs` is off, and else stage by stage; raises UsageError for a gang with more
    members than `slots`. With `prewarming`, the functions of later stages are warmed when a query comes after a
    time without any, if the invoker can warm them. Answers may be kept in the store `results`, by the workers.
    """

    def __init__(  # noqa: PLR0913 - what can be chosen, by name
        self,
        plan: Plan,
        invoker: Invoker,
        store: Store,
        *,
        inline_limit: int,
        answer_limit: int | None = None,
        crop_limit: int | None = None,
        retry: Retry | None = None,
        timeout_s: float = 60.0,
        slots: PrioritySemaphore | int = 1000,
        oldest_first: bool = True,
        hedge: bool = True,
        batching: Batching | None = None,
        clock: Clock = LOOP_CLOCK,
        gangs: bool = True,
        prewarming: Prewarming | None = None,
        results: Store | None = None,
    ) -> None:
        slots = PrioritySemaphore(slots) if isinstance(slots, int) else slots
        exchange = _open_exchange(plan, store, slots.limit) if gangs else None
        limit = inline_limit if answer_limit is None else min(inline_limit, answer_limit)
        self._dispatcher = Dispatcher(
            invoker,
            [
                [plan.function(number, tile.function) for tile in stage.tiles]
                for number, stage in enumerate(plan.stages)
            ],
            timeout_s=timeout_s,
            slots=slots,
            oldest_first=oldest_first,
            batching=batching,
            tensor_bytes=inline_limit,
            clock=clock,
        )
        self._route = Route(
            plan=plan,
            store=store,
            dispatcher=self._dispatcher,
            paths=functools.cache(lambda batch: data_paths(plan, batch, limit, gangs=exchange is not None)),
            inline_limit=inline_limit,
            crop_limit=inline_limit if crop_limit is None else min(crop_limit, inline_limit),
            retry=retry or Retry(),
            hedging=LearntHedging() if hedge else None,
            clock=clock,
            exchange=exchange,
            prewarmer=self._dispatcher.prewarm(plan, prewarming) if prewarming else None,
        )
        super().__init__(self._route.retry)
        self._results = results

    async def run(
        self, crops: Sequence[Crop], batch: int, deadline_s: float, context: RequestContext = NO_CONTEXT
    ) -> Answer:
        """Run one query of `batch` images, whose first-stage inputs are `crops`, one for each tile.

        Raises the error that the run ended with: TaskFailedError, DeadlineError, or what was unavailable; UsageError
        for a result of a driver that has no store of results.
        """
        discard = self._discard(context.result) if context.result else None
        now = self._route.clock.time()
        age = self._dispatcher.next_age(background=context.background)
        request = QueryRequest(crops, batch, now, now + deadline_s, age, context)
        with self._in_flight():
            return await self._until_answered(lambda: PushRun(self._route, request), discard)

    def _discard(self, place: ResultPlace) -> Callable[[], Coroutine[Any, Any, None]]:
        """Return what deletes the parts of a result whose query has failed; raises UsageError without a store."""
        if self._results is None:
            raise UsageError("there is no store of results: set SERFER_RESULTS to its URL, or pass --results")
        keys = place.keys(len(self._route.plan.stages[-1].tiles))
        return functools.partial(delete, self._results, keys, self._route.retry, self._route.clock)

    async def close(self) -> None:
        """Cancel the queries that run, and wait until what they and others left behind is deleted."""
        await super().close()
        if self._route.prewarmer:
            await self._route.prewarmer.close()
        if self._route.exchange:
            self._route.exchange.close()


def _open_exchange(plan: Plan, store: Store, slots: int) -> Exchange | None:
    """Return the inboxes of a plan's gangs; None where it has none, or the store no inboxes.

    Raises UsageError for a gang with more members than `slots`.
    """
    exchange = store.exchange() if plan.gangs else None
    if exchange is None:
        return None
    widest = max(plan.gangs, key=lambda gang: members(plan, gang))
    if members(plan, widest) > slots:
        exchange.close()
        raise UsageError(
            f"the gang of stages {widest.start} to {widest.stop - 1} needs {members(plan, widest)} invocations at "
            f"once, {slots} are allowed: allow more (SERFER_LOCAL_CONCURRENCY), or split with fewer tiles or "
            "--gang never"
        )
    return exchange
