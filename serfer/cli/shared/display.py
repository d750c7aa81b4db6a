"""Text, sizes and tables on a terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.align import Align
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from serfer.cli.shared.terminal import out
from serfer.core.units import MIB

_GAP = 2  # spaces between columns
_LEAST_TEXT = 24  # columns of a terminal that a column of text keeps when it has to wrap


def plain(text: str) -> str:
    """Return text with its control characters escaped: a terminal would act on them."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def styled(text: str, style: str = "bold") -> Text:
    return Text(plain(text), style)


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
        columns = [[Text(plain(cell)) for cell in column] for column in zip(self.heads, *self.rows, strict=True)]
        natural = [max(text.cell_len for text in column) for column in columns]
        width = options.max_width if console.is_terminal else _width(natural)
        least = [min(wanted, self._least(number, columns[number])) for number, wanted in enumerate(natural)]
        for number in self.left:  # a word that no line holds is folded
            least[number] = max(min(least[number], width - (least[0] + _GAP if number else 0)), 1)
        parts = [[0]]
        for number in range(1, len(columns)):
            if len(parts[-1]) > 1 and _width([least[column] for column in (*parts[-1], number)]) > width:
                parts.append([0])
            parts[-1].append(number)
        for part in parts:
            if part is not parts[0]:
                yield Text()
            grid = RichTable(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
            free = max(width - _width([least[number] for number in part]), 0)
            for number in part:
                more = min(natural[number] - least[number], free)
                free -= more
                side: Literal["left", "right"] = "left" if number in self.left else "right"
                head = Align(columns[number][0], side, vertical="bottom")
                grid.add_column(head, justify=side, width=least[number] + more, overflow="fold")
            for row in zip(*(columns[number][1:] for number in part), strict=True):
                grid.add_row(*row)
            yield from console.render(grid, options.update(max_width=max(_width(natural), 1)))

    def _least(self, number: int, column: Sequence[Text]) -> int:
        head, *cells = (max(map(cell_len, text.plain.split()), default=0) for text in column)
        if number in self.left:
            return max(_LEAST_TEXT, head, *cells)
        return max(head, *(text.cell_len for text in column[1:]), 0)


def print_table(heads: Sequence[str], rows: Iterable[Sequence[str]], left: Collection[int] = (0,)) -> None:
    """Print a table whose rows may lack their last cells; its columns `left` are text."""
    out.print(Table(heads, [[*row, *[""] * (len(heads) - len(row))] for row in rows], left))


def _width(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def byte_size(count: float) -> str:
    return f"{count / MIB:.1f} MB" if count >= MIB else f"{count / 1024:.1f} kB"
