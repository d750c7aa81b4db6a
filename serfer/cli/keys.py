"""`serfer keys`: make, remove and list API keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from serfer.api.auth.keys import Scope, add_key, read_keys, remove_key
from serfer.cli.shared.terminal import err, out
from serfer.core.errors import UsageError
from serfer.settings import load_settings

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help="API keys of the service.")
_DIGITS = 9

_FileOption = Annotated[Path | None, typer.Option("--file", help="The file of keys. [SERFER_KEYS_FILE]")]
_Name = Annotated[str, typer.Argument(help="Whose key it is: letters, digits, '.', '_' and '-'.")]


@app.command()
def add(
    name: _Name,
    file: _FileOption = None,
    per_minute: Annotated[int | None, typer.Option(min=1, help="Requests a minute, in each driver.")] = None,
    burst: Annotated[int | None, typer.Option(min=1, help="Requests at once; by default a minute's.")] = None,
    scope: Annotated[
        list[Scope] | None,
        typer.Option("--scope", help="What it may do, several times: classify (by default, alone), or more."),
    ] = None,
    app_: Annotated[
        list[str] | None,
        typer.Option(
            "--app",
            metavar="NAME[=N]",
            help="An application that it is for alone, with at most N requests a minute; several times for more.",
        ),
    ] = None,
) -> None:
    """Make a key and print it: this once, for the file keeps only its digest."""
    if burst is not None and per_minute is None:
        raise UsageError("--burst says more about --per-minute: give both")
    applications = dict(map(_application, app_ or ()))
    key = add_key(_file(file), name, per_minute, burst=burst, scopes=scope or (), applications=applications)
    print(key)  # noqa: T201 - it is what the command is for; a console would break the line
    err.print("Keep it: it cannot be shown again. Drivers that run accept it within seconds.", soft_wrap=True)


@app.command()
def remove(name: _Name, file: _FileOption = None) -> None:
    """Take a key away; drivers that run refuse it within seconds."""
    remove_key(_file(file), name)


@app.command(name="list")
def list_(
    file: _FileOption = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")] = False,
) -> None:
    """Print whose keys there are, with their quotas, scopes and applications."""
    for entry in read_keys(_file(file)):
        if as_json:
            print(entry.model_dump_json(exclude={"sha256"}))  # noqa: T201 - JSON lines go out as they are
            continue
        quota = f"{entry.requests_per_minute:,} a minute" if entry.requests_per_minute else "no quota"
        created = f"{entry.created:%Y-%m-%d}" if entry.created else ""
        scopes = ",".join(entry.scopes or ())  # most keys have none, and may classify
        applications = (f"{name}={rate}" if rate else name for name, rate in sorted((entry.applications or {}).items()))
        line = f"{entry.name:24} {quota:20} {created:10} {' '.join([scopes, *applications])}"
        out.print(line.rstrip(), soft_wrap=True)


def _application(text: str) -> tuple[str, int | None]:
    name, given, rate = text.partition("=")
    if not given:
        return name, None
    if not (rate.isascii() and rate.isdigit() and len(rate) <= _DIGITS):
        raise UsageError(f"--app {text!r:.80}: write NAME=N, with N requests a minute")
    return name, int(rate)


def _file(chosen: Path | None) -> Path:
    chosen = chosen or load_settings().keys_file
    if chosen is None:
        raise UsageError("which file of keys? Give --file, or set SERFER_KEYS_FILE")
    return chosen
