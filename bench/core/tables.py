"""Tables that a command prints for people, beside records for programs."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import Field, dataclass
from typing import Any, ClassVar, Protocol, get_type_hints

import typer
from rich.console import Console

from serfer.cli.shared.display import Table as AlignedTable
from serfer.cli.shared.options import print_json
from serfer.cli.shared.terminal import out

_UNLIMITED = 100_000  # columns


class Row(Protocol):
    """A frozen dataclass with a measurement."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def shown(self) -> dict[str, str]:
        """Its cells by column, for people."""
        ...


@dataclass(frozen=True)
class Column:
    """Where an annotation shows a field: the head of its column, and how its values, so many `times`, are written."""

    head: str
    form: str | Callable[[Any], str] = ""
    times: float | None = None
    empty: str = ""  # a cell of None

    def cell(self, value: Any) -> str:  # noqa: ANN401 - of whatever type the field has
        if value is None:
            return self.empty
        value = value if self.times is None else self.times * value
        return self.form(value) if callable(self.form) else format(value, self.form)


class Measurement:
    """A row whose cells are the fields that are annotated with columns, in their order."""

    @property
    def shown(self) -> dict[str, str]:
        hints = get_type_hints(type(self), include_extras=True)
        marks = ((name, mark) for name, hint in hints.items() for mark in getattr(hint, "__metadata__", ()))
        return {mark.head: mark.cell(getattr(self, name)) for name, mark in marks if isinstance(mark, Column)}


@dataclass(frozen=True)
class Table:
    """The cells of a table."""

    head: Sequence[str]
    body: Sequence[Sequence[str]]

    def text(self, width: int = _UNLIMITED) -> str:
        """Align the cells for a terminal of so many columns."""
        texts = [number for number in range(len(self.head)) if not all(_is_number(row[number]) for row in self.body)]
        grid = AlignedTable(self.head, self.body, texts)
        console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
        with console.capture() as capture:
            console.print(grid)
        return "\n".join(line.rstrip() for line in capture.get().splitlines())

    def markdown(self) -> str:
        """Write the table in Markdown."""
        return "\n".join(f"| {' | '.join(row)} |" for row in (self.head, ["---"] * len(self.head), *self.body))


def _is_number(cell: str) -> bool:
    return cell in ("", "-", "none") or re.fullmatch(r"[+\-$x]?[\d,]+(\.\d+)?[%x*]?", cell) is not None


def table_of(rows: Sequence[Row]) -> Table:
    """Return the table that rows show."""
    return Table([*rows[0].shown], [[*row.shown.values()] for row in rows])


@dataclass(frozen=True)
class Results:
    """One JSON object for each of `records`; `tables` and `notes` say the same for people."""

    records: Iterable[Mapping[str, Any]]
    tables: Sequence[Table]
    notes: Sequence[str] = ()

    def text(self, width: int = _UNLIMITED) -> str:
        """Write tables and notes for a terminal of so many columns."""
        return "\n\n".join([*(table.text(width) for table in self.tables), "\n".join(self.notes)]).rstrip()

    def markdown(self) -> str:
        """Write tables, and notes as a list, in Markdown."""
        notes = "\n".join(f"- {note.strip()}" for note in self.notes)
        return "\n\n".join([*(table.markdown() for table in self.tables), notes]).rstrip()


_captured: ContextVar[list[Results] | None] = ContextVar("captured", default=None)


@contextmanager
def captured() -> Iterator[list[Results]]:
    """Collect what commands publish meanwhile, in place of printing it."""
    found: list[Results] = []
    token = _captured.set(found)
    try:
        yield found
    finally:
        _captured.reset(token)


def publish(results: Results, *, as_json: bool, as_markdown: bool = False) -> None:
    """Print results as text, as JSON lines or in Markdown."""
    if (found := _captured.get()) is not None:
        found.append(results)
    elif as_json:
        for record in results.records:
            print_json(record)
    elif as_markdown:
        typer.echo(results.markdown())
    else:
        typer.echo(results.text(out.width if out.is_terminal else _UNLIMITED))
