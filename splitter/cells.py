"""How one stage's tiles hand their outputs to the next stage's, in as few byte ranges as can be.

What a tile wrote is read by several next tiles, each of which needs a rectangle of it. Cells are the largest
rectangles that the same tiles read; written in a good order, what each reader needs is mostly one range:

      own   │ right
    ────────┼──────      order: own, right, diagonal, below
     below  │ diag.      right reads (right, diagonal), below reads (diagonal, below), own reads all
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise, permutations

from serfer.core.geometry import Rect, Span
from serfer.core.plan import Piece, Range

Cell = tuple[Rect, frozenset[int]]
Order = tuple[int, ...]
_EXHAUSTIVE = 6


def lay_out(outputs: Sequence[Rect], inputs: Sequence[Rect]) -> list[list[Cell]]:
    """Cut each tile's output into cells, in writing order; `inputs` are the next tiles' rectangles of the same map.

    A part that no tile reads is in no cell: it is never written.
    """
    return [_in_good_order(_cells(output, inputs)) for output in outputs]


def pieces_for(reader: int, channels: int, layout: Sequence[Sequence[Cell]]) -> tuple[Piece, ...]:
    """Return what tile `reader` reads of every tile before it."""
    pieces = []
    for source, cells in enumerate(layout):
        ranges: list[Range] = []
        offset, open_run = 0, False
        for rect, readers in cells:
            if reader in readers and open_run:
                ranges[-1] = Range(ranges[-1].offset, (*ranges[-1].cells, rect))
            elif reader in readers:
                ranges.append(Range(offset, (rect,)))
            open_run = reader in readers
            offset += channels * rect.area
        if ranges:
            pieces.append(Piece(source, tuple(ranges)))
    return tuple(pieces)


def _cells(output: Rect, inputs: Sequence[Rect]) -> list[Cell]:
    rows = _segments(output.rows, [rect.rows for rect in inputs])
    cols = _segments(output.cols, [rect.cols for rect in inputs])
    cells = []
    for row in rows:
        for col in cols:
            rect = Rect(row, col)
            readers = frozenset(index for index, wanted in enumerate(inputs) if wanted.contains(rect))
            if readers:
                cells.append((rect, readers))
    return cells


def _segments(span: Span, wanted: Iterable[Span]) -> list[Span]:
    """Cut `span` wherever one of `wanted` begins or ends."""
    marks = {span.start, span.stop}
    for other in wanted:
        marks.update(mark for mark in (other.start, other.stop) if span.start < mark < span.stop)
    return [Span(start, stop) for start, stop in pairwise(sorted(marks))]


def _in_good_order(cells: list[Cell]) -> list[Cell]:
    """Order cells so that their readers need few ranges: exactly for few cells, by local search for many."""
    cost = _range_counter(cells)
    numbers = tuple(range(len(cells)))
    if len(cells) <= _EXHAUSTIVE:
        best = min(permutations(numbers), key=cost)
    else:
        by_column = tuple(sorted(numbers, key=lambda index: (cells[index][0].cols, cells[index][0].rows)))
        best = min((_improve(start, cost) for start in (numbers, by_column, _ring(cells))), key=cost)
    return [cells[index] for index in best]


def _range_counter(cells: Sequence[Cell]) -> Callable[[Order], int]:
    readers = [who for _, who in cells]

    def count(order: Order) -> int:
        """Count ranges over all readers: one begins wherever a reader's cell follows one that it does not read."""
        return len(readers[order[0]]) + sum(len(readers[after] - readers[before]) for before, after in pairwise(order))

    return count if cells else lambda _: 0


def _ring(cells: Sequence[Cell]) -> Order:
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


def _improve(order: Order, cost: Callable[[Order], int]) -> Order:
    """Move one cell at a time to where it saves ranges, until no move does."""
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
