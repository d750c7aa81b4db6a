"""Text, sizes and tables on a terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from rich.align import Align
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from serfer.cli.shared.terminal import out
from serfer.core.units import MIB

_GAP = 2  # spaces between columns
_LEAST_TEXT = 24  # columns of a terminal that a column of text keeps when it has to wrap


def plain(text: str) -> str:
    """Return text that rich prints as it is, with control characters escaped: a terminal would act on them."""
    return escape(_visible(text))


def _visible(text: str) -> str:
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


@dataclass(frozen=True)
class Table:
    """A table that never cuts a cell, whatever the terminal's width.

    It has one line a row where that fits, and in a file. On a narrower terminal its heads wrap, then long texts at
    their spaces; what still does not fit goes below, each part with the first column again:

        policy       cost $          policy       cost $   ratio
        serverless   0.1200    or    serverless   0.1200   1.000
                                     policy       p99 ms
                                     serverless       79
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Collection[int] = (0,)
    """The numbers of the columns that are text."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lay the table out for a terminal's width, or for a file."""
        natural = [max(text.cell_len for text in column) for column in self._columns]
        parts = [([*range(len(natural))], natural)]
        if console.is_terminal and _width(natural) > options.max_width:
            parts = self._parts(natural, options.max_width)
        for number, (chosen, widths) in enumerate(parts):
            if number:
                yield Text()
            yield from console.render(self._grid(chosen, widths), options.update(max_width=max(_width(widths), 1)))

    @cached_property
    def _columns(self) -> list[tuple[Text, ...]]:
        """The head and the cells of each column."""
        return [*zip(*([Text(_visible(cell)) for cell in row] for row in (self.heads, *self.rows)), strict=True)]

    def _parts(self, natural: Sequence[int], width: int) -> list[tuple[list[int], list[int]]]:
        least = [min(wanted, self._least(column)) for column, wanted in enumerate(natural)]
        for column in self.left:  # a word that no line holds is folded
            before = least[0] + _GAP if column else 0
            least[column] = max(min(least[column], width - before), 1)
        parts = [[0]]
        for column in range(1, len(least)):
            if len(parts[-1]) > 1 and _width([least[number] for number in (*parts[-1], column)]) > width:
                parts.append([0])
            parts[-1].append(column)
        return [(part, _spread([least[i] for i in part], [natural[i] for i in part], width)) for part in parts]

    def _least(self, column: int) -> int:
        head, *cells = self._columns[column]
        if column in self.left:
            return max(_LEAST_TEXT, *map(_longest_word, (head, *cells)))
        return max(_longest_word(head), *(cell.cell_len for cell in cells), 0)

    def _grid(self, chosen: Sequence[int], widths: Sequence[int]) -> RichTable:
        grid = RichTable(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
        for column, width in zip(chosen, widths, strict=True):
            side: Literal["left", "right"] = "left" if column in self.left else "right"
            head = Align(self._columns[column][0], side, vertical="bottom")
            grid.add_column(head, justify=side, width=width, overflow="fold")
        for row in zip(*(self._columns[column][1:] for column in chosen), strict=True):
            grid.add_row(*row)
        return grid


def print_table(heads: Sequence[str], rows: Iterable[Sequence[str]], left: Collection[int] = (0,)) -> None:
    """Print a table whose rows may lack their last cells; its columns `left` are text."""
    out.print(Table(heads, [[*row, *[""] * (len(heads) - len(row))] for row in rows], left))


def _longest_word(text: Text) -> int:
    return max((Text(word).cell_len for word in text.plain.split()), default=0)


def _width(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _spread(least: Sequence[int], natural: Sequence[int], width: int) -> list[int]:
    widths = [*least]
    while _width(widths) < width and widths != [*natural]:
        column = min(
            (number for number in range(len(widths)) if widths[number] < natural[number]), key=widths.__getitem__
        )
        widths[column] += 1
    return widths


def counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def byte_size(count: float) -> str:
    return f"{count / MIB:.1f} MB" if count >= MIB else f"{count / 1024:.1f} kB"
