"""Borders: what the tiles of a gang send each other, and what they read from where. It follows from the plan alone.

member 0                          member 1
stage 4  tile 0 ── rows 26, 27 ──▶ inbox 1    inbox 0 ◀── rows 28, 29 ── tile 1
stage 5  tile 0 reads its own rows from memory, rows 28, 29 from its inbox
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property

from serfer.core.plan.model import Cell, Gang, Piece, Plan, stored_bytes

Source = tuple[int, int]
"""A stage and one of its tiles."""
BORDER_HEADER = struct.Struct("<II")
"""What a border begins with: its source."""


@dataclass(frozen=True)
class Border:
    """The cells of a tile that member `reader` of its gang reads: their numbers in the tile's object, ascending."""

    reader: int
    cells: tuple[int, ...]


@dataclass(frozen=True)
class Member:
    """One tile number of a gang: what it sends after each stage, and what it waits for before."""

    plan: Plan
    gang: Gang
    tile: int

    @property
    def stages(self) -> list[int]:
        return [stage for stage in self.gang.stages if self.tile < len(self.plan.stages[stage].tiles)]

    @cached_property
    def before(self) -> list[Piece]:
        """The pieces that it reads of stages before the gang, in the order of its stages."""
        return [piece for stage in self.stages for piece in self._pieces(stage) if piece.stage < self.gang.start]

    @cached_property
    def awaited(self) -> dict[int, frozenset[Source]]:
        return {
            stage: frozenset(
                (piece.stage, piece.tile)
                for piece in self._pieces(stage)
                if piece.stage >= self.gang.start and piece.tile != self.tile
            )
            for stage in self.stages
        }

    @cached_property
    def sent(self) -> dict[int, tuple[Border, ...]]:
        """The borders that it sends after each of its stages, by reader."""
        return {stage: borders(self.plan, self.gang, (stage, self.tile)) for stage in self.stages}

    @cached_property
    def received(self) -> dict[Source, tuple[int, ...]]:
        return {
            source: border.cells
            for source in sorted({source for sources in self.awaited.values() for source in sources})
            for border in borders(self.plan, self.gang, source)
            if border.reader == self.tile
        }

    @cached_property
    def last_use(self) -> dict[int, int]:
        """The last of its stages that reads what a stage of the gang wrote, its own tile or another's."""
        return {piece.stage: stage for stage in self.stages for piece in self._pieces(stage)}

    @cached_property
    def outside(self) -> frozenset[int]:
        return read_outside(self.plan, self.gang)

    def _pieces(self, stage: int) -> tuple[Piece, ...]:
        return self.plan.stages[stage].tiles[self.tile].pieces


def members(plan: Plan, gang: Gang) -> int:
    return plan.stages[gang.start].grid.tiles


def borders(plan: Plan, gang: Gang, source: Source) -> tuple[Border, ...]:
    """Return what the other members read, in any stage of the gang, of what tile `source` wrote."""
    stage, tile = source
    cells: dict[int, set[int]] = {}
    for later in range(stage + 1, gang.stop):
        for reader, other in enumerate(plan.stages[later].tiles):
            for piece in other.pieces:
                if (piece.stage, piece.tile) == source and reader != tile:
                    cells.setdefault(reader, set()).update(piece.cell_numbers)
    return tuple(Border(reader, tuple(sorted(numbers))) for reader, numbers in sorted(cells.items()) if numbers)


def cell_bytes(plan: Plan, source: Source, number: int, batch: int) -> int:
    stage = plan.stages[source[0]]
    cell = cell_of(plan, source, number)
    return stored_bytes(stage.outputs[cell.output].channels * cell.rect.area, 1, batch)


def cell_of(plan: Plan, source: Source, number: int) -> Cell:
    return plan.stages[source[0]].tiles[source[1]].cells[number]


def read_outside(plan: Plan, gang: Gang) -> frozenset[int]:
    """Return the stages of a gang whose outputs are read after it, or are the answer."""
    later = {piece.stage for stage in plan.stages[gang.stop :] for tile in stage.tiles for piece in tile.pieces}
    answer = {len(plan.stages) - 1} if gang.stop == len(plan.stages) else set()
    return frozenset(stage for stage in gang.stages if stage in later | answer)
