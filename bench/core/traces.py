"""Recorded loads that tables of pages are of: a table whose file is not here is left out, and says so."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NoReturn

import typer

from serfer.cli.shared.terminal import err
from serfer_bench.study.loads.catalogue import catalogue

SKIPPED: Final = "skipped: "
"""How a line about what was skipped begins."""


def missing_in(folder: Path | None, names: Iterable[str] = ()) -> list[str]:
    return [name for name in names or catalogue() if folder is None or not (folder / f"{name}.csv").is_file()]


def split_missing(files: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split loads into those to run, and the names of public traces that are not here; others' absence is an error."""
    missing = [name for name in files if Path(name).stem in catalogue() and not Path(name).exists()]
    return [name for name in files if name not in missing], [Path(name).stem for name in missing]


def skipped(names: Sequence[str], where: object = "DIR") -> list[str]:
    if not names:
        return []
    listed = " ".join(names)
    why = f"there is no folder {where}" if isinstance(where, Path) and not where.is_dir() else "not here"
    return [f"{SKIPPED}{', '.join(names)}: {why}; get them with serfer study fetch-traces {listed} --out {where}"]


def end_skipped(lines: Sequence[str]) -> NoReturn:
    err.print(*lines, soft_wrap=True)  # standard output has results alone
    raise typer.Exit
