"""Results of benchmarks: tables and notes for people, records for programs, each with the stamp of its origin."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Protocol

import typer
from rich.console import Console
from rich.markup import escape

from serfer.cli.shared.display import columns
from serfer.cli.shared.options import print_json
from serfer.cli.shared.terminal import out
from serfer.core.dataclass_codec import unstructure
from serfer.core.errors import InputError, SerferError
from serfer.files import write_whole
from serfer_bench.core.stamp import Stamp, make_stamp

RESULT_FILE, ROWS_FILE = "result.json", "rows.csv"
_UNLIMITED = 100_000  # columns


class Row(Protocol):
    """A frozen dataclass with a measurement."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def shown(self) -> dict[str, str]:
        """Its cells by column, for people."""
        ...


@dataclass(frozen=True)
class Table:
    """The cells of a table."""

    head: Sequence[str]
    body: Sequence[Sequence[str]]

    def text(self, width: int = _UNLIMITED) -> str:
        """Align the cells for a terminal of so many columns."""
        texts = [number for number in range(len(self.head)) if not all(_is_number(row[number]) for row in self.body)]
        grid = columns(*map(escape, self.head), left=texts)
        for row in self.body:
            grid.add_row(*map(escape, row))
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


def publish(results: Results, *, as_json: bool, as_markdown: bool = False) -> None:
    """Print results as text, as JSON lines or in Markdown."""
    if as_json:
        for record in results.records:
            print_json(record)
    elif as_markdown:
        typer.echo(results.markdown())
    else:
        typer.echo(results.text(out.width if out.is_terminal else _UNLIMITED))


def publish_rows(
    rows: Sequence[Row],
    directory: Path | None,
    *,
    as_json: bool,
    table: Table | None = None,
    notes: Sequence[str] = (),
) -> Stamp:
    """Print rows, or a table of them, with notes and a stamp, which is returned; write rows and stamp into a directory.

    Raises InputError where that cannot be.
    """
    stamp = stamp_now()
    if directory is not None:
        check_directory(directory)
        _write(directory, rows, stamp)
    records = ({**asdict(row), "stamp": unstructure(stamp)} for row in rows)
    publish(Results(records, [table or table_of(rows)], [*notes, *stamp.lines]), as_json=as_json)
    return stamp


def stamp_now() -> Stamp:
    """Stamp what this command line measures."""
    return make_stamp(sys.argv[1:], datetime.now(UTC))


def check_directory(path: Path) -> None:
    """Make the directory for results; raises InputError where that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {str(path)!r} is not a directory, nor can it be made: {error.strerror}") from error


def _write(directory: Path, rows: Sequence[Row], stamp: Stamp) -> None:
    values = [asdict(row) for row in rows]
    text = json.dumps({"stamp": unstructure(stamp), "rows": values}, indent=1) + "\n"
    write_whole(directory / RESULT_FILE, text.encode())
    lines = io.StringIO()
    table = csv.DictWriter(lines, [*values[0]], lineterminator="\n")
    table.writeheader()
    table.writerows(values)
    write_whole(directory / ROWS_FILE, lines.getvalue().encode())


def require_at_most(value: float, limit: float | None, what: str) -> None:
    """Raise SerferError where a value exceeds the limit of --at-most."""
    if limit is not None and value > limit:
        raise SerferError(f"{what}, more than {limit:g}")
