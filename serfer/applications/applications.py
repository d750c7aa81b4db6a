"""Applications in one driver: each second a look at the registry, at instances and at what other drivers tell."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from serfer.applications.answering import BackgroundTasks, VariantAnswering
from serfer.applications.exchange import Exchange
from serfer.applications.instances import VariantInstances
from serfer.applications.pipelines import VariantPipelines, served_name
from serfer.applications.releases import ServedReleases, error_text
from serfer.applications.served import FunctionsPlace, ServedApplication
from serfer.control.selection import FUNCTIONS, Selector
from serfer.core.errors import SerferError, UnavailableError
from serfer.core.variants import Application, Place, Variant
from serfer.fleet.control_loop import ControlLoop, Loop, Timing
from serfer.fleet.log_events import log_event
from serfer.registry import Registry

MAX_APPLICATIONS: Final = 100
"""Applications of a driver."""
_LIST_EVERY_S = 10.0  # between two lists of the registry's applications
STILL_S: Final = 5.0
"""Seconds until a driver that runs during requests alone looks at the registry again."""
_PATIENCE_S = 1.0  # for which a request waits for that


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
        self.releases = ServedReleases(registry, pipelines, runs_here, clock, canaries=canaries)
        self.releases.served.update({name: ServedApplication(name, place, clock) for name in exchanges})
        self.answering = VariantAnswering(self.releases, pipelines, selector, instances, clock)
        self.fleet: ControlLoop | None = None
        self._instances = instances
        self._exchanges = dict(exchanges)
        self._join = join
        self._place = place
        self._driver = driver
        self._clock = clock
        self._looked = float("-inf")
        self._unserved: dict[str, str] = {}  # why applications that came later are not served, as it was logged
        self._warming = BackgroundTasks()
        self._listing = asyncio.Lock()
        self._listed = float("-inf")

    @property
    def names(self) -> tuple[str, ...]:
        return self.releases.names

    def copies(self, application: str, variant: str) -> int:
        return sum(signals.warm for signals in self._instances.signals(served_name(application, variant)).values())

    def cautions(self, application: str, variant: str) -> Mapping[str, str]:
        return self._instances.cautions(served_name(application, variant))

    async def open(self, *, warm: bool = True) -> None:
        """Read the records, and open and warm up the cheapest variant of each application on functions that can be.

        Without `warm`, the first query opens one. Raises what reading raises, and UnavailableError where no variant can
        be opened.
        """
        await self._instances.look()
        for served in self.releases.served.values():
            await self._open(served, await asyncio.to_thread(self.releases.registry.known, served.name), warm=warm)

    async def _open(self, served: ServedApplication, record: Application, *, warm: bool) -> None:
        self.releases.use(served, record)
        while warm and (cheapest := _cheapest_on_functions(served)):
            if await self._warm(served, cheapest):
                break
        served.look((), self._instances.signals)

    async def find_new(self) -> None:
        """Serve the applications that have come to the registry, where none were named; raises what reading raises."""
        if self._join is None:
            return
        async with self._listing:
            self._listed = self._clock()
            for name in await asyncio.to_thread(self.releases.registry.applications):
                if name not in self.releases.served and len(self.releases.served) < MAX_APPLICATIONS:
                    await self._add(name, self._join)

    async def _add(self, name: str, join: Callable[[str], Exchange]) -> None:
        record = await asyncio.to_thread(self.releases.registry.application, name)
        if record is None or record.live_release is None:
            return
        served = ServedApplication(name, self._place, self._clock)
        self._exchanges[name], self.releases.served[name] = join(name), served
        try:
            await self._open(served, record, warm=True)
        except SerferError as error:
            del self.releases.served[name], self._exchanges[name]
            if self._unserved.get(name) != str(error):
                self.releases.troubles.note(("registry", name), error_text(error), application=name, part="registry")
            self._unserved[name] = str(error)

    def start(self) -> None:
        super().start()
        if self.fleet is not None:
            self.fleet.start()

    async def close(self) -> None:
        if self.fleet is not None:
            await self.fleet.close()
        await self._stop()
        await self._warming.cancel()
        await self.answering.copies.cancel()
        await self.pipelines.close()
        for served in self.releases.served.values():
            with self.releases.survive("store", served):
                await asyncio.to_thread(self._exchanges[served.name].leave)
        self.releases.close()

    async def tick(self) -> None:
        await self.look_at_all()
        if self._clock() - self._listed >= _LIST_EVERY_S:
            await self.find_new()

    async def look_at_all(self) -> None:
        async def look_at(served: ServedApplication) -> None:
            with self.troubles.survived(served.name):  # it does not keep the others from being looked at
                await self.look(served)

        await self._instances.look()
        await asyncio.gather(*map(look_at, [*self.releases.served.values()]))

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
        for served in self.releases.served.values():
            await self.releases.read(served)
            if served.deleted:
                continue
            served.next_second()
            served.look((), self._instances.signals)
            for variant in served.worth_warming():  # its next query has the cold start: nothing runs when there is none
                served.meter(variant).warm_up()

    async def look(self, served: ServedApplication) -> None:
        await self.releases.read(served)
        if served.deleted:
            return
        others, exchange = served.others, self._exchanges[served.name].exchange
        with self.releases.survive("store", served):
            others = await self.releases.run_blocking(exchange, served.entry(self._driver))
        served.next_second()
        served.look(others, self._instances.signals)
        if served.failed is not None:
            await self.releases.take_back(served, *served.failed)
        for variant in served.worth_warming():
            if variant not in served.warming:
                self._warming.start(self._warm_once(served, variant))

    async def _warm_once(self, served: ServedApplication, name: str) -> None:
        served.warming.add(name)
        try:
            with suppress(UnavailableError):  # the last variant that worked answers on
                if name in served.table.live.variants:
                    await self._warm(served, name)
        finally:
            served.warming.discard(name)

    async def _warm(self, served: ServedApplication, name: str) -> bool:
        variant, model = served.table.live.variants[name], served_name(served.name, name)
        try:
            if await self.pipelines.warm(model, variant, FUNCTIONS):
                served.meter(name).warm_up()
        except SerferError as error:
            log_event(logging.ERROR, "variant not opened", variant=model, message=error_text(error))
            self.releases.exclude(served, variant, error_text(error))
            return False
        return True


def _cheapest_on_functions(served: ServedApplication) -> str | None:
    live = served.table.live
    names = (row.name for row in live.catalogue.rows)
    return next((name for name in names if live.variants[name].place is Place.FUNCTIONS), None)
