"""Prices of stages: edges of the search, with seconds and dollars for each memory size and pair of data paths."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from serfer.core.costs.aws import LambdaFacts
from serfer.core.costs.cost_model import Floats, Platform, StageLoad, Traffic, billed_usd, stage_price
from serfer.core.geometry import Grid
from serfer.core.plan import CACHE, INLINE, OBJECTS, PATHS, Shape
from serfer.core.units import FLOAT_BYTES, MIB, MS_PER_S
from serfer.splitter.network.graph import Graph
from serfer.splitter.planning.limits import Fit
from serfer.splitter.planning.search import Edge
from serfer.splitter.planning.stage_costs import InputAccess, StageWork
from serfer.splitter.tiling.grids import ONE

INLINE_MOST = MIB
"""Bytes between two stages that may ride along with the driver: what is larger goes through the store."""
ON_CACHE, ON_INLINE, ON_OBJECTS = (PATHS.index(path) for path in (CACHE, INLINE, OBJECTS))
"""The numbers of the data paths, as edges have them."""

Rank = tuple[int, int, int]
"""What precedes time and money, integers, less is better: lost precision, work not spread as requested, work."""
_ROUNDING = 1e-6  # of a millisecond: bills are rounded to less before they are rounded up


@dataclass(frozen=True)
class CandidateStage:
    """A stage that fits its functions."""

    work: StageWork
    fit: Fit
    rank: Rank

    @property
    def start(self) -> int:
        return self.work.start

    @property
    def stop(self) -> int:
        return self.work.stop

    @property
    def memory_mb(self) -> tuple[int, ...]:
        return self.fit.memory_mb

    @property
    def tasks(self) -> tuple[int, ...]:
        return (self.work.grid.tiles,) * len(self.fit.memory_mb)

    def works(self, _memory: int, _grid: int) -> list[StageWork]:
        return [self.work]


def fits_inline(size: float) -> bool:
    return size <= INLINE_MOST


def values_read(work: StageWork) -> Floats:
    return np.asarray(sum(reading.elements for reading in work.accesses))


def bytes_read(work: StageWork) -> Floats:
    """Return how many bytes each task of a stage reads of tensors; the image has one for each value."""
    return FLOAT_BYTES * values_read(work)


@dataclass(frozen=True)
class StagePrices:
    """Prices the stages of a network; `grids` numbers those on which tensors may have been written."""

    graph: Graph
    platform: Platform
    grids: Mapping[Grid, int]
    _known_pieces: dict[tuple[Shape, bytes, bytes], Floats] = field(default_factory=dict, init=False, compare=False)

    def edges(self, candidate: CandidateStage, object_cuts: Container[int]) -> Iterator[Edge]:
        pairs = self._data_paths(candidate.work, object_cuts)
        memory = np.array(candidate.memory_mb, dtype=float)[:, None, None]
        ranges, number = self._different_ranges(candidate.work)
        seconds, usd = stage_price(self._load(candidate, pairs, ranges), memory, self.platform)
        shape = (len(pairs), len(candidate.memory_mb), len(ranges))
        cold_usd = candidate.fit.starts_usd(candidate.work.grid.tiles, memory[:, 0, 0], self.platform, candidate.start)
        if cold_usd is not None:
            usd = usd + cold_usd[:, None]
        priced = (np.broadcast_to(figures, shape)[..., number] for figures in (seconds, usd))
        for (before, after), each_s, each_usd in zip(pairs, *priced, strict=True):
            yield Edge(
                (0, candidate.start),
                (0, candidate.stop),
                before,
                after,
                self.grids[candidate.work.grid],
                each_s,
                each_usd,
                candidate,
                cold_usd,
            )

    def object_cuts(self, candidates: Sequence[CandidateStage], inner: Sequence[int]) -> frozenset[int]:
        """Return those of the `inner` cuts' positions whose tensors may be worth sending through an object store."""
        tradeoff = ObjectStoreTradeoff.on(self.platform)
        if tradeoff is None:
            return frozenset()
        if not tradeoff.bounded:
            return frozenset(inner)
        writing, reading = dict.fromkeys(inner, -math.inf), dict.fromkeys(inner, -math.inf)
        for candidate in candidates:
            work, least_mb = candidate.work, min(candidate.memory_mb)
            tasks, read, written = work.grid.tiles, bytes_read(work).sum(), FLOAT_BYTES * work.written.sum()
            if work.stop in writing:
                saved = tradeoff.most_saved_writing(tasks, float(written), least_mb)
                writing[work.stop] = max(writing[work.stop], saved)
            if work.start in reading:
                saved = tradeoff.most_saved_reading(tasks, len(work.accesses), float(read), least_mb)
                reading[work.start] = max(reading[work.start], saved)
        return frozenset(position for position in inner if writing[position] + reading[position] > 0)

    def ranges(self, work: StageWork) -> Floats:
        """Return how many pieces each task reads, a row for each grid on which they may have been written."""
        return np.asarray(sum(map(self._pieces, work.accesses), np.zeros((len(self.grids), work.grid.tiles))))

    def _different_ranges(self, work: StageWork) -> tuple[Floats, list[int]]:
        if not work.start:
            return np.zeros((1, 1)), [0] * len(self.grids)
        ranges = self.ranges(work)
        rows = [row.tobytes() for row in ranges]
        numbers = {row: number for number, row in enumerate(dict.fromkeys(rows))}
        return ranges[[rows.index(row) for row in numbers]], [numbers[row] for row in rows]

    def _pieces(self, access: InputAccess) -> Floats:
        shape = self.graph.shape(access.tensor)
        key = shape, access.rows.tobytes(), access.cols.tobytes()
        if key not in self._known_pieces:
            grids = [grid if shape.flat == grid.columns else ONE for grid in self.grids]
            self._known_pieces[key] = access.pieces(shape.height, shape.width, grids)
        return self._known_pieces[key]

    def _data_paths(self, work: StageWork, object_cuts: Container[int]) -> list[tuple[int, int]]:
        """The object store is for the cuts at `object_cuts`. The image and the answer travel inline."""

        def at(position: int, size: float) -> list[int]:
            inline = [ON_INLINE] if fits_inline(size) else []
            return [ON_CACHE, *inline, *([ON_OBJECTS] if position in object_cuts else [])]

        before = at(work.start, float(bytes_read(work).sum())) if work.start else [ON_CACHE]
        last = work.stop == len(self.graph.nodes)
        return list(product(before, [ON_INLINE] if last else at(work.stop, FLOAT_BYTES * float(work.written.sum()))))

    def _load(self, candidate: CandidateStage, pairs: Sequence[tuple[int, int]], ranges: Floats) -> StageLoad:
        """Axes: pairs of paths, memories, `ranges`, tasks. Images come as 8-bit pixels in first stages' payloads."""
        work = candidate.work
        come, go = np.array(pairs).T[:, :, None, None, None]
        if not work.start:
            come = np.full_like(come, ON_INLINE)
        read, written = bytes_read(work) if work.start else values_read(work), work.written * FLOAT_BYTES

        def through(path: int) -> Traffic:
            return Traffic((come == path) * read, (come == path) * ranges, (go == path) * written)

        cache = through(ON_CACHE)
        return StageLoad(
            work.serial_s,
            work.parallel_s,
            cache.bytes_read,
            cache.ranges,
            cache.bytes_written,
            carried_in=(come == ON_INLINE) * read,
            carried_out=(go == ON_INLINE) * written,
            weight_bytes=candidate.fit.weight_bytes,
            objects=through(ON_OBJECTS) if any(ON_OBJECTS in pair for pair in pairs) else None,
            crops=0.0 if work.start else read,
        )


@dataclass(frozen=True)
class ObjectStoreTradeoff:
    """The object store compared with the first: what a request takes and costs more, and what a byte costs less."""

    functions: LambdaFacts
    request_s: float
    range_s: float
    put_usd: float
    get_usd: float
    byte_usd: float

    @classmethod
    def on(cls, platform: Platform) -> ObjectStoreTradeoff | None:
        """Return the trade-off of a platform, or None where it has no object store."""
        near, far = platform.store, platform.objects
        if far is None:
            return None
        return cls(
            platform.functions,
            far.request_latency - near.request_latency,
            far.range_latency - near.range_latency,
            far.price_put - near.price_put,
            far.price_get - near.price_get,
            near.price_byte - far.price_byte,
        )

    @property
    def bounded(self) -> bool:
        """Whether the two bounds hold: nothing but the bytes may be in its favour."""
        return min(self.request_s, self.range_s, self.put_usd, self.get_usd) >= 0

    def most_saved_writing(self, tasks: int, size: float, memory_mb: int) -> float:
        """Return the most dollars that `tasks` with so much memory or more save who write `size` bytes together."""
        return size * self.byte_usd - tasks * (self.put_usd + self._waiting(self.request_s, memory_mb))

    def most_saved_reading(self, tasks: int, ranges: int, size: float, memory_mb: int) -> float:
        """Return the same for tasks that read `size` bytes together, each in so many ranges or more."""
        waiting = self._waiting(self.request_s + ranges * self.range_s, memory_mb)
        return size * self.byte_usd - tasks * (ranges * self.get_usd + waiting)

    def _waiting(self, seconds: float, memory_mb: int) -> float:
        whole = math.floor(seconds * MS_PER_S - _ROUNDING) if seconds else 0
        return float(billed_usd(memory_mb, max(whole, 0) / MS_PER_S, self.functions))
