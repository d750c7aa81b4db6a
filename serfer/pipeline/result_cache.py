"""Answers that were given before (SerFer, section 8.3): off unless asked for, and each for a time to live.

An answer is kept under the digest of the plan and of what was asked about: the images as they came, before decoding,
or the array. Nothing of the image itself is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable
from itertools import accumulate
from math import prod

import numpy as np

from serfer.core.checksum import protect, verified
from serfer.core.errors import StoreError, UnavailableError
from serfer.core.plan import Plan, answer_digest
from serfer.core.plan.answers import Outputs, padded, shaped
from serfer.storage.store import Bytes, Store


class ResultCache:
    """Outputs by what was asked, kept in `store` for `ttl` seconds; a store that fails is as good as an empty one."""

    def __init__(self, store: Store, plan: Plan, ttl: float) -> None:
        self._store = store
        self._plan = plan
        self._ttl = ttl

    def key(self, parts: Iterable[Bytes]) -> str:
        """Return the key of a question: of a query's images in order, or of an array's shape, type and values."""
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
        with contextlib.suppress(StoreError, UnavailableError):
            value = b"".join(output.tobytes() for output in padded(self._plan.output_tensors, outputs).values())
            self._store.put(key, protect(value, key), self._ttl)
