"""Results of benchmarks: tables and notes for people, records for programs, each with the stamp of its origin."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from serfer.core.dataclass_codec import unstructure
from serfer.core.errors import InputError, QueryError, SerferError
from serfer.files import write_whole
from serfer_bench.core.stamp import Stamp, make_stamp
from serfer_bench.core.tables import Results, Row, Table, publish, table_of

RESULT_FILE, ROWS_FILE = "result.json", "rows.csv"


def publish_rows(
    rows: Sequence[Row],
    directory: Path | None,
    *,
    as_json: bool,
    table: Table | None = None,
    notes: Sequence[str] = (),
) -> Stamp:
    stamp = stamp_now()
    if directory is not None:
        check_directory(directory)
        _write(directory, rows, stamp)
    records = ({**asdict(row), "stamp": unstructure(stamp)} for row in rows)
    publish(Results(records, [table or table_of(rows)], [*notes, *stamp.lines]), as_json=as_json)
    return stamp


def stamp_now() -> Stamp:
    return make_stamp(sys.argv[1:], datetime.now(UTC))


def check_directory(path: Path) -> None:
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
    if limit is not None and value > limit:
        raise SerferError(f"{what}, more than {limit:g}")


def require_answers(failed: int, queries: int) -> None:
    """Raise QueryError where queries had no right answer, so that scripts notice."""
    if failed:
        raise QueryError(f"{failed:,} of {queries:,} queries had no right answer")
