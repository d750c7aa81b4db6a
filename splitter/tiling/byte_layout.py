"""The byte layout of tiles' outputs: the readers of the next stages need as few byte ranges as possible.

What a tile wrote is read by several next tiles, each of which needs a rectangle of it. Cells are the largest
rectangles that the same tiles read; written in a good order, what each reader needs is mostly one range:

      own   │ right
    ────────┼──────      order: own, right, diagonal, below
     below  │ diag.      right reads (right, diagonal), below reads (diagonal, below), own reads all
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, permutations

from serfer.core.geometry import Rect, Span
from serfer.core.plan import Cell, Piece, Range, Shape

Wanted = Mapping[int, Rect]
"""What a tile reads of a stage: for each of the stage's outputs that it reads, a rectangle."""
_Part = tuple[Rect, frozenset[int]]
_Laid = tuple[Cell, frozenset[int]]
Layout = list[list[_Laid]]
_Order = tuple[int, ...]
_EXHAUSTIVE = 6


def lay_out(outputs: Sequence[Sequence[Rect]], readers: Sequence[Wanted]) -> Layout:
    """Cut what each tile writes into cells, in writing order, each with those of `readers` that read it.

    `outputs` are each tile's rectangles, one for each output of the stage. A part that no task reads is in no cell: it
    is never written.
    """
    return [
        [
            (Cell(number, part), who)
            for number, rect in enumerate(rects)
            for part, who in _in_good_order(_cells(rect, number, readers))
        ]
        for rects in outputs
    ]


def pieces_for(reader: int, stage: int, shapes: Sequence[Shape], layout: Layout) -> list[Piece]:
    """Return the pieces that `reader` reads of every tile of a stage whose outputs have these shapes."""
    pieces = []
    for tile, cells in enumerate(layout):
        ranges: list[Range] = []
        offset, open_run = 0, False
        for number, (cell, readers) in enumerate(cells):
            size = shapes[cell.output].channels * cell.rect.area
            if reader in readers and open_run:
                last = ranges[-1]
                ranges[-1] = replace(last, elements=last.elements + size, cells=(*last.cells, cell))
            elif reader in readers:
                ranges.append(Range(offset, size, number, (cell,)))
            open_run = reader in readers
            offset += size
        if ranges:
            pieces.append(Piece(stage, tile, tuple(ranges)))
    return pieces


def _cells(output: Rect, number: int, readers: Sequence[Wanted]) -> list[_Part]:
    wanted = {reader: wants[number] for reader, wants in enumerate(readers) if number in wants}
    rows = _segments(output.rows, [rect.rows for rect in wanted.values()])
    cols = _segments(output.cols, [rect.cols for rect in wanted.values()])
    cells = []
    for row in rows:
        for col in cols:
            part = Rect(row, col)
            who = frozenset(reader for reader, rect in wanted.items() if rect.contains(part))
            if who:
                cells.append((part, who))
    return cells


def _segments(span: Span, wanted: Iterable[Span]) -> list[Span]:
    marks = {span.start, span.stop}
    for other in wanted:
        marks.update(mark for mark in (other.start, other.stop) if span.start < mark < span.stop)
    return [Span(start, stop) for start, stop in pairwise(sorted(marks))]


def _in_good_order(cells: list[_Part]) -> list[_Part]:
    """Order cells so that their readers need few ranges: exactly for few cells, by local search for many."""
    cost = _range_counter(cells)
    numbers = tuple(range(len(cells)))
    if len(cells) <= _EXHAUSTIVE:
        best = min(permutations(numbers), key=cost)
    else:
        by_column = tuple(sorted(numbers, key=lambda index: (cells[index][0].cols, cells[index][0].rows)))
        best = min((_improve(start, cost) for start in (numbers, by_column, _ring(cells))), key=cost)
    return [cells[index] for index in best]


def _range_counter(cells: Sequence[_Part]) -> Callable[[_Order], int]:
    readers = [who for _, who in cells]

    def count(order: _Order) -> int:
        """Count ranges over all readers: one begins wherever a reader's cell follows one that it does not read."""
        return len(readers[order[0]]) + sum(len(readers[after] - readers[before]) for before, after in pairwise(order))

    return count if cells else lambda _: 0


def _ring(cells: Sequence[_Part]) -> _Order:
    """Walk the outline clockwise from the top left corner, then the inside: neighbours share a side's reader."""
    rows = sorted({rect.rows for rect, _ in cells})
    cols = sorted({rect.cols for rect, _ in cells})

    def place(index: int) -> tuple[int, int, int]:
        row, col = rows.index(cells[index][0].rows), cols.index(cells[index][0].cols)
        if row == 0:
            return (0, 0, col)
        if col == len(cols) - 1:
            return (0, 1, row)
        if row == len(rows) - 1:
            return (0, 2, -col)
        return (0, 3, -row) if col == 0 else (1, row, col)

    return tuple(sorted(range(len(cells)), key=place))


def _improve(order: _Order, cost: Callable[[_Order], int]) -> _Order:
    current, score = order, cost(order)
    improved = True
    while improved:
        improved = False
        for taken in range(len(order)):
            rest = current[:taken] + current[taken + 1 :]
            options = ((*rest[:place], current[taken], *rest[place:]) for place in range(len(order)))
            best = min(options, key=cost)
            if cost(best) < score:
                current, score, improved = best, cost(best), True
    return current
