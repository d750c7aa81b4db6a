"""`serfer bench paper infless`: INFless' evaluation redone in simulations, beside its published figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Final

import typer

from serfer.cli.shared.options import JsonOption, status_line
from serfer_bench.core.options import RowsOption
from serfer_bench.core.results import publish_rows
from serfer_bench.papers.infless import scale, throughput
from serfer_bench.papers.infless.loads import under_loads
from serfer_bench.papers.infless.rows import FigureRow

_Part = Callable[[], Iterable[FigureRow]]
_NOTES: Final = (
    "profiles: authors, fitted to what they measured (LSTM-2365, DSSM-2389: constructed); flops, made from Table 1",
    "beta by: FLOPS, as in the paper (a thread is 0.45% of a GPU); scarcity, ours: a server's cores are worth its GPUs",
    "constructed, too: loads, networks and SLOs of figure 18, cold starts of 3 s, times up to 10% from their profiles",
    "under loads infless has the windows of LSTH, openfaas-plus and batch 300 s, unless a name says another time",
    "published: figures 11, 12b and 18 by the authors' plotting scripts; ratios are over INFless'",
)


_HoursOption = Annotated[float | None, typer.Option(min=0.1, help="The first hours of each load alone.")]


def command(*, hours: _HoursOption = None, directory: RowsOption = None, as_json: JsonOption = False) -> None:
    """Redo INFless' figures 11, 12, 15a, 17 and 18 and Table 4 in simulations, beside its published numbers."""
    parts = (throughput.figure_11, throughput.figure_12b, scale.figure_17, throughput.figure_18)
    _publish(parts, hours, directory, loads=True, as_json=as_json)


def figure_11(*, directory: RowsOption = None, as_json: JsonOption = False) -> None:
    """Redo figure 11: the highest constant load on 8 servers."""
    _publish((throughput.figure_11,), None, directory, as_json=as_json)


def figure_12(*, hours: _HoursOption = None, directory: RowsOption = None, as_json: JsonOption = False) -> None:
    """Redo figure 12: throughput per resource, under changing loads and by SLO."""
    _publish((throughput.figure_12b,), hours, directory, loads=True, as_json=as_json)


def figure_12b(*, directory: RowsOption = None, as_json: JsonOption = False) -> None:
    """Redo figure 12b: throughput per resource by SLO."""
    _publish((throughput.figure_12b,), None, directory, as_json=as_json)


def loads(*, hours: _HoursOption = None, directory: RowsOption = None, as_json: JsonOption = False) -> None:
    """Redo what runs under changing loads: figures 12a and 15a and Table 4."""
    _publish((), hours, directory, loads=True, as_json=as_json)


def figure_17(*, directory: RowsOption = None, as_json: JsonOption = False) -> None:
    """Redo figure 17: decisions and fragments at scale."""
    _publish((scale.figure_17,), None, directory, as_json=as_json)


def figure_18(*, directory: RowsOption = None, as_json: JsonOption = False) -> None:
    """Redo figure 18: throughput by SLO."""
    _publish((throughput.figure_18,), None, directory, as_json=as_json)


def _publish(
    parts: Iterable[_Part], hours: float | None, directory: Path | None, *, loads: bool = False, as_json: bool
) -> None:
    rows: list[FigureRow] = []
    with status_line() as progress:
        for part in parts:
            progress(part.__name__.replace("_", " "))
            rows += part()
        if loads:
            rows += under_loads(progress, hours)
    publish_rows(rows, directory, as_json=as_json, notes=_NOTES)
