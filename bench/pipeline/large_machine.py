"""What takes 16 processors, or a GPU, in one run of ten minutes at most: commands of ours, one after the other.

Each is a process of its own with a time limit. What it prints is kept in a file as it comes, and what it measured in
another; one that fails, or whose machine lacks something, is named, and the others go on.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from serfer.cli.shared.options import JsonOption, status_lines
from serfer.core.errors import SerferError, UsageError
from serfer_bench.core.processes import end
from serfer_bench.core.results import check_directory, publish_rows
from serfer_bench.core.tables import Column, Measurement

_WIDTHS = (4, 8, 16)
_SYSTEMS = "--system threads --system stages"
_END_S = 5.0  # to stop its workers; with the limits ten minutes
_ERROR = "serfer: "
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Part:
    """A command of ours, without `serfer`; it needs so many `processors`, and has `limit_s` seconds."""

    name: str
    words: tuple[str, ...]
    limit_s: float
    processors: int = 1


@dataclass(frozen=True)
class PartRun(Measurement):
    """A part that ran, or did not: `result` is "done", or why it has none."""

    part: Annotated[str, Column("part")]
    command: str
    seconds: Annotated[float, Column("seconds", ",.0f")]
    result: Annotated[str, Column("result")]


def parts(out: Path) -> list[Part]:
    """Return what is run on a machine of 16 processors with a GPU, which takes ten minutes at most."""
    latencies = "--latencies none --latencies 30,0.5,75"
    gangs = [
        _part(
            out / f"gangs-and-stages-of-{width}",
            f"bench gangs --model resnet50 --size 448 --gang-width {width} --rounds 12 {_SYSTEMS} {latencies}",
            110,
            processors=width,
        )
        for width in _WIDTHS
    ]
    turns = "bench instance turns --model alexnet --model squeezenet --rounds 2 --seconds 5 --device cuda"
    return [
        *gangs,
        _part(out / "figures-9-and-11", "study paper serfer --figure 9 --model alexnet --rounds 1 --device cuda", 90),
        _part(out / "batches.toml", "study tune --model inception-v3 --slo-ms 600 --repeats 3 --device cuda", 60),
        _part(out / "two-networks", turns, 90),
    ]


def trial(out: Path) -> list[Part]:
    """Return the same commands at small sizes, for two processors without a GPU: what they measure means nothing."""
    plan = out / "plan"
    quoted = shlex.quote(str(plan))
    networks = f"--plan one={quoted} --plan two={quoted}"
    figures = f"study paper serfer --figure 9 --plan {quoted} --rounds 1 --burst 8 --max-batch 4 --device cpu"
    turns = f"bench instance turns {networks} --rounds 1 --load 0.3 --seconds 1 --device cpu"
    return [
        _part(out / "gangs-and-stages-of-2", f"bench gangs --model squeezenet --size 224 --rounds 1 {_SYSTEMS}", 100),
        _part(plan, "split squeezenet --whole", 100),
        _part(out / "figures-9-and-11", figures, 100),
        _part(out / "batches.toml", f"study tune --plan {quoted} --slo-ms 600 --repeats 1 --most 2 --device cpu", 100),
        _part(out / "two-networks", turns, 100),
    ]


def _part(out: Path, words: str, limit_s: float, processors: int = 1) -> Part:
    return Part(out.stem, (*shlex.split(words), "--out", str(out)), limit_s, processors)


def run(part: Part, out: Path) -> PartRun:
    command, began = f"serfer {shlex.join(part.words)}", time.monotonic()
    if (has := len(os.sched_getaffinity(0))) < part.processors:
        return PartRun(part.name, command, 0.0, f"left out: it needs {part.processors} processors, of {has} here")
    log = out / f"{part.name}.txt"
    with log.open("wb") as printed:
        words = [sys.executable, "-m", "serfer", *part.words]
        with subprocess.Popen(words, stdout=printed, stderr=subprocess.STDOUT) as process:  # noqa: S603 - our own
            result = _ended(process, part.limit_s)
    if result != "done" and (lines := [line for line in log.read_text(errors="replace").splitlines() if line]):
        errors = [line for line in lines if line.startswith(_ERROR)] or lines
        result += f": {errors[-1].removeprefix(_ERROR)}"
    return PartRun(part.name, command, time.monotonic() - began, result)


def _ended(process: subprocess.Popen[bytes], limit_s: float) -> str:
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        end(process, _END_S)
        return f"took more than {limit_s:g} s"
    return "done" if code == 0 else f"failed with exit code {code}"


def run_all(chosen: Sequence[Part], out: Path, progress: Progress) -> Iterator[PartRun]:
    for number, part in enumerate(chosen, 1):
        progress(f"{number} of {len(chosen)}: {part.name}, {part.limit_s:g} s at most")
        yield run(part, out)


def command(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where each part's results, and what it printed, go.")],
    part: Annotated[list[str] | None, typer.Option(help="Of the parts, these alone; may be repeated.")] = None,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Small sizes, two processors and no GPU: whether the parts run at all.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run what takes 16 processors, or a GPU, in ten minutes: gangs and stages of n workers beside n threads, and more.

    On the GPU: SerFer's figures 9 and 11, N and W of MArk, two networks at once. Parts that fail are named.
    """
    check_directory(out)
    chosen = [one for one in (trial if dry_run else parts)(out) if not part or one.name in part]
    if unknown := {*(part or ())} - {one.name for one in chosen}:
        raise UsageError(f"there is no part {', '.join(sorted(unknown))}")
    with status_lines() as progress:
        rows = [*run_all(chosen, out, progress)]
    publish_rows(rows, out, as_json=as_json)
    if missing := [row.part for row in rows if row.result != "done"]:
        raise SerferError(f"{len(missing)} of {len(rows)} parts have no result: {', '.join(missing)}")
