"""The applications that a driver serves: the variants of their releases that can run here, as the registry has them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from serfer.applications.pipelines import VariantPipelines, served_name
from serfer.applications.served import ServedApplication, Table, table_of
from serfer.core.errors import InputError, SerferError, UnavailableError, UsageError
from serfer.core.variants import Application, Canary, Variant
from serfer.fleet.log_events import TroubleLog, log_event
from serfer.registry import Registry

T = TypeVar("T")
_BROKEN_S = 30.0  # for which a variant that could not be opened is not selected
_READERS = 16  # threads: a round over MAX_APPLICATIONS is to take less than TTL_S (fleet/registry.py)
_MOST_TEXT = 300


class ServedReleases:
    """The applications by name; on one event loop, but for what reads and writes the registry.

    `runs_here` says of a variant whether this driver can run it. Without `canaries`, the live release answers all
    queries.
    """

    def __init__(
        self,
        registry: Registry,
        pipelines: VariantPipelines,
        runs_here: Callable[[Variant], bool],
        clock: Callable[[], float],
        *,
        canaries: bool,
    ) -> None:
        self.registry = registry
        self.served: dict[str, ServedApplication] = {}
        self.troubles = TroubleLog("application trouble", clock)
        self._pipelines = pipelines
        self._runs_here = runs_here
        self._clock = clock
        self._canaries = canaries
        self._broken: dict[str, float] = {}
        self._logged: dict[str, str] = {}  # by application: since when the canary was there that was logged as failed
        self._readers = ThreadPoolExecutor(_READERS, "applications")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, served in self.served.items() if not served.deleted)

    def find(self, application: str) -> ServedApplication:
        found = self.served.get(application)
        if found is None:
            raise UsageError(self.why_absent(application))
        return found

    def is_deleted(self, application: str) -> bool:
        return application in self.served and self.served[application].deleted

    def why_absent(self, application: str) -> str:
        if self.is_deleted(application):
            return self.served[application].why_deleted
        return f"no application {application[:80]!r} here: GET /v1/applications lists what there is"

    def use(self, served: ServedApplication, record: Application) -> None:
        served.use(self._table(served.name, record))
        self._close_unused()

    def exclude(self, served: ServedApplication, variant: Variant, why: str) -> None:
        """Select a variant no more for a while; raises UnavailableError, with the last reason, where none is left."""
        self._broken[served_name(served.name, variant.name)] = self._clock()
        try:
            self.use(served, served.table.application)
        except UnavailableError as error:
            raise UnavailableError(f"{error}; {variant.name} cannot be opened: {why}") from error

    async def read(self, served: ServedApplication) -> None:
        """Look at the registry once; what cannot be read is logged, and changes nothing."""
        with self.survive("registry", served):
            known, changes = served.latest, served.changes
            latest = await self.run_blocking(self.registry.latest, served.name, known)
            retried = self._retry_broken(served.name)
            if served.changes == changes:  # else it may have been read before what this driver has changed meanwhile
                served.latest = latest
                if latest is None:
                    self._end(served)
                elif latest is not known or retried:
                    self.use(served, latest.application)

    async def change(self, application: str, step: Callable[[Application], Application]) -> None:
        """Change an application's record, and select by it at once.

        Raises what `step` and the registry raise, and UnavailableError for a release that cannot run here; then
        nothing is changed.
        """
        served = self.find(application)
        is_read = False

        def check_step(found: Application | None) -> Application:
            nonlocal is_read
            is_read = True
            if found is None:
                raise UsageError(served.why_deleted)
            record = step(found)
            self._table(served.name, record)
            return record

        try:
            record = await asyncio.to_thread(self.registry.update, application, check_step)
        except InputError as error:
            if is_read:
                raise
            raise UnavailableError(f"the registry's record of {application} cannot be read") from error
        served.changes += 1
        self.use(served, record)

    async def delete(self, application: str) -> None:
        served = self.find(application)
        await asyncio.to_thread(self.registry.delete, application)
        served.changes += 1
        served.latest = None
        self._end(served)

    async def take_back(self, served: ServedApplication, canary: Canary, why: str) -> None:
        """End a canary in the registry, as the first of several drivers; until then this one does not use it."""
        if self._logged.get(served.name) != canary.since:  # once, however often the registry has to be tried
            self._logged[served.name], networks = canary.since, canary.networks
            log_event(logging.WARNING, "canary taken back", application=served.name, networks=networks, message=why)

        def without(record: Application | None) -> Application | None:
            still = record is not None and record.canary is not None and record.canary.since == canary.since
            return record.with_canary_taken_back(why) if record and still else None

        with self.survive("registry", served):
            self.use(served, await asyncio.to_thread(self.registry.update, served.name, without))

    async def run_blocking(self, look: Callable[..., T], *arguments: Any) -> T:  # noqa: ANN401 - those of `look`
        """Run what blocks in one of a few threads of its own: a slow registry holds up nothing else of the process."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, partial(look, *arguments))

    @contextmanager
    def survive(self, part: str, served: ServedApplication) -> Iterator[None]:
        try:
            yield
        except SerferError as error:
            self.troubles.note((part, served.name), error_text(error), application=served.name, part=part)
        else:
            self.troubles.over((part, served.name), application=served.name, part=part)

    def close(self) -> None:
        self._readers.shutdown(wait=False)

    def _end(self, served: ServedApplication) -> None:
        if not served.deleted:
            log_event(logging.WARNING, "application", application=served.name, part="registry", message="deleted")
            served.deleted = True
            self._close_unused()

    def _close_unused(self) -> None:
        self._pipelines.keep(
            served_name(served.name, variant) for served in self.served.values() for variant in served.variants
        )

    def _table(self, application: str, record: Application) -> Table:
        table = table_of(
            record,
            lambda variant: self._runs_here(variant) and served_name(application, variant.name) not in self._broken,
        )
        return table if self._canaries else replace(table, canary=None)

    def _retry_broken(self, application: str) -> bool:
        now, own = self._clock(), served_name(application, "")
        over = [name for name, at in self._broken.items() if name.startswith(own) and now - at >= _BROKEN_S]
        for name in over:
            del self._broken[name]
        return bool(over)


def error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:_MOST_TEXT]
