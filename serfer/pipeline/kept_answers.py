"""Answers that are kept: their places, and the manifest that makes each one whole once its last tile has answered."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress

from serfer.core.errors import StoreError, StoreUnavailableError, UsageError
from serfer.core.keys import LOCAL_OWNER, RESULT_TTL_S, ResultPlace, StoreCounts
from serfer.core.plan import Plan
from serfer.core.plan.sized_plan import check_one_size
from serfer.core.run_machine import Retry
from serfer.drivers.query_store import retry_store
from serfer.results import ResultManifest, Results, planned_manifest


class Keeper:
    """Makes places in `results` for answers, and makes whole what lies there; a result lives `ttl_s` seconds."""

    def __init__(self, results: Results, ttl_s: float = RESULT_TTL_S, retry: Retry | None = None) -> None:
        self.results = results
        self._ttl_s = ttl_s
        self._retry = retry or Retry()
        self._discards: set[asyncio.Task[None]] = set()

    def place(self, owner: str = LOCAL_OWNER, ttl_s: float | None = None) -> ResultPlace:
        """Return a place for an answer, under an id that cannot be guessed."""
        return ResultPlace(owner, secrets.token_hex(16), self._ttl_s if ttl_s is None else ttl_s)

    def check(self, plan: Plan, place: ResultPlace, images: int) -> None:
        """Refuse, before anything runs, what could not be kept.

        Raises UsageError for a window of a map, PlanError for a plan whose last tiles are not a grid's,
        ResultDamagedError for one with more of them than a manifest may have.
        """
        if plan.windows:
            raise UsageError("a window of a map is not kept by itself: serfer map writes the whole image's result")
        check_one_size(plan, "kept results")
        planned_manifest(plan, place, images, self.results.now())

    async def finish(self, manifest: ResultManifest, deadline: float) -> StoreCounts:
        """Make whole what all tiles have written; returns the store requests.

        It is tried until `deadline`, on the event loop's clock. Where that fails or is cancelled, all of it is deleted.
        """
        work = retry_store(lambda: self.results.write(manifest), self._retry, deadline)
        writing = asyncio.get_running_loop().create_task(work)
        try:
            return StoreCounts(bytes_put=await asyncio.shield(writing), puts=1)
        except BaseException:
            discard = asyncio.get_running_loop().create_task(self._discard(writing, manifest))
            self._discards.add(discard)
            discard.add_done_callback(self._discards.discard)
            raise

    async def close(self) -> None:
        """Wait until what could not be made whole is deleted."""
        await asyncio.gather(*self._discards)

    async def _discard(self, writing: asyncio.Task[int], manifest: ResultManifest) -> None:
        await asyncio.wait([writing])
        with suppress(StoreError, StoreUnavailableError):  # it expires
            await asyncio.to_thread(self.results.delete, manifest)
