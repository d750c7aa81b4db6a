"""Tables of measurements: as text, as JSON and CSV, each with the stamp of where it comes from."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import Field, asdict
from pathlib import Path
from typing import Any, ClassVar, Protocol

import typer

from bench.core.stamp import Stamp
from bench.load.results import RESULT_FILE, check_directory
from bench.planner.planner import aligned
from serfer.cli.options import print_json
from serfer.core.structure import unstructure
from serfer.files import write_whole

ROWS_FILE = "rows.csv"


class Row(Protocol):
    """A frozen dataclass with a measurement."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def shown(self) -> dict[str, str]:
        """Its columns as people read them."""
        ...


def stamped(row: Row, stamp: Stamp) -> dict[str, Any]:
    """Return a row's plain values, with the stamp, for JSON."""
    return {**asdict(row), "stamp": unstructure(stamp)}


def as_text(rows: Sequence[Row], stamp: Stamp) -> str:
    """Write rows as a table, with the stamp below."""
    head = [*rows[0].shown]
    return "\n".join([*aligned(head, [[*row.shown.values()] for row in rows]), *stamp.lines])


def write_rows(out: Path, rows: Sequence[Row], stamp: Stamp) -> None:
    """Write result.json and rows.csv into a directory; raises InputError where that cannot be."""
    check_directory(out)
    value = {"stamp": unstructure(stamp), "rows": [asdict(row) for row in rows]}
    write_whole(out / RESULT_FILE, (json.dumps(value, indent=1) + "\n").encode())
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*asdict(rows[0])])
    table.writerows([*asdict(row).values()] for row in rows)
    write_whole(out / ROWS_FILE, text.getvalue().encode())


def report(rows: Sequence[Row], stamp: Stamp, directory: Path | None, *, as_json: bool) -> None:
    """Print rows with their stamp, as a table or as JSON lines, and write them into a directory if one is given."""
    if directory is not None:
        write_rows(directory, rows, stamp)
    if as_json:
        for row in rows:
            print_json(stamped(row, stamp))
    else:
        typer.echo(as_text(rows, stamp))
