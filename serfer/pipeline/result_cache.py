"""Answers that are kept: in a cache, given again to the same question (SerFer, section 8.3), or as results of an owner.

In the cache, an answer is kept under the digest of the plan and of the array that was asked about: pixels, where images
were. Nothing of the array itself is kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Iterable
from contextlib import suppress
from itertools import accumulate
from math import prod

import numpy as np

from serfer.core.checksum import protect, verified
from serfer.core.errors import StoreError, StoreUnavailableError, UnavailableError, UsageError
from serfer.core.keys import LOCAL_OWNER, RESULT_TTL_S, ResultPlace, StoreCounts
from serfer.core.plan import Plan, answer_digest
from serfer.core.plan.answers import Outputs, padded, shaped
from serfer.core.plan.sized_plan import check_one_size
from serfer.core.run_machine import Retry
from serfer.drivers.query_store import retry_store
from serfer.results import ResultManifest, Results, planned_manifest
from serfer.storage.store import Bytes, Store


class Keeper:
    """Makes places in `results` for answers, and makes whole what lies there; a result lives `ttl_s` seconds."""

    def __init__(self, results: Results, ttl_s: float = RESULT_TTL_S, retry: Retry | None = None) -> None:
        self.results = results
        self._ttl_s = ttl_s
        self._retry = retry or Retry()
        self._discards: set[asyncio.Task[None]] = set()

    def place(self, owner: str = LOCAL_OWNER, ttl_s: float | None = None) -> ResultPlace:
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
        await asyncio.gather(*self._discards)

    async def _discard(self, writing: asyncio.Task[int], manifest: ResultManifest) -> None:
        await asyncio.wait([writing])
        with suppress(StoreError, StoreUnavailableError):  # it expires
            await asyncio.to_thread(self.results.delete, manifest)


class ResultCache:
    """Outputs by what was asked, kept in `store` for `ttl` seconds; a store that fails is as good as an empty one."""

    def __init__(self, store: Store, plan: Plan, ttl: float) -> None:
        self._store = store
        self._plan = plan
        self._ttl = ttl

    def key(self, parts: Iterable[Bytes]) -> str:
        digest = hashlib.sha256(answer_digest(self._plan).encode())
        for part in parts:
            view = memoryview(part).cast("B")
            digest.update(len(view).to_bytes(8, "big"))
            digest.update(view)
        return f"serfer:cached:{digest.hexdigest()}"

    def find(self, key: str, batch: int, plan: Plan | None = None) -> Outputs | None:
        """Return the outputs of `batch` images that are kept, or None; of a window, in the form of its `plan`."""
        tensors = (plan or self._plan).output_tensors
        try:
            value = verified(self._store.get(key), key)
        except (StoreError, UnavailableError):
            return None
        sizes = [batch * prod(tensor.dims) * np.dtype(tensor.dtype).itemsize for tensor in tensors]
        if len(value) != sum(sizes):
            return None  # not ours, or cut off
        starts = accumulate(sizes, initial=0)
        values = [
            np.frombuffer(value[start : start + size], np.dtype(tensor.dtype)).reshape(batch, *tensor.dims)
            for tensor, start, size in zip(tensors, starts, sizes, strict=False)
        ]
        return shaped(tensors, values)

    def keep(self, key: str, outputs: Outputs) -> None:
        """Keep an answer; where the store cannot, it was not worth failing for."""
        with suppress(StoreError, UnavailableError):
            value = b"".join(output.tobytes() for output in padded(self._plan.output_tensors, outputs).values())
            self._store.put(key, protect(value, key), self._ttl)
