"""`serfer bench infless`: INFless' evaluation redone in simulations, beside its published figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Final

import typer

from bench.core.options import RowsOption
from bench.core.results import publish_rows
from bench.infless.loads import under_loads
from bench.infless.rows import FigureRow
from bench.infless.scale import figure_17
from bench.infless.throughput import figure_11, figure_12b, figure_18
from serfer.cli.shared.options import JsonOption, status_line
from serfer.core.errors import UsageError

PARTS: Final[dict[str, Callable[[], Iterable[FigureRow]]]] = {
    "11": figure_11,
    "12b": figure_12b,
    "17": figure_17,
    "18": figure_18,
}
LOADS_PART: Final = "loads"
_NOTES: Final = (
    "profiles: authors, fitted to what they measured (LSTM-2365, DSSM-2389: constructed); flops, made from Table 1",
    "beta by: FLOPS, as in the paper (a thread is 0.45% of a GPU); scarcity, ours: a server's cores are worth its GPUs",
    "constructed, too: loads, networks and SLOs of figure 18, cold starts of 3 s, times up to 10% from their profiles",
    "published: figures 11, 12b and 18 by the authors' plotting scripts; ratios are over INFless'",
)


def command(
    *,
    part: Annotated[
        list[str] | None,
        typer.Option(help=f"{', '.join(PARTS)}, or {LOADS_PART} (12a, 15a, Table 4); may be repeated. [default: all]"),
    ] = None,
    hours: Annotated[float | None, typer.Option(min=0.1, help="The first hours of each load alone.")] = None,
    directory: RowsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Redo INFless' figures 11, 12, 15a, 17 and 18 and Table 4 in simulations, beside its published numbers."""
    parts = part or [*PARTS, LOADS_PART]
    if unknown := [each for each in parts if each not in PARTS and each != LOADS_PART]:
        raise UsageError(f"--part is {', '.join([*PARTS, LOADS_PART])}, not {unknown[0]!r:.40}")
    rows: list[FigureRow] = []
    with status_line() as progress:
        for each in parts:
            progress(f"part {each}")
            rows += under_loads(progress, hours) if each == LOADS_PART else PARTS[each]()
    publish_rows(rows, directory, as_json=as_json, notes=_NOTES)
