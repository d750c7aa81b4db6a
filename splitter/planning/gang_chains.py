"""The best chain of exchanges inside every possible gang: a shortest path from its last stage back to its first.

A gang's stages have one grid, but for a last one that may be on one tile: the head, which the first member computes.
For a fixed grid and memory, the seconds of stages and exchanges add up, and so do the dollars of exchanges. So the best
chain from each exchange to each end follows from those after it (dynamic programming), for all ends, starts and
memories at once. Where exchanges cost dollars, every chain is kept that no other beats in both.

         start                                              end
    ● ─────────▶ ◌ ─────────▶ ◌ ─────────▶ ◌ ─────────▶ ●        ◌ exchange before a convolution

The walk back from an end stops at the first stage in whose middle an exchange saves every tile more than it costs:
longer stages have larger halos, so an exchange there saves even more.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serfer.core.costs.cost_model import Exchange, Floats, Platform
from serfer.core.costs.vcpus import compute_seconds, vcpus
from serfer.core.geometry import Grid, even_parts
from serfer.core.plan import Shape
from serfer.core.units import FLOAT_BYTES, MS_PER_S
from serfer.splitter.network.graph import Graph
from serfer.splitter.planning.stage_costs import InputAccess, StageWork
from serfer.splitter.tiling import operators
from serfer.splitter.tiling.receptive_field import Spans, spans_of

_MB_PER_GB = 1024
_ROUNDING_S = 1 / MS_PER_S  # what billing whole milliseconds may hide
_NOWHERE = _LAST = -1


@dataclass(frozen=True)
class InnerStage:
    """A stage of a gang, and the exchange before it: arrays have a value for each memory.

    `tile_s` is what each tile computes, with an axis for the tiles, `seconds` that of the slowest; `before_s` and
    `before_usd` are of the exchange. `added_s` is what the stage and the exchange add, dollars counted as seconds. A
    gang that begins after node `limit` would have to read halos from the store in its middle, and is none.
    """

    work: StageWork
    tile_s: Floats
    seconds: Floats
    before_s: float
    before_usd: float
    added_s: Floats
    limit: int


@dataclass(frozen=True)
class _Halos:
    """The price of an exchange, and which of the tensors that a stage reads cross between tiles."""

    seconds: float
    usd: float
    crosses: tuple[bool, ...]


@dataclass(frozen=True)
class Chains:
    """The chains from one exchange on: arrays (2, ends, starts, memories, labels), where inf is none.

    The first axis is whether the last stage is on one tile. There are only the ends after the exchange, from number
    `first_end` on, and the starts before it. `following` is the position of the next exchange, or of the end, `label`
    the chain's number there, -1 at the end.
    """

    first_end: int
    seconds: Floats
    usd: Floats
    following: NDArray[np.int64]
    label: NDArray[np.int64]

    @classmethod
    def best(cls, several: Sequence[Chains]) -> Chains:
        seconds, usd = (
            np.concatenate(figures, axis=-1)
            for figures in ([chains.seconds for chains in several], [chains.usd for chains in several])
        )
        kept, seconds, usd = frontier(seconds, usd)
        following = np.concatenate([chains.following for chains in several], axis=-1)
        label = np.concatenate([chains.label for chains in several], axis=-1)
        return cls(
            several[0].first_end,
            seconds,
            usd,
            np.take_along_axis(following, kept, -1),
            np.take_along_axis(label, kept, -1),
        )


class GangStages:
    """The stages that gangs on one grid consist of, added in the order of where they stop, the shortest first."""

    def __init__(self, graph: Graph, grid: Grid, memory_mb: Sequence[int], platform: Platform) -> None:
        self.graph, self.grid = graph, grid
        self._platform = platform
        self._vcpus = vcpus(np.array(memory_mb, dtype=float), platform.functions.memory_per_vcpu)
        self.memories = len(memory_mb)
        self._second_usd = grid.tiles * platform.functions.price_gb_second * np.array(memory_mb) / _MB_PER_GB
        self._made = {node.output: index for index, node in enumerate(graph.nodes)}
        self.into: dict[int, dict[int, InnerStage]] = {}
        self.out_of: dict[int, dict[int, InnerStage]] = {}
        self.tails: dict[int, dict[int, InnerStage]] = {}
        self._known_halos: dict[object, _Halos] = {}  # by what they depend on: networks repeat their blocks
        self._known_parts: dict[str, tuple[Spans, Spans]] = {}

    def add(self, work: StageWork) -> bool:
        """Add a stage on the grid; return whether it is of use: if not, no longer one to the same stop is."""
        key = tuple((*self._layout(read.tensor), read.rows.tobytes(), read.cols.tobytes()) for read in work.accesses)
        if key not in self._known_halos:
            self._known_halos[key] = self._priced([self._halos(access) for access in work.accesses])
        stage = self._stage(work, self._known_halos[key])
        if self._is_beaten(stage):
            return False
        self.into.setdefault(work.stop, {})[work.start] = stage
        self.out_of.setdefault(work.start, {})[work.stop] = stage
        return True

    def add_tail(self, work: StageWork) -> None:
        key = tuple(self._layout(access.tensor) for access in work.accesses)
        if key not in self._known_halos:
            self._known_halos[key] = self._priced([(self._gathered(access), True) for access in work.accesses])
        self.tails.setdefault(work.start, {})[work.stop] = self._stage(work, self._known_halos[key])

    def _priced(self, halos: Sequence[tuple[Floats, bool]]) -> _Halos:
        seconds, usd = exchange_of([crossing for crossing, _ in halos], self.grid.tiles).price(self._platform)
        return _Halos(float(seconds), float(usd), tuple(crosses for _, crosses in halos))

    def _stage(self, work: StageWork, halos: _Halos) -> InnerStage:
        tile_s = compute_seconds(work.serial_s, work.parallel_s, self._vcpus[:, None])
        slowest = tile_s.max(axis=-1)
        added_s = slowest + halos.seconds
        if halos.usd:
            added_s = added_s + halos.usd / self._second_usd + _ROUNDING_S
        tensors = (access.tensor for access, crosses in zip(work.accesses, halos.crosses, strict=True) if crosses)
        limit = min((self._made.get(tensor, _NOWHERE) for tensor in tensors), default=len(self.graph.nodes))
        return InnerStage(work, tile_s, slowest, halos.seconds, halos.usd, added_s, limit)

    def _is_beaten(self, stage: InnerStage) -> bool:
        """Return whether an exchange in the middle saves every tile more than it costs, for every memory."""
        start, stop = stage.work.start, stage.work.stop
        slowest = stage.seconds[0]
        for middle, second in self.into.get(stop, {}).items():
            first = self.into.get(middle, {}).get(start)
            if first is None or second.limit < start or slowest < first.seconds[0] + second.added_s[0]:
                continue
            if (stage.tile_s >= first.tile_s + second.added_s[:, None]).all():
                return True
        return False

    def _halos(self, access: InputAccess) -> tuple[Floats, bool]:
        """Of a tensor that is not in parts, every tile reads what is not its own."""
        if not self._in_parts(access.tensor):
            return np.zeros((self.grid.tiles, self.grid.tiles)), True
        rows, cols = self._tile_spans(access.tensor)
        down, across = _overlaps(access.rows, rows), _overlaps(access.cols, cols)
        read = access.channels * np.einsum("ab,cd->acbd", down, across).reshape(self.grid.tiles, self.grid.tiles)
        crossing = read - np.diag(np.diag(read))
        return crossing, bool(crossing.any())

    def _gathered(self, access: InputAccess) -> Floats:
        """What is not in parts is made before the gang, or by no gang on this grid: nothing is gathered of it."""
        crossing = np.zeros((self.grid.tiles, self.grid.tiles))
        if not self._in_parts(access.tensor):
            return crossing
        own = (
            access.channels
            * np.multiply.outer(*(stop - start for start, stop in self._tile_spans(access.tensor))).ravel()
        )
        crossing[0, 1:] = own[1:]
        return crossing

    def _layout(self, tensor: str) -> tuple[Shape, bool]:
        node = self.graph.nodes[self._made[tensor]] if tensor in self._made else None
        return self.graph.shape(tensor), node is not None and node.kind == operators.TILE_POOL

    def _in_parts(self, tensor: str) -> bool:
        """Return whether each tile has a part of a tensor: vectors and maps smaller than the grid have fewer parts."""
        rows, cols = self._tile_spans(tensor)
        counts = rows.shape[1], cols.shape[1]
        return not self.graph.shape(tensor).flat and counts == (self.grid.rows, self.grid.cols)

    def _tile_spans(self, tensor: str) -> tuple[Spans, Spans]:
        if tensor not in self._known_parts:
            shape, pooled = self._layout(tensor)
            sizes = (self.grid.rows, self.grid.cols) if pooled else (shape.height, shape.width)
            counts = (min(size, parts) for size, parts in zip(sizes, (self.grid.rows, self.grid.cols), strict=True))
            rows, cols = (spans_of(even_parts(size, count)) for size, count in zip(sizes, counts, strict=True))
            self._known_parts[tensor] = rows, cols
        return self._known_parts[tensor]


def exchange_of(halos: Iterable[Floats], tiles: int) -> Exchange:
    """Return the exchange of the values, of several tensors, that readers (rows) read of writers (columns)."""
    crossing = sum(halos, np.zeros((tiles, tiles)))
    return Exchange(FLOAT_BYTES * crossing.sum(axis=0), FLOAT_BYTES * crossing.sum(axis=1), (crossing > 0).sum(axis=0))


def _overlaps(read: Spans, parts: Spans) -> Floats:
    first = np.maximum(read[0][:, None], parts[0][None, :])
    last = np.minimum(read[1][:, None], parts[1][None, :])
    return np.asarray(np.maximum(last - first, 0), dtype=float)


class GangChains:
    """The best chains inside every gang on one grid: from an exchange after one of `starts` to one of `ends`.

    Ends are counted twice: with all stages on the grid, then with a last one on one tile.
    """

    def __init__(self, stages: GangStages, points: Sequence[int], starts: Sequence[int], ends: Sequence[int]) -> None:
        self.stages = stages
        self.starts, self.ends = tuple(starts), tuple(ends)
        self._number = {end: number for number, end in enumerate(ends)}
        self.at: dict[int, Chains] = {}
        for point in sorted(points, reverse=True):
            candidates = [*self._direct(point), *self._longer(point)]
            if candidates:
                self.at[point] = Chains.best(candidates)

    def _direct(self, point: int) -> Iterator[Chains]:
        first_end, shape = self._extent(point, 1)
        seconds, usd, following = np.full(shape, np.inf), np.zeros(shape), np.full(shape, _NOWHERE)
        for kind, stages in enumerate((self.stages.out_of, self.stages.tails)):
            for stop, stage in stages.get(point, {}).items():
                if stop in self._number:
                    end = self._number[stop] - first_end
                    seconds[kind, end, :, :, 0] = self._own_seconds(stage, point)
                    usd[kind, end] = stage.before_usd
                    following[kind, end] = stop
        if np.isfinite(seconds).any():
            yield Chains(first_end, seconds, usd, following, np.full(shape, _LAST))

    def _longer(self, point: int) -> Iterator[Chains]:
        for stop, stage in self.stages.out_of.get(point, {}).items():
            if (rest := self.at.get(stop)) is not None:
                labels = rest.seconds.shape[-1]
                first_end, shape = self._extent(point, labels)
                known = slice(rest.first_end - first_end, None)
                own = self._own_seconds(stage, point)
                seconds, usd = np.full(shape, np.inf), np.zeros(shape)
                seconds[:, known] = rest.seconds[:, :, : len(own)] + own[:, :, None]
                usd[:, known] = rest.usd[:, :, : len(own)] + stage.before_usd
                label = np.broadcast_to(np.arange(labels), shape)
                yield Chains(first_end, seconds, usd, np.broadcast_to(stop, shape), label)

    def _extent(self, point: int, labels: int) -> tuple[int, tuple[int, ...]]:
        """Return the number of the first end after an exchange, and the shape of the chains from it on."""
        first_end, starts = bisect_right(self.ends, point), bisect_left(self.starts, point)
        return first_end, (2, len(self.ends) - first_end, starts, self.stages.memories, labels)

    def _own_seconds(self, stage: InnerStage, point: int) -> Floats:
        """By start before the exchange, and memory; inf for starts from which a gang may not have the stage."""
        able = np.array(self.starts[: bisect_left(self.starts, point)]) <= stage.limit
        return np.where(able, 0.0, np.inf)[:, None] + stage.seconds + stage.before_s

    def after(self, point: int, start: int, ends: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Return seconds and dollars of the chains from an exchange on: arrays (ends, memories, labels).

        `start` and `ends` are numbers; where there is no chain, seconds are inf.
        """
        chains = self.at[point]
        kinds, numbers = np.divmod(ends, len(self.ends))
        after = numbers >= chains.first_end
        shape = (len(ends), *chains.seconds.shape[3:])
        seconds, usd = np.full(shape, np.inf), np.zeros(shape)
        chosen = kinds[after], numbers[after] - chains.first_end, start
        seconds[after], usd[after] = chains.seconds[chosen], chains.usd[chosen]
        return seconds, usd

    def works(self, point: int, end: int, start: int, memory: int, label: int) -> list[StageWork]:
        """Return the stages of a chain from an exchange on; `end`, `start`, `memory` and `label` are numbers."""
        works = []
        on_one_tile, number = divmod(end, len(self.ends))
        while label != _LAST:
            chains = self.at[point]
            at = (on_one_tile, number - chains.first_end, start, memory, label)
            stop, label = int(chains.following[at]), int(chains.label[at])
            tail = label == _LAST and on_one_tile
            works.append((self.stages.tails if tail else self.stages.out_of)[point][stop].work)
            point = stop
        return works


def frontier(seconds: Floats, usd: Floats) -> tuple[NDArray[np.int64], Floats, Floats]:
    """Keep, along the last axis, what nothing beats in both seconds and dollars, the fastest first.

    Return the indices of what is kept, its seconds and its dollars; seconds are inf where others keep more.
    """
    best = seconds.argmin(axis=-1)[..., None]
    fastest, its_usd = np.take_along_axis(seconds, best, -1), np.take_along_axis(usd, best, -1)
    if (its_usd <= np.where(np.isfinite(seconds), usd, np.inf).min(axis=-1, keepdims=True)).all():
        return best, fastest, its_usd
    order = np.lexsort((usd, seconds), axis=-1)
    seconds, usd = np.take_along_axis(seconds, order, -1), np.take_along_axis(usd, order, -1)
    before = np.minimum.accumulate(np.where(np.isfinite(seconds), usd, np.inf), axis=-1)
    kept = np.isfinite(seconds)
    kept[..., 1:] &= usd[..., 1:] < before[..., :-1]
    first = np.argsort(~kept, axis=-1, kind="stable")[..., : max(1, kept.sum(axis=-1).max())]
    seconds = np.where(kept, seconds, np.inf)
    return tuple(np.take_along_axis(values, first, -1) for values in (order, seconds, usd))  # type: ignore[return-value]
