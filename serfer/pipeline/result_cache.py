"""Answers that were given before (SerFer, section 8.3): off unless asked for, and each for a time to live.

An answer is kept under the digest of the plan and of what was asked about: the images as they came, before decoding,
or the array. Nothing of the image itself is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from serfer.core.checksum import protect, verified
from serfer.core.errors import StoreError, UnavailableError
from serfer.core.plan import Plan
from storage.store import Bytes, Store

_FLOAT_BYTES = 4


class ResultCache:
    """Logits by what was asked, kept in `store` for `ttl` seconds; a store that fails is as good as an empty one."""

    def __init__(self, store: Store, plan: Plan, ttl: float) -> None:
        self._store = store
        self._plan = plan
        self._ttl = ttl

    def key(self, parts: Iterable[Bytes]) -> str:
        """Return the key of a question: of a query's images in order, or of an array's shape, type and values."""
        digest = hashlib.sha256(self._plan.digest.encode())
        for part in parts:
            view = memoryview(part).cast("B")
            digest.update(len(view).to_bytes(8, "big"))
            digest.update(view)
        return f"serfer:result:{digest.hexdigest()}"

    def find(self, key: str, batch: int) -> NDArray[np.float32] | None:
        """Return the (batch, K) float32 logits that are kept, or None."""
        try:
            value = verified(self._store.get(key), key)
        except (StoreError, UnavailableError):
            return None
        if len(value) != _FLOAT_BYTES * batch * self._plan.output.elements:
            return None  # not ours, or cut off
        return np.frombuffer(value, dtype="<f4").reshape(batch, -1)

    def keep(self, key: str, logits: NDArray[np.float32]) -> None:
        """Keep an answer; where the store cannot, it was not worth failing for."""
        with contextlib.suppress(StoreError, UnavailableError):
            self._store.put(key, protect(np.ascontiguousarray(logits, dtype="<f4").tobytes(), key), self._ttl)
