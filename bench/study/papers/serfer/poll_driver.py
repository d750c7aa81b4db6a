"""SerFer's Poll Driver (section 5.1.1), as its authors built it; for speed and bytes it differs from ours everywhere.

cut, put ─▶ invoke, one after the other ─▶ barrier: get tile 0, 1, ... again and again ─▶ merge ─┐
   ▲                                                                                             │
   └─────────────────────────────── the next lambda layer ◀──────────────────────────────────────┘
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import DeadlineError, MissingKeyError
from serfer.core.keys import StoreCounts
from serfer.core.plan import IMAGE, Plan
from serfer.pipeline.reference import normalised
from serfer.storage.store import Store
from serfer_bench.core.part_times import LAYER, MERGE, MISS, POLL, READ, SPLIT, WRITE, PartTimes, Times
from serfer_bench.study.baselines.handlers.environment import Array, merge
from serfer_bench.study.baselines.handlers.objects import TTL_S, View, decode, encode, read_key, written_key

POLLS_BEFORE_RETRY = 10_000
DEADLINE_S = 120.0
Tensors = dict[tuple[int, int], Array]


@dataclass(frozen=True)
class Mechanics:
    """Differences between SerFer's versions: the workers' handler, and whether a stored tile is only that tile."""

    name: str
    handler: str
    contiguous: bool


PUBLISHED = Mechanics("serfer-published", "published", contiguous=False)
REPAIRED = Mechanics("serfer-repaired", "repaired", contiguous=True)


class PollDriver:
    """Takes queries through a plan, one at a time; `invoke` starts a function with a payload and does not wait.

    The authors give up never, this one after `deadline_s` of `clock`'s seconds.
    """

    def __init__(
        self,
        plan: Plan,
        store: Store,
        invoke: Callable[[str, bytes], object],
        *,
        contiguous: bool,
        deadline_s: float = DEADLINE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan = plan
        self._store = store
        self._invoke = invoke
        self._contiguous = contiguous
        self._deadline_s = deadline_s
        self._clock = clock
        self._counts = StoreCounts()
        self._times = PartTimes()

    @property
    def counts(self) -> StoreCounts:
        """Requests and bytes of all queries so far, driver and workers together.

        A read that finds nothing is a poll and counts in `exists`; a worker's read and write count as often as it was
        invoked.
        """
        return self._counts

    def take_times(self) -> Times:
        """Return what parts of the queries since the last call took, as figures 5 to 8 have them (section 6.2)."""
        return self._times.take()

    def run(self, pixels: NDArray[np.uint8]) -> Array:
        query, deadline = secrets.token_hex(16), self._clock() + self._deadline_s
        known: Tensors = {(IMAGE, IMAGE): normalised(self._plan, pixels)}
        for number, stage in enumerate(self._plan.stages):
            outputs = self._layer(query, number, known, deadline)
            started = time.perf_counter()
            known.update({(number, place): whole for place, whole in enumerate(merge(stage, outputs))})
            self._times.since(MERGE, started)
        return known[len(self._plan.stages) - 1, 0]

    def _layer(self, query: str, number: int, known: Tensors, deadline: float) -> list[list[Array]]:
        tiles = range(len(self._plan.stages[number].tiles))
        put = [self._put(query, number, tile, known) for tile in tiles]
        released = time.perf_counter()
        for tile in tiles:
            self._start(query, number, tile)
        invoked = [1 for _ in tiles]
        polled = time.perf_counter()
        values = self._barrier(query, number, invoked, deadline)
        self._times.since(POLL, polled)
        self._times.since(LAYER.format(number + 1), released)
        for times, read, written in zip(invoked, put, values, strict=True):
            self._counts += StoreCounts(times * len(written), times * read, times, times)
        return [[view.array for view in decode(value)] for value in values]

    def _put(self, query: str, number: int, index: int, known: Mapping[tuple[int, int], Array]) -> int:
        """Store what a tile reads and return its bytes: as published, the whole tensor that it is a part of."""
        stage, started = self._plan.stages[number], time.perf_counter()
        views = [
            View.of(known[source.stage, source.output], source.shape.slices(rect))
            for source, rect in zip(stage.inputs, stage.tiles[index].inputs, strict=True)
        ]
        value = encode([view.alone() for view in views] if self._contiguous else views)
        self._times.since(SPLIT, started)
        started = time.perf_counter()
        self._store.put(read_key(query, number, index), value, TTL_S)
        self._counts += StoreCounts(bytes_put=len(value), puts=1)
        self._times.since(WRITE, started)
        return len(value)

    def _start(self, query: str, number: int, index: int) -> None:
        function = self._plan.function(number, self._plan.stages[number].tiles[index].function)
        self._invoke(function, json.dumps({"query": query, "stage": number, "tile": index}).encode())

    def _barrier(self, query: str, number: int, invoked: list[int], deadline: float) -> Sequence[bytes]:
        """Read all tiles' values from the first one on, and from the first one again whenever one is missing.

        The one that is missing is invoked again after every 10,000 polls.
        """
        keys = [written_key(query, number, tile) for tile in range(len(invoked))]
        values: list[bytes] = []
        polls = 0
        while len(values) < len(keys):
            started = time.perf_counter()
            try:
                value = self._store.get(keys[len(values)])
            except MissingKeyError:
                self._times.since(MISS, started)
                polls += 1
                self._counts += StoreCounts(exists=1)
                if polls % POLLS_BEFORE_RETRY == 0:
                    self._start(query, number, len(values))
                    invoked[len(values)] += 1
                values = []
                if self._clock() > deadline:
                    raise DeadlineError(f"stage {number} did not end within {self._deadline_s:g} s") from None
            else:
                self._counts += StoreCounts(bytes_get=len(value), gets=1)
                self._times.since(READ, started)
                decode(value)  # each time, whether or not the others are there
                values.append(value)
        return values
