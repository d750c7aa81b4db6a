"""A query of an application: the variant that is selected for it answers, and where that fails another one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from serfer.applications.instances import VariantInstances
from serfer.applications.meters import ms_since
from serfer.applications.pipelines import VariantPipelines, served_name
from serfer.applications.releases import ServedReleases, error_text
from serfer.applications.served import ServedApplication, Side
from serfer.control.selection import FUNCTIONS, Selector, draw_of
from serfer.core.errors import (
    DeadlineError,
    LambdaThrottledError,
    NetworkLoadError,
    QueryError,
    SerferError,
    UnavailableError,
    UnmetObjectivesError,
    UsageError,
)
from serfer.core.variants import Objectives, Selection, Variant
from serfer.fleet.log_events import log_event
from serfer.pipeline.pipeline import AsyncPipeline

T = TypeVar("T")
_CANARY_DRAW = "canary "  # a query's draw for the canary is independent of that among variants
_SHADOWS = 2  # queries that are copied at once


@dataclass(frozen=True)
class Choice:
    """The variant that answers a query: `model` is the name under which its pipeline is served.

    `failed` says why the canary, which was selected first, did not answer.
    """

    application: str
    variant: Variant
    model: str
    selection: Selection
    release: int
    canary: bool = False
    failed: str = ""


@dataclass(frozen=True)
class ApplicationQuery:
    """What a query asks of an application; `query` is its id."""

    application: str
    objectives: Objectives
    query: str


@dataclass(frozen=True)
class Run(Generic[T]):
    """How a query is run on a variant, and what is looked at in its answer.

    `answer` runs it; the variant is opened within `opening`, which ends at the query's deadline. `is_cold` says whether
    the query waited for an environment, `agree` whether two answers are the same.
    """

    answer: Callable[[Choice], Awaitable[T]]
    opening: Callable[[], AbstractAsyncContextManager[None]]
    is_cold: Callable[[T], bool]
    agree: Callable[[T, T], bool]


class BackgroundTasks(set[asyncio.Task[Any]]):
    """Work that nobody waits for, on one event loop: its errors are logged, and it is cancelled at the end."""

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self.add(task)
        task.add_done_callback(self._end)

    async def cancel(self) -> None:
        tasks = [*self]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _end(self, task: asyncio.Task[Any]) -> None:
        self.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log_event(logging.ERROR, "applications", error, message=repr(error)[:300])


class VariantAnswering:
    """Selects variants of the releases that are served, and runs queries on them; on one event loop."""

    def __init__(
        self,
        releases: ServedReleases,
        pipelines: VariantPipelines,
        selector: Selector,
        instances: VariantInstances,
        clock: Callable[[], float],
    ) -> None:
        self.copies = BackgroundTasks()
        self._releases = releases
        self._pipelines = pipelines
        self._selector = selector
        self._instances = instances
        self._clock = clock

    def choose(self, query: ApplicationQuery) -> Choice:
        """Select the variant that answers a query.

        Raises UsageError for an unknown application, network or variant, and UnmetObjectivesError where the objectives
        are strict and no variant meets them.
        """
        self._releases.find(query.application).ask(query.objectives)
        return self._select(query, live=False)

    async def reference(self, application: str, network: str | None) -> AsyncPipeline:
        """Return an open pipeline of a network of the live release, by default the one of its cheapest variant.

        All variants of a network take the same tensors. Raises as `choose`, and what opening raises.
        """
        served, query = self._releases.find(application), ApplicationQuery(application, Objectives(network=network), "")
        choice = self._choose_of(served, query, [served.table.live])
        with self._pipelines.running(choice.model):
            await self._pipelines.open(choice.model, choice.variant, choice.selection.place)
            return self._pipelines.get(choice.model)

    async def answer(self, query: ApplicationQuery, run: Run[T]) -> tuple[Choice, T]:
        """Answer a query on the variant that is selected for it.

        Where a variant cannot be opened another one answers, and where the canary fails the live release. Raises what
        `choose`, `run.opening` and `run.answer` raise.
        """
        choice, live = self.choose(query), False
        while True:
            try:
                answer = await self._run_on(choice, run)
            except _UnopenedError as error:
                failed = str(error)
                self._exclude(choice, query, error)
                choice = self._select(query, live=live)
            except (QueryError, UnavailableError) as error:
                failed = error_text(error)
                if choice.canary:
                    log_event(logging.WARNING, "canary failed", variant=choice.model, message=failed)
                    live = True
                elif choice.selection.place != FUNCTIONS and isinstance(error, UnavailableError):
                    self._leave_instance(choice)
                else:
                    raise
                choice = self._select_instead(query, error, live=live)
            else:
                self._begin_copy(query, answer, run)
                return choice, answer
            choice = replace(choice, failed=failed)

    def _select(self, query: ApplicationQuery, *, live: bool) -> Choice:
        """Select a variant; with `live`, never the canary's."""
        served = self._releases.find(query.application)
        trial = served.table.trial
        if trial is None or live or trial.shadow:
            return self._choose_of(served, query, [served.table.live])
        is_drawn = draw_of(_CANARY_DRAW + query.query) < trial.share
        return self._choose_of(served, query, served.table.sides(canary_first=is_drawn))

    def _select_instead(self, query: ApplicationQuery, error: SerferError, *, live: bool) -> Choice:
        try:
            return self._select(query, live=live)
        except UnavailableError:
            raise error from None

    def _choose_of(self, served: ServedApplication, query: ApplicationQuery, sides: Sequence[Side]) -> Choice:
        table, objectives = served.table, query.objectives
        side = next((side for side in sides if side.has(objectives)), sides[0])
        selection = self._selector.get_variant(objectives, side.catalogue, served.states, draw_of(query.query))
        if objectives.strict and selection.missed:
            missed = ", ".join(f"{name} by {value:.3g}" for name, value in selection.missed.items())
            raise UnmetObjectivesError(
                f"no variant of {served.name} meets the objectives: the nearest, {selection.variant}, misses {missed}; "
                "ask for less, or leave out strict"
            )
        variant = side.variants[selection.variant]
        if not selection.place:
            raise UnavailableError(
                f"no instance has {variant.name}, which the objectives select: start one, or ask for less"
            )
        if objectives.network not in (None, variant.network):
            raise UsageError(f"variant {variant.name} is one of {variant.network}, not of {objectives.network}")
        model = served_name(served.name, variant.name, selection.place)
        return Choice(served.name, variant, model, selection, table.release.number, canary=side is table.canary)

    async def _run_on(self, choice: Choice, run: Run[T]) -> T:
        with self._pipelines.running(choice.model):
            async with run.opening():
                try:
                    await self._pipelines.open(choice.model, choice.variant, choice.selection.place)
                except SerferError as error:
                    log_event(logging.ERROR, "variant not opened", variant=choice.model, message=error_text(error))
                    raise _UnopenedError(error_text(error)) from error
            return await self._run_counted(choice, run)

    async def _run_counted(self, choice: Choice, run: Run[T]) -> T:
        """A client's faults count as nothing, nor does a deadline before which slower live answers do not come."""
        served = self._releases.served[choice.application]
        meter, counter = served.meter(choice.variant.name), served.counter(canary=choice.canary)
        begun, alone = self._clock(), meter.begin()
        try:
            answer = await run.answer(choice)
        except LambdaThrottledError:
            meter.throttle()
            raise
        except (QueryError, UnavailableError) as error:
            usual_ms = served.counter(canary=False).conduct.p95_ms or 0.0
            if not (isinstance(error, DeadlineError) and ms_since(begun, self._clock()) < usual_ms):
                counter.fail()
            raise
        else:
            ms = ms_since(begun, self._clock())
            meter.answer(ms, cold=run.is_cold(answer), alone=alone)
            counter.answer(ms)
            return answer
        finally:
            meter.end()

    def _exclude(self, choice: Choice, query: ApplicationQuery, unopened: _UnopenedError) -> None:
        name, why = choice.variant.name, "cannot be opened here, and the service's log says why"
        if query.objectives.variant is not None:
            raise VariantUnavailableError(f"variant {name} {why}") from unopened
        try:
            self._releases.exclude(self._releases.served[choice.application], choice.variant, str(unopened))
        except UnavailableError:
            raise VariantUnavailableError(
                f"application {choice.application} has no variant that can answer: {name} {why}; promote a "
                "version that this service can open"
            ) from unopened

    def _leave_instance(self, choice: Choice) -> None:
        self._instances.down(choice.selection.place)
        served = self._releases.served[choice.application]
        served.look(served.others, self._instances.signals)

    def _begin_copy(self, query: ApplicationQuery, answer: T, run: Run[T]) -> None:
        served = self._releases.served[query.application]
        trial = served.table.trial
        is_copied = trial and trial.shadow and draw_of(_CANARY_DRAW + query.query) < trial.share
        if is_copied and len(self.copies) < _SHADOWS:
            self.copies.start(self._compare_copy(served, query, answer, run))

    async def _compare_copy(self, served: ServedApplication, query: ApplicationQuery, answer: T, run: Run[T]) -> None:
        try:
            copied = await self._run_on(self._choose_of(served, query, served.table.sides(canary_first=True)), run)
        except Exception as error:  # noqa: BLE001 - whatever becomes of a copy, its query has its answer
            log_event(logging.WARNING, "shadow failed", application=served.name, message=error_text(error))
            return
        served.compared += 1
        served.agreed += run.agree(answer, copied)


class _UnopenedError(Exception):
    """A variant could not be opened."""


class VariantUnavailableError(NetworkLoadError):
    """No variant that may answer a query can be opened; the message has nothing of the reason, which is in the log."""
