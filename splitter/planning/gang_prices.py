"""Prices of gangs: an edge of the search for every gang, pair of data paths of its tensors in and out, and memory.

Those that one function, or another gang, beats in both seconds and dollars are left out: most by bounds, before they
are priced one by one.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from serfer.core.costs.cost_model import Floats, GangEnds, StageLoad, Traffic, gang_price
from serfer.core.geometry import Grid
from serfer.core.units import FLOAT_BYTES
from serfer.splitter.network.graph import Graph
from serfer.splitter.planning.gang_candidates import GangCandidates
from serfer.splitter.planning.gang_chains import GangChains, InnerStage, frontier
from serfer.splitter.planning.limits import Fit, FunctionLimits
from serfer.splitter.planning.search import Edge, Vertex
from serfer.splitter.planning.stage_costs import StageWork
from serfer.splitter.planning.stage_prices import (
    ON_CACHE,
    ON_INLINE,
    ON_OBJECTS,
    CandidateStage,
    Rank,
    StagePrices,
    bytes_read,
    fits_inline,
    values_read,
)
from serfer.splitter.tiling import operators
from serfer.splitter.tiling.grids import ONE, tile_rects


@dataclass(frozen=True)
class _GangChoices:
    """Gangs of the same nodes on one grid: which stages are best for each memory and each grid before, as numbers.

    `pairs` has for each of them (memories, grids) a pair of a first stage, `firsts`, and a chain after it, `labels`.
    """

    chains: GangChains
    start_number: int
    end_number: int
    first_stages: tuple[InnerStage, ...]
    firsts: NDArray[np.int64]
    labels: NDArray[np.int64]
    pairs: NDArray[np.int64]

    def works(self, memory: int, grid: int) -> list[StageWork]:
        pair = self.pairs[memory, grid]
        first = self.first_stages[self.firsts[pair]].work
        return [
            first,
            *self.chains.works(first.stop, self.end_number, self.start_number, memory, int(self.labels[pair])),
        ]


@dataclass(frozen=True)
class CandidateGang:
    """Gangs that fit their function, of the same nodes and rank; `sizes` are choices, each with a memory's number."""

    start: int
    stop: int
    sizes: tuple[tuple[_GangChoices, int], ...]
    memory_mb: tuple[int, ...]
    fit: Fit
    rank: Rank

    @property
    def tasks(self) -> tuple[int, ...]:
        return tuple(choices.chains.stages.grid.tiles for choices, _ in self.sizes)

    def works(self, memory: int, grid: int) -> list[StageWork]:
        choices, number = self.sizes[memory]
        return choices.works(number, grid)


@dataclass(frozen=True)
class _GangEnd:
    """An end of a gang: its number among those of the chains, its cut, what is written, and how the function fits."""

    number: int
    position: int
    after: int
    writing: GangEnds
    fit: Fit


_Ends = tuple[Vertex, Vertex, int, int]
"""Where an edge starts and stops, and how its tensors come and go."""


class GangPrices:
    """Prices the gangs of a network whose functions hold them."""

    def __init__(
        self,
        graph: Graph,
        gangs: GangCandidates,
        memory_mb: tuple[int, ...],
        limits: FunctionLimits,
        prices: StagePrices,
    ) -> None:
        self._graph, self._gangs, self._memory_mb = graph, gangs, memory_mb
        self._limits, self._prices = limits, prices
        self._cuts, self._platform = {cut.position: cut for cut in gangs.cuts}, prices.platform
        self._made = {node.output: index for index, node in enumerate(graph.nodes)}
        self._known_writing: dict[tuple[tuple[str, ...], int, Grid, int, int], GangEnds | None] = {}

    def edges(self, rivals: Iterable[CandidateStage], object_cuts: Container[int]) -> list[Edge]:
        """Return every gang, for every pair of paths of its tensors in and out; those to one grid are one edge.

        Those that one of the `rivals`, the same nodes on one tile, beats with every memory are left out.
        """
        singles = {_ends_of(edge): edge for rival in rivals for edge in self._prices.edges(rival, object_cuts)}
        alike: dict[tuple[Vertex, Vertex, int, int, int], list[Edge]] = {}
        for grid, stages in self._gangs.stages.items():
            starts, ends = (sorted(set(positions)) for positions in zip(*self._gangs.spans[grid], strict=True))
            chains = GangChains(stages, [*({*stages.out_of, *stages.tails} - {0})], starts, ends)
            for number in range(len(starts)):
                for edge in self._gangs_from(number, chains, object_cuts, singles):
                    alike.setdefault((edge.start, edge.stop, edge.before, edge.after, edge.grid), []).append(edge)
        return [_merged(edges) for edges in alike.values()]

    def _gangs_from(
        self, number: int, chains: GangChains, object_cuts: Container[int], singles: Mapping[_Ends, Edge]
    ) -> Iterator[Edge]:
        """Labels are pairs of a first stage and a chain after it; gangs that one of `singles` beats are left out."""
        start, grid = chains.starts[number], chains.stages.grid
        firsts = tuple(stage for stop, stage in chains.stages.out_of.get(start, {}).items() if stop in chains.at)
        every_end = self._gang_ends(start, chains, object_cuts)
        if not (firsts and every_end):
            return
        numbers = np.array([end.number for end in every_end])
        rests = [chains.after(own.work.stop, number, numbers) for own in firsts]
        counts = [seconds.shape[-1] for seconds, _ in rests]
        first, label = np.repeat(np.arange(len(firsts)), counts), np.concatenate([*map(np.arange, counts)])
        inside = np.array(
            [
                np.concatenate(
                    [seconds + own.seconds[:, None] for own, (seconds, _) in zip(firsts, rests, strict=True)], -1
                ),
                np.concatenate([usd for _, usd in rests], axis=-1),
            ]
        )
        for before in self._gang_paths(start, object_cuts):
            reading = _stacked([self._reading(own.work, before) for own in firsts])
            different, known = np.unique(reading, axis=-1, return_inverse=True)
            # axes: seconds, the driver's, dollars; ends, memories, different grids before, labels
            read = different[:, first].transpose(0, 2, 1)[:, None, None]
            own = [inside[0][:, :, None] + read[0], read[1], inside[1][:, :, None] + read[2]]
            colds = self._cold_usd(grid, every_end, start)
            least = self._priced(grid, every_end, colds, *(figures.min(axis=-1, keepdims=True) for figures in own))
            rivals = [singles.get(((0, start), (0, end.position), before, end.after)) for end in every_end]
            of_use = self._unbeaten_ends(every_end, [figures[..., 0][..., known] for figures in least], rivals)
            if not len(of_use):
                continue
            ends, rivals = [every_end[row] for row in of_use], [rivals[row] for row in of_use]
            colds = colds[of_use]
            priced = self._priced(grid, ends, colds, own[0][of_use], own[1], own[2][of_use])
            kept, seconds, usd = frontier(*priced)
            kept, seconds, usd = kept[:, :, known], seconds[:, :, known], usd[:, :, known]
            unbeaten_at = [
                (row, place)
                for place in range(kept.shape[-1])
                for row in self._unbeaten_ends(ends, (seconds[..., place], usd[..., place]), rivals).tolist()
            ]
            for row, place in sorted(unbeaten_at):
                end, pairs = ends[row], kept[row, :, :, place].copy()
                choices = _GangChoices(chains, number, end.number, firsts, first, label, pairs)
                least_memory = self._memory_mb.index(end.fit.memory_mb[0])
                yield Edge(
                    (0, start),
                    (0, end.position),
                    before,
                    end.after,
                    self._prices.grids[ONE if end.number >= len(chains.ends) else grid],
                    seconds[row, least_memory:, :, place],
                    usd[row, least_memory:, :, place],
                    CandidateGang(
                        start,
                        end.position,
                        tuple((choices, memory) for memory in range(least_memory, len(self._memory_mb))),
                        end.fit.memory_mb,
                        end.fit,
                        (end.fit.lost, 0, 0),
                    ),
                    colds[row, least_memory:] if self._platform.cold_share else None,
                )

    def _priced(
        self, grid: Grid, ends: Sequence[_GangEnd], colds: Floats, seconds: Floats, carried: Floats, usd: Floats
    ) -> tuple[Floats, Floats]:
        """Seconds, the driver's, and dollars by (ends, memories), without writing; `colds` are cold starts' dollars."""
        write = _stacked([end.writing for end in ends])[:, :, None, None, None]
        seconds, usd = gang_price(
            grid.tiles,
            seconds + write[0],
            carried + write[1],
            usd + write[2],
            np.array(self._memory_mb, dtype=float)[:, None, None],
            self._platform,
        )
        return seconds, usd + colds[:, :, None, None]

    def _cold_usd(self, grid: Grid, ends: Sequence[_GangEnd], start: int) -> Floats:
        memory = np.array(self._memory_mb, dtype=float)
        priced = [end.fit.starts_usd(grid.tiles, memory, self._platform, start) for end in ends]
        return np.array([np.zeros(len(memory)) if usd is None else usd for usd in priced])

    def _unbeaten_ends(
        self, ends: Sequence[_GangEnd], least: Sequence[Floats], singles: Sequence[Edge | None]
    ) -> NDArray[np.int64]:
        """Return the numbers of the ends whose gang may be of use, by bounds on what any gang to them takes.

        `least` are seconds and dollars, (ends, memories, grids before). A gang is of no use where its single rival
        beats even both bounds, with some memory, for every memory that holds the gang and every grid.
        """
        theirs = np.full((2, len(ends), *least[0].shape[1:]), np.inf)
        too_small = np.zeros((*least[0].shape[:2], 1), dtype=bool)
        for row, (end, single) in enumerate(zip(ends, singles, strict=True)):
            too_small[row, : self._memory_mb.index(end.fit.memory_mb[0])] = True
            if single:
                theirs[:, row, : len(single.seconds)] = single.seconds, single.usd
        beaten = np.logical_and(
            *(seconds[:, :, None] <= own[:, None] for seconds, own in zip(theirs, least, strict=True))
        )
        possible = np.isfinite(least[0]) & ~too_small
        unbeaten = ~(beaten.any(axis=1) | too_small)
        return np.flatnonzero((possible & unbeaten).any(axis=(1, 2)))

    def _gang_ends(self, start: int, chains: GangChains, object_cuts: Container[int]) -> list[_GangEnd]:
        grid, ends = chains.stages.grid, list[_GangEnd]()
        for number, stop in enumerate(chains.ends):
            fit = self._limits.of_gang(start, stop) if (start, stop) in self._gangs.spans[grid] else None
            if fit is None:
                continue
            names = tuple(name for name in self._cuts[stop].tensors if self._made.get(name, -1) >= start)
            for offset, last in ((0, grid), (len(chains.ends), ONE)):
                for after in self._gang_paths(stop, object_cuts):
                    writing = self._writing(names, stop, last, grid.tiles, after)
                    if writing is not None:
                        ends.append(_GangEnd(offset + number, stop, after, writing, fit))
        return ends

    def _gang_paths(self, position: int, object_cuts: Container[int]) -> list[int]:
        """Return the paths that tensors at a cut may take; whether they are small enough is not known here."""
        if position in (0, len(self._graph.nodes)):
            return [ON_INLINE] if position else [ON_CACHE]
        return [ON_CACHE, ON_INLINE, *([ON_OBJECTS] if position in object_cuts else [])]

    def _reading(self, work: StageWork, before: int) -> GangEnds:
        """Predict what a gang with such a first stage reads, by a path; arrays have a value for each grid before it."""
        held = bytes_read(work) if work.start else values_read(work)
        path = before if work.start else ON_INLINE
        ranges = self._prices.ranges(work) if work.start else np.zeros(1)
        traffic = Traffic(held, ranges, np.zeros(work.grid.tiles))
        load = replace(_moved(work.grid.tiles, path, traffic), crops=0.0 if work.start else held)
        ends = GangEnds.of(load, self._platform).each(len(self._prices.grids))
        too_large = work.start and path == ON_INLINE and not fits_inline(held.sum())
        return replace(ends, reading_s=ends.reading_s + math.inf) if too_large else ends

    def _writing(self, names: tuple[str, ...], stop: int, grid: Grid, members: int, after: int) -> GangEnds | None:
        """Predict what a gang writes of some tensors on a grid, by a path; None where it cannot go that way."""
        key = names, stop, grid, members, after
        if key not in self._known_writing:
            self._known_writing[key] = self._writing_of(*key)
        return self._known_writing[key]

    def _writing_of(self, names: tuple[str, ...], stop: int, grid: Grid, members: int, after: int) -> GangEnds | None:
        shapes, written = [self._graph.shape(name) for name in names], np.zeros(members)
        for name, shape in zip(names, shapes, strict=True):
            pooled = self._graph.nodes[self._made[name]].kind == operators.TILE_POOL
            sizes = [1] * grid.tiles if pooled else [rect.area for rect in tile_rects(self._graph, name, grid)]
            written[: len(sizes)] += FLOAT_BYTES * shape.channels * np.array(sizes)
        if after == ON_INLINE and stop < len(self._graph.nodes) and not fits_inline(written.sum()):
            return None
        nothing = np.zeros(members)
        return GangEnds.of(_moved(members, after, Traffic(nothing, nothing, written)), self._platform)


def _moved(tasks: int, path: int, moved: Traffic) -> StageLoad:
    none = np.zeros(tasks)
    stored = moved if path == ON_CACHE else Traffic(none, none, none)
    return StageLoad(
        none,
        none,
        stored.bytes_read,
        stored.ranges,
        stored.bytes_written,
        moved.bytes_read if path == ON_INLINE else none,
        moved.bytes_written if path == ON_INLINE else none,
        objects=moved if path == ON_OBJECTS else None,
    )


def _stacked(ends: Sequence[GangEnds]) -> Floats:
    """Return the slower of reading and writing, the driver's seconds and the dollars, side by side, by end."""
    return np.array(
        [[end.reading_s + end.writing_s for end in ends], [end.carrying_s for end in ends], [end.usd for end in ends]]
    )


def _ends_of(edge: Edge) -> _Ends:
    return edge.start, edge.stop, edge.before, edge.after


def _merged(edges: Sequence[Edge]) -> Edge:
    """Return gangs of the same nodes, paths and grid behind them as one edge: each grid and memory is one choice."""
    seconds, usd = (
        np.concatenate(figures) for figures in zip(*((edge.seconds, edge.usd) for edge in edges), strict=True)
    )
    gangs = [edge.stage for edge in edges if isinstance(edge.stage, CandidateGang)]
    candidate = replace(
        gangs[0],
        sizes=tuple(size for gang in gangs for size in gang.sizes),
        memory_mb=tuple(memory for gang in gangs for memory in gang.memory_mb),
    )
    colds = [edge.cold_usd for edge in edges if edge.cold_usd is not None]
    cold_usd = np.concatenate(colds) if colds else None
    return replace(edges[0], seconds=seconds, usd=usd, stage=candidate, cold_usd=cold_usd)


def unbeaten(gangs: Sequence[Edge], rivals: Sequence[Edge]) -> Iterator[tuple[int, Edge]]:
    """Yield each gang, and its number, with the choices that no other beats in both seconds and dollars.

    Others are those to the same grid and those to one tile, of which every next stage reads in fewer ranges.
    """
    known: dict[_Ends, list[Edge]] = {}
    for edge in (*rivals, *gangs):
        known.setdefault(_ends_of(edge), []).append(edge)
    for edge in gangs:
        others = [other for other in known[_ends_of(edge)] if other is not edge and other.grid in (0, edge.grid)]
        several = [edge, *others]
        kept, seconds, _ = frontier(
            *(
                np.concatenate(figures).T
                for figures in ([chains.seconds for chains in several], [chains.usd for chains in several])
            )
        )
        rows = [row for row in np.unique(kept[np.isfinite(seconds)]) if row < len(edge.seconds)]
        gang = edge.stage
        if rows and isinstance(gang, CandidateGang):
            fewer = replace(
                gang, sizes=tuple(gang.sizes[row] for row in rows), memory_mb=tuple(gang.memory_mb[row] for row in rows)
            )
            cold_usd = None if edge.cold_usd is None else edge.cold_usd[rows]
            seconds, usd = edge.seconds[rows], edge.usd[rows]
            yield id(gang), replace(edge, seconds=seconds, usd=usd, stage=fewer, cold_usd=cold_usd)


def with_one_gang(edges: Iterable[Edge]) -> Iterator[Edge]:
    """Yield edges of which every chain has a gang: vertices count whether one lies before them."""
    for edge in edges:
        if isinstance(edge.stage, CandidateGang):
            yield replace(edge, stop=(1, edge.stop[1]))
            yield replace(edge, start=(1, edge.start[1]), stop=(1, edge.stop[1]))
        else:
            yield edge
            yield replace(edge, start=(1, edge.start[1]), stop=(1, edge.stop[1]))
