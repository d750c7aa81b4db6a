"""`serfer bench results`: tables of pages are written from records, and records by the commands that they name."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from serfer.cli.main import app
from serfer.cli.shared.terminal import err, out
from serfer.core.errors import InputError, SerferError, UsageError
from serfer_bench.core.stamp import this_machine
from serfer_bench.core.tables import captured
from serfer_bench.core.traces import SKIPPED
from serfer_bench.records.pages import chosen, read_pages
from serfer_bench.records.record import FOLDER, Figures, Record, commit_of, differences, digest, read_records


def steps(record: Record) -> list[list[str]]:
    commands = [shlex.split(command) for command in record.command.split(" && ")]
    if any(words[:1] != ["serfer"] for words in commands):
        raise InputError(f"a record's commands are serfer's, joined by &&, not {record.command!r:.80}")
    return [words[1:] for words in commands]


def run_again(record: Record) -> tuple[Figures, ...] | None:
    """Run a record's commands in this process, and return the tables of the last; raises what they raise.

    Returns None where the last one skipped figures that the record has, for want of a trace, and says so: by a note,
    or, without any table, by itself.
    """
    for words in steps(record):
        with captured() as found:
            code = typer.main.get_command(app).main(words, prog_name="serfer", standalone_mode=False)
        if code:
            raise SerferError(f"'serfer {shlex.join(words)}' ended with {code}")
    notes = [note for results in found for note in results.notes if note.startswith(SKIPPED)]
    for note in notes:
        err.print(note, soft_wrap=True)
    tables = tuple(
        Figures(tuple(one.head), tuple(tuple(row) for row in one.body)) for results in found for one in results.tables
    )
    if not found or (notes and [one.shape for one in tables] != [one.shape for one in record.tables]):
        return None
    if not tables:
        raise SerferError(f"{record.command!r} gave no tables")
    return tables


def recorded(record: Record, root: Path) -> Record | None:
    missing = [name for name in record.files if not (root / name).is_file()]
    if missing:
        raise InputError(f"files of a record are not there: {', '.join(missing)}")
    commit, files = commit_of(root), {name: digest(root / name) for name in record.files}  # before: runs take hours
    began = os.times()
    tables = run_again(record)
    ended = os.times()
    if tables is None:
        return None
    return replace(
        record,
        tables=tables,
        elapsed_s=round(ended.elapsed - began.elapsed, 1),
        processor_s=round(sum(ended[:4]) - sum(began[:4]), 1),  # of this process and of those that it waited for
        files=files,
        date=datetime.now(UTC).date().isoformat(),
        commit=commit,
        machine=str(this_machine()),
    )


def stale_lines(records: Mapping[str, Record], root: Path) -> Iterator[str]:
    for name, record in records.items():
        again = f"serfer bench results --run {name}" if record.cheap or not record.tables else record.command
        if not record.tables:
            yield f"not run yet: {name}: {again}"
        elif changed := record.stale(root):
            yield f"stale: {name}: {', '.join(changed)} changed since, or not recorded; again: {again}"


def check_pages(records: Mapping[str, Record], root: Path, page: str | None) -> None:
    pages = read_pages(root)
    unused = records.keys() - {name for one in pages for name in one.records}
    if unused:
        raise SerferError(f"no page shows {', '.join(sorted(unused))}")
    differing = [str(one.path) for one in (chosen(pages, page) if page else pages) if one.differs(records, root)]
    differing += [file for record in records.values() for file in record.undrawn(root)]
    if differing:
        raise SerferError(f"{', '.join(differing)}: not what the records say: run serfer bench results")


def write_pages(records: Mapping[str, Record], root: Path, page: str | None) -> None:
    pages = read_pages(root)
    texts = [(one, one.rendered(records, root)) for one in (chosen(pages, page) if page else pages)]
    for one, text in texts:
        if one.write(text, root):
            err.print(f"wrote {one.path}", soft_wrap=True)
    for file in (file for record in records.values() for file in record.draw(root)):
        err.print(f"drew {file}", soft_wrap=True)


def _named(records: Mapping[str, Record], names: Sequence[str]) -> dict[str, Record]:
    if unknown := [name for name in names if name not in records]:
        raise UsageError(f"there is no record {unknown[0]!r:.80}: there are {', '.join(records)}")
    return {name: records[name] for name in names}


def command(
    page: Annotated[str | None, typer.Argument(help="A page by its name, as mark.md; all by default.")] = None,
    run: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Run a record's command first, and record what it gives; may be repeated."),
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Write nothing: exit with 1 where pages, or with --run figures, differ."),
    ] = False,
    checkout: Annotated[
        Path, typer.Option(metavar="DIR", help="The checkout with docs/results/data and the pages.")
    ] = Path(),
) -> None:
    """Write the tables of pages from records (docs/results/data), or run their commands again.

    Stale records, of the page or those that were run where such are named, are listed: one of the files that set the
    figures has changed since.
    """
    records = read_records(checkout)
    asked = set(records)
    if page:
        asked = {name for one in chosen(read_pages(checkout), page) for name in one.records}
    for name, record in _named(records, run or ()).items():
        now = recorded(record, checkout)
        if now is None:
            out.print(f"{name}: skipped: a trace that it is of is not here")
        elif not check:
            now.write(checkout / FOLDER / f"{name}.json")
            records[name] = now
        elif changes := [*differences(record.tables, now.tables)]:
            raise SerferError(f"{name}: {len(changes)} figures differ: {'; '.join(changes[:5])}")
        else:
            out.print(f"{name}: equal")
    if check:
        check_pages(records, checkout, page)
    else:
        write_pages(records, checkout, page)
    listed = {name: record for name, record in records.items() if name in (run or asked)}
    for line in stale_lines(listed, checkout):
        out.print(line, soft_wrap=True)
