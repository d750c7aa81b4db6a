"""Applications in one driver: a variant for each query, and each second a look at the registry and other drivers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Generic, TypeVar

from serfer.applications.exchange import Exchange
from serfer.applications.instances import VariantInstances
from serfer.applications.meters import ms_since
from serfer.applications.pipelines import AT, VariantPipelines
from serfer.applications.served import FailedCanary, FunctionsPlace, ServedApplication
from serfer.applications.tables import Side, Table, table_of
from serfer.control.selection import FUNCTIONS, Selector, VariantSignals, draw_of
from serfer.core.errors import (
    DeadlineError,
    InputError,
    LambdaThrottledError,
    NetworkLoadError,
    QueryError,
    SerferError,
    UnavailableError,
    UnmetObjectivesError,
    UsageError,
)
from serfer.core.variants import Application, Objectives, Place, Selection, Variant
from serfer.fleet.control_loop import ControlLoop, Loop, Timing
from serfer.fleet.log_events import TroubleLog, log_event
from serfer.pipeline.pipeline import Pipeline
from serfer.registry import Registry

T = TypeVar("T")
_CANARY_DRAW = "canary "  # a query's draw for the canary is independent of that among variants
MAX_APPLICATIONS: Final = 100
"""Applications of a driver."""
_LIST_EVERY_S = 10.0  # between two lists of the registry's applications
_BROKEN_S = 30.0  # for which a variant that could not be opened is not selected
_SHADOWS = 2  # queries that are copied at once
_LOOKS = 16
"""Applications looked at together: a round over MAX_APPLICATIONS is to take less than TTL_S (fleet/registry.py)."""
STILL_S: Final = 5.0
"""Seconds until a driver that runs during requests alone looks at the registry again."""
_PATIENCE_S = 1.0  # for which a request waits for that


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


class Applications(Loop):
    """The applications that a driver serves; used on one event loop, and closed before the pipelines are.

    `runs_here` says of a variant whether this driver can run it. `exchanges` are by application. With `join`, which
    makes the exchange of another one, applications that come to the registry later are served, too. Without `canaries`,
    the live release answers all queries.
    """

    def __init__(  # noqa: PLR0913 - its parts, by name
        self,
        registry: Registry,
        pipelines: VariantPipelines,
        selector: Selector,
        instances: VariantInstances,
        exchanges: Mapping[str, Exchange],
        *,
        place: FunctionsPlace,
        runs_here: Callable[[Variant], bool],
        driver: str,
        join: Callable[[str], Exchange] | None = None,
        canaries: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__("application trouble", Timing(now=clock))
        self.pipelines = pipelines
        self._registry = registry
        self._selector = selector
        self._instances = instances
        self._exchanges = dict(exchanges)
        self._join = join
        self._place = place
        self._runs_here = runs_here
        self._driver = driver
        self._canaries = canaries
        self._clock = clock
        self._trouble_log = TroubleLog("application trouble", clock)
        self._looked = float("-inf")
        self._served = {name: ServedApplication(name, place, clock) for name in exchanges}
        self._broken: dict[str, float] = {}
        self._logged: dict[str, str] = {}  # by application: since when the canary was there that was logged as failed
        self._unserved: dict[str, str] = {}  # why applications that came later are not served, as it was logged
        self._working: set[asyncio.Task[Any]] = set()
        self._shadows: set[asyncio.Task[Any]] = set()
        self._lookers = ThreadPoolExecutor(_LOOKS, "applications")
        self.fleet: ControlLoop | None = None
        self._listing = asyncio.Lock()
        self._listed = float("-inf")

    @property
    def registry(self) -> Registry:
        """Where the applications are registered."""
        return self._registry

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the applications; the first one is meant where a query names none."""
        return tuple(name for name, served in self._served.items() if not served.deleted)

    def is_deleted(self, application: str) -> bool:
        """Whether an application that was served was deleted from the registry."""
        found = self._served.get(application)
        return found is not None and found.deleted

    def absent(self, application: str) -> str:
        """Return why an application is not served: it is unknown, or was deleted."""
        if self.is_deleted(application):
            return self._served[application].why_deleted
        return f"no application {application[:80]!r} here: there is {', '.join(self.names) or 'none'}"

    @property
    def every(self) -> Mapping[str, ServedApplication]:
        """The applications by name."""
        return self._served

    def copies(self, application: str, variant: str) -> int:
        """Return how many instances have a variant in memory, as far as is known here."""
        return sum(seen.warm for seen in self._signals(application, variant).values())

    def cautions(self, application: str, variant: str) -> Mapping[str, str]:
        """Return why a variant's recorded accuracy may be another at an instance, by the instance's URL."""
        return self._instances.cautions(served_name(application, variant))

    def served(self, application: str) -> ServedApplication:
        """Return an application; raises UsageError for one that is not served here."""
        found = self._served.get(application)
        if found is None:
            raise UsageError(self.absent(application))
        return found

    async def open(self, *, warm: bool = True) -> None:
        """Read the records, and open and warm up the cheapest variant of each application on functions that can be.

        Without `warm`, the first query opens one. Raises what reading raises, and UnavailableError where no variant can
        be opened.
        """
        await self._instances.look()
        for served in self._served.values():
            await self._open(served, await asyncio.to_thread(self._registry.known, served.name), warm=warm)

    async def _open(self, served: ServedApplication, record: Application, *, warm: bool) -> None:
        self._use(served, record)
        while warm and (cheapest := _cheapest_on_functions(served.table)):
            if await self._warm(served, cheapest):
                break
        served.look((), lambda variant: self._signals(served.name, variant))

    async def find_new(self) -> None:
        """Serve the applications that have come to the registry, where none were named; raises what reading raises."""
        if self._join is None:
            return
        async with self._listing:
            self._listed = self._clock()
            listed = await asyncio.to_thread(self._registry.applications)
            for name in listed:
                if name not in self._served and len(self._served) < MAX_APPLICATIONS:
                    await self._add(name, self._join)

    async def _add(self, name: str, join: Callable[[str], Exchange]) -> None:
        """Serve one more application; what cannot be served yet is tried again with the next list."""
        record = await asyncio.to_thread(self._registry.application, name)
        if record is None or record.live_release is None:
            return
        served = ServedApplication(name, self._place, self._clock)
        self._exchanges[name], self._served[name] = join(name), served
        try:
            await self._open(served, record, warm=True)
        except SerferError as error:
            del self._served[name], self._exchanges[name]
            if self._unserved.get(name) != str(error):
                self._trouble("registry", served, error)
            self._unserved[name] = str(error)

    def start(self) -> None:
        """Look at the registry and the other drivers from now on; on the running event loop."""
        super().start()
        if self.fleet is not None:
            self.fleet.start()

    async def close(self) -> None:
        """Stop looking, and wait for what is being opened, closed or copied; the last driver stops its instances."""
        if self.fleet is not None:
            await self.fleet.close()
        await self._stop()
        working = [*self._working]
        for task in working:
            task.cancel()
        if working:
            await asyncio.wait(working)
        await self.pipelines.close()
        for served in self._served.values():
            try:
                await asyncio.to_thread(self._exchanges[served.name].leave)
            except SerferError as error:
                self._trouble("store", served, error)
        self._lookers.shutdown(wait=False)

    def choose(self, asked: ApplicationQuery, *, live: bool = False) -> Choice:
        """Select the variant that answers a query; with `live`, never the canary's.

        Raises UsageError for an unknown application, network or variant, and UnmetObjectivesError where the objectives
        are strict and no variant meets them.
        """
        self.served(asked.application).ask(asked.objectives)
        return self._select(asked, live=live)

    def _select(self, asked: ApplicationQuery, *, live: bool) -> Choice:
        served = self.served(asked.application)
        trial = served.table.trial
        if trial is None or live or trial.shadow:
            return self._choice(served, asked, [served.table.live])
        is_drawn = draw_of(_CANARY_DRAW + asked.query) < trial.share
        return self._choice(served, asked, served.table.sides(canary_first=is_drawn))

    async def reference(self, application: str, network: str | None) -> Pipeline:
        """Return an open pipeline of a network of the live release, by default the one of its cheapest variant.

        All variants of a network take the same tensors. Raises as `choose`, and what opening raises.
        """
        served = self.served(application)
        chosen = self._choice(
            served, ApplicationQuery(application, Objectives(network=network), ""), [served.table.live]
        )
        with self.pipelines.running(chosen.model):
            await self.pipelines.open(chosen.model, chosen.variant, chosen.selection.place)
            return self.pipelines.get(chosen.model)

    async def answer(self, asked: ApplicationQuery, run: Run[T]) -> tuple[Choice, T]:
        """Answer a query on the variant that is selected for it.

        Where a variant cannot be opened another one answers, and where the canary fails the live release. Raises what
        `choose`, `run.opening` and `run.answer` raise.
        """
        choice, live = self.choose(asked), False
        while True:
            try:
                answered = await self._on(choice, run)
            except _UnopenedError as error:
                name, why = choice.variant.name, "cannot be opened here, and the service's log says why"
                if asked.objectives.variant is not None:
                    raise VariantUnavailableError(f"variant {name} {why}") from error
                failed = str(error)
                try:
                    self._exclude(self._served[choice.application], choice.variant, failed)
                except UnavailableError:
                    raise VariantUnavailableError(
                        f"application {choice.application} has no variant that can answer: {name} {why}; promote a "
                        "version that this service can open"
                    ) from error
                choice = self._select(asked, live=live)
            except (QueryError, UnavailableError) as error:
                failed = _words(error)
                if choice.canary:
                    log_event(logging.WARNING, "canary failed", variant=choice.model, message=failed)
                    live = True
                elif choice.selection.place != FUNCTIONS and isinstance(error, UnavailableError):
                    self._leave(choice)
                else:
                    raise
                choice = self._elsewhere(asked, error, live=live)
            else:
                self._copy(asked, answered, run)
                return choice, answered
            choice = replace(choice, failed=failed)

    def _elsewhere(self, asked: ApplicationQuery, error: SerferError, *, live: bool) -> Choice:
        """Select where a query that failed is answered; raises its error where there is no other place."""
        try:
            return self._select(asked, live=live)
        except UnavailableError:
            raise error from None

    async def _on(self, choice: Choice, run: Run[T]) -> T:
        """Open a variant and run a query on it; raises _UnopenedError, and what `run` raises."""
        with self.pipelines.running(choice.model):
            async with run.opening():
                try:
                    await self.pipelines.open(choice.model, choice.variant, choice.selection.place)
                except SerferError as error:
                    log_event(logging.ERROR, "variant not opened", variant=choice.model, message=_words(error))
                    raise _UnopenedError(_words(error)) from error
            return await self._counted(choice, run)

    async def _counted(self, choice: Choice, run: Run[T]) -> T:
        """Run a query, and count how it ends; what a client did wrong, or took back, counts as nothing.

        Nor does a deadline before which the live release's slower answers do not come either.
        """
        served = self._served[choice.application]
        meter, counter = served.meter(choice.variant.name), served.counter(canary=choice.canary)
        begun, alone = self._clock(), meter.begin()
        try:
            answered = await run.answer(choice)
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
            meter.answer(ms, cold=run.is_cold(answered), alone=alone)
            counter.answer(ms)
            return answered
        finally:
            meter.end()

    def _copy(self, asked: ApplicationQuery, answered: T, run: Run[T]) -> None:
        """Have a shadow answer a copy of a query that was answered, if it is one of its share and few are copied."""
        served = self._served[asked.application]
        trial = served.table.trial
        if not (trial and trial.shadow and draw_of(_CANARY_DRAW + asked.query) < trial.share):
            return
        if len(self._shadows) < _SHADOWS:
            task = self._in_background(self._compare(served, asked, answered, run))
            self._shadows.add(task)
            task.add_done_callback(self._shadows.discard)

    def _in_background(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._working.add(task)
        task.add_done_callback(self._worked)
        return task

    def _worked(self, task: asyncio.Task[Any]) -> None:
        self._working.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:  # nobody waits for it
            log_event(logging.ERROR, "applications", error, message=repr(error)[:300])

    async def _compare(self, served: ServedApplication, asked: ApplicationQuery, answered: T, run: Run[T]) -> None:
        try:
            copied = await self._on(self._choice(served, asked, served.table.sides(canary_first=True)), run)
        except Exception as error:  # noqa: BLE001 - whatever becomes of a copy, its query has its answer
            log_event(logging.WARNING, "shadow failed", application=served.name, message=_words(error))
            return
        served.compared += 1
        served.agreed += run.agree(answered, copied)

    def _choice(self, served: ServedApplication, asked: ApplicationQuery, sides: Sequence[Side]) -> Choice:
        """Select a variant of the first side that has what a query names; raises as `choose`."""
        table = served.table
        side = next((side for side in sides if side.has(asked.objectives)), sides[0])
        selection = self._selector.get_variant(asked.objectives, side.catalogue, served.states, draw_of(asked.query))
        if asked.objectives.strict and selection.missed:
            raise UnmetObjectivesError(_unmet(served.name, selection))
        variant = side.variants[selection.variant]
        if not selection.place:
            raise UnavailableError(
                f"no instance has {variant.name}, which the objectives select: start one, or ask for less"
            )
        if asked.objectives.network not in (None, variant.network):
            raise UsageError(f"variant {variant.name} is one of {variant.network}, not of {asked.objectives.network}")
        model = served_name(served.name, variant.name, selection.place)
        return Choice(served.name, variant, model, selection, table.release.number, canary=side is table.canary)

    def _leave(self, choice: Choice) -> None:
        """Select an instance no more until it answers again."""
        self._instances.down(choice.selection.place)
        served = self._served[choice.application]
        served.look(served.others, lambda variant: self._signals(served.name, variant))

    def _signals(self, application: str, variant: str) -> Mapping[str, VariantSignals]:
        return self._instances.signals(served_name(application, variant))

    def _exclude(self, served: ServedApplication, variant: Variant, why: str) -> None:
        """Select a variant no more for a while; raises UnavailableError, with the last reason, where none is left."""
        self._broken[served_name(served.name, variant.name)] = self._clock()
        try:
            self._use(served, served.table.application)
        except UnavailableError as error:
            raise UnavailableError(f"{error}; {variant.name} cannot be opened: {why}") from error

    def _use(self, served: ServedApplication, record: Application) -> None:
        served.use(self._table(served.name, record))
        self._keep()

    def _keep(self) -> None:
        """Close the pipelines of variants that no application has any more."""
        self.pipelines.keep(
            served_name(each.name, variant) for each in self._served.values() for variant in each.variants
        )

    def _table(self, application: str, record: Application) -> Table:
        table = table_of(record, lambda variant: self._runs_here(variant) and self._works(application, variant))
        return table if self._canaries else replace(table, canary=None)

    def _works(self, application: str, variant: Variant) -> bool:
        return served_name(application, variant.name) not in self._broken

    def _mended(self, application: str) -> bool:
        """Let variants of an application be opened again after a while; returns whether there are any."""
        now, own = self._clock(), served_name(application, "")
        over = [name for name, at in self._broken.items() if name.startswith(own) and now - at >= _BROKEN_S]
        for name in over:
            del self._broken[name]
        return bool(over)

    async def tick(self) -> None:
        """Look at all that is known of applications: states are at most the paper's 2 s old (INFaaS, section 5)."""
        await self.look_at_all()
        if self._clock() - self._listed >= _LIST_EVERY_S:
            await self.find_new()

    async def look_at_all(self) -> None:
        """Look at the instances, and at each application in the registry and in the other drivers' record, at once."""

        async def looked_at(served: ServedApplication) -> None:
            with self.troubles.survived(served.name):  # it does not keep the others from being looked at
                await self.look(served)

        await self._instances.look()
        await asyncio.gather(*map(looked_at, [*self._served.values()]))

    async def catch_up(self) -> None:
        """Look at the registry, unless that was done within STILL_S: for a driver that stands still between requests.

        A registry that takes longer than a second is waited for no longer; what it says is used once it is there.
        """
        now = self._clock()
        if now - self._looked < STILL_S or (self._loop is not None and not self._loop.done()):
            return
        self._looked = now
        self._loop = asyncio.create_task(self._read_all())
        await asyncio.wait([self._loop], timeout=_PATIENCE_S)

    async def _read_all(self) -> None:
        for served in self._served.values():
            await self._read(served)
            if served.deleted:
                continue
            served.next_second()
            served.look((), lambda variant, name=served.name: self._signals(name, variant))  # type: ignore[misc]
            for variant in served.worth_warming():  # its next query has the cold start: nothing runs when there is none
                served.meter(variant).warm_up()

    async def _looked_up(self, look: Callable[..., T], *arguments: Any) -> T:  # noqa: ANN401 - those of `look`
        """Run what blocks in one of a few threads of its own: a slow registry holds up nothing else of the process."""
        return await asyncio.get_running_loop().run_in_executor(self._lookers, partial(look, *arguments))

    async def _read(self, served: ServedApplication) -> None:
        """Look at the registry once; what cannot be read is logged, and changes nothing."""
        try:
            known, changes = served.latest, served.changes
            latest = await self._looked_up(self._registry.latest, served.name, known)
            mended = self._mended(served.name)
            if served.changes == changes:  # else it may have been read before what this driver has changed meanwhile
                served.latest = latest
                if latest is None:
                    self._end(served)
                elif latest is not known or mended:
                    self._use(served, latest.application)
            self._fine("registry", served)
        except SerferError as error:
            self._trouble("registry", served, error)

    async def look(self, served: ServedApplication) -> None:
        """Look at the registry and at the other drivers once; what cannot be reached is logged, and changes nothing."""
        await self._read(served)
        if served.deleted:
            return
        others = served.others
        try:
            others = await self._looked_up(self._exchanges[served.name].exchange, served.entry(self._driver))
            self._fine("store", served)
        except SerferError as error:
            self._trouble("store", served, error)
        served.next_second()
        served.look(others, lambda variant: self._signals(served.name, variant))
        if served.failed is not None:
            await self._take_back(served, served.failed)
        for variant in served.worth_warming():
            if variant not in served.warming:
                self._in_background(self._warm_once(served, variant))

    async def _warm_once(self, served: ServedApplication, name: str) -> None:
        served.warming.add(name)
        try:
            with suppress(UnavailableError):  # the last variant that worked answers on
                if name in served.table.live.variants:
                    await self._warm(served, name)
        finally:
            served.warming.discard(name)

    async def _warm(self, served: ServedApplication, name: str) -> bool:
        """Open a variant and warm it up; returns whether it can be used, and leaves it out for a while if not."""
        variant = served.table.live.variants[name]
        model = served_name(served.name, name)
        try:
            if await self.pipelines.warm(model, variant, FUNCTIONS):
                served.meter(name).warm_up()
        except SerferError as error:
            log_event(logging.ERROR, "variant not opened", variant=model, message=_words(error))
            self._exclude(served, variant, _words(error))
            return False
        return True

    async def change(self, application: str, step: Callable[[Application], Application]) -> None:
        """Change an application's record, and select by it at once.

        Raises what `step` and the registry raise, and UnavailableError for a release that cannot run here; then
        nothing is changed.
        """
        served = self.served(application)
        read = False

        def checked(found: Application | None) -> Application:
            nonlocal read
            read = True
            if found is None:
                raise UsageError(served.why_deleted)
            record = step(found)
            self._table(served.name, record)
            return record

        try:
            record = await asyncio.to_thread(self._registry.update, application, checked)
        except InputError as error:
            if read:
                raise
            raise UnavailableError(f"the registry's record of {application} cannot be read") from error
        served.changes += 1
        self._use(served, record)

    async def delete(self, application: str) -> None:
        """Delete an application from the registry, and answer nothing of it from now on; raises as the registry."""
        served = self.served(application)
        await asyncio.to_thread(self._registry.delete, application)
        served.changes += 1
        served.latest = None
        self._end(served)

    def _end(self, served: ServedApplication) -> None:
        """Answer nothing of an application that was deleted, and close its pipelines."""
        if not served.deleted:
            log_event(logging.WARNING, "application", application=served.name, part="registry", message="deleted")
            served.deleted = True
            self._keep()

    async def _take_back(self, served: ServedApplication, failed: FailedCanary) -> None:
        """End a canary in the registry, as the first of several drivers; until then this one does not use it."""
        canary, why = failed.canary, failed.why
        if self._logged.get(served.name) != canary.since:  # once, however often the registry has to be tried
            self._logged[served.name], networks = canary.since, canary.networks
            log_event(logging.WARNING, "canary taken back", application=served.name, networks=networks, message=why)

        def without(record: Application | None) -> Application | None:
            still = record is not None and record.canary is not None and record.canary.since == canary.since
            return record.with_canary_taken_back(why) if record and still else None

        try:
            self._use(served, await asyncio.to_thread(self._registry.update, served.name, without))
        except SerferError as error:
            self._trouble("registry", served, error)

    def _trouble(self, part: str, served: ServedApplication, error: SerferError) -> None:
        self._trouble_log.note((part, served.name), _words(error), application=served.name, part=part)

    def _fine(self, part: str, served: ServedApplication) -> None:
        self._trouble_log.over((part, served.name), application=served.name, part=part)


class _UnopenedError(Exception):
    """A variant could not be opened."""


class VariantUnavailableError(NetworkLoadError):
    """No variant that may answer a query can be opened; the message has nothing of the reason, which is in the log."""


def served_name(application: str, variant: str, place: str = FUNCTIONS) -> str:
    """Return the name under which a variant's pipeline is served, as a model: at an instance, with its place."""
    name = f"{application}:{variant}"
    return name if place == FUNCTIONS else f"{name}{AT}{place}"


def _cheapest_on_functions(table: Table) -> str | None:
    """Return the cheapest variant of the live release for functions; None where there is none."""
    names = (row.name for row in table.live.catalogue.rows)
    return next((name for name in names if table.live.variants[name].place is Place.FUNCTIONS), None)


def _unmet(application: str, selection: Selection) -> str:
    missed = ", ".join(f"{name} by {value:.3g}" for name, value in selection.missed.items())
    return (
        f"no variant of {application} meets the objectives: the nearest, {selection.variant}, misses {missed}; ask for "
        "less, or leave out strict"
    )


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]
