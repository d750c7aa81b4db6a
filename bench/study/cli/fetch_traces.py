"""`serfer study fetch-traces`: recorded loads that pages of results use, fetched and converted here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from serfer.cli.shared.options import JsonOption
from serfer.cli.shared.terminal import complain, err
from serfer.core.errors import UnavailableError, UsageError
from serfer_bench.core.tables import Results, Table, publish
from serfer_bench.study.loads.catalogue import PublicTrace
from serfer_bench.study.loads.fetching import HOST, FetchedTrace, chosen, fetch


def fetch_traces(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="All by default.")] = None,
    directory: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Where the CSV files go; without it they are listed alone."),
    ] = None,
    given: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE or DIR",
            help="A source that was downloaded already, a clone of its repository, or a folder of clones.",
        ),
    ] = None,
    mirror: Annotated[str, typer.Option(metavar="URL", help="In place of GitHub's host for raw files.")] = HOST,
    as_json: JsonOption = False,
) -> None:
    """Fetch recorded loads that pages of results use, and convert them for serfer study simulate.

    Nothing of them comes with SerFer; each has its owner's licence, which is listed. What is there already is kept.
    """
    traces = chosen(names or ())
    if not mirror.startswith(("https://", "http://")):
        raise UsageError(f"--mirror is an address that begins with https:// or http://, not {mirror[:80]!r}")
    if directory is None:
        if given is not None:
            raise UsageError("--from converts a source: say where to, with --out DIR")
        publish(listed(traces, mirror), as_json=as_json)
        return
    found = [*fetch(traces, directory, given, mirror, lambda line: err.print(line, soft_wrap=True))]
    publish(results(found, traces, directory), as_json=as_json)
    missing = [one for one in found if one.state == "missing"]
    for one in missing:
        complain(f"{one.name}: {one.why}")
    if missing:
        raise UnavailableError(f"{len(missing)} of {len(found)} traces are missing: {_names(missing)}")


def listed(traces: Mapping[str, PublicTrace], mirror: str) -> Results:
    records = ({"name": name, **asdict(one), "address": one.address(mirror)} for name, one in traces.items())
    table = Table(["trace", "what", "licence"], [[name, one.about, one.licence] for name, one in traces.items()])
    return Results(records, [table], [*dict.fromkeys(one.address(mirror) for one in traces.values())])


def results(found: Sequence[FetchedTrace], traces: Mapping[str, PublicTrace], directory: Path) -> Results:
    records = ({**asdict(one), "licence": traces[one.name].licence} for one in found)
    body = [[one.name, one.state, traces[one.name].licence] for one in found]
    notes = [f"serfer study simulate {directory}/NAME.csv; serfer study policies --traces {directory}"]
    return Results(records, [Table(["trace", "file", "licence"], body)], notes)


def _names(found: Sequence[FetchedTrace]) -> str:
    return ", ".join(one.name for one in found)
