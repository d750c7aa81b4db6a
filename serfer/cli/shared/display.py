"""Text, sizes and tables on a terminal."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from serfer.core.units import MIB


def plain(text: str) -> str:
    """Return text that rich prints as it is, with control characters escaped: a terminal would act on them."""
    return escape("".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text))


def columns(*names: str) -> Table:
    """Return a table whose first column is text and whose others are numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number, name in enumerate(names):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    return table


def counted(number: int, what: str) -> str:
    """Return a number of things in words: 1 task, 2 tasks."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def byte_size(count: float) -> str:
    """Return a number of bytes as a reader wants it."""
    return f"{count / MIB:.1f} MB" if count >= MIB else f"{count / 1024:.1f} kB"
