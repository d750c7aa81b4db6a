"""Figures of several seeds in one table: of each cell the least to the largest."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Final

import typer

from serfer_bench.core.results import publish_rows
from serfer_bench.core.tables import Row, Table, table_of


@dataclass(frozen=True)
class Several:
    """A value for each seed, shown as the least to the largest."""

    values: tuple[float, ...]

    def __format__(self, spec: str) -> str:
        least, most = format(min(self.values), spec), format(max(self.values), spec)
        return least if least == most else f"{least} to {most}"


SEEDS: Final = 5
"""Five values' range holds the median of what all seeds would give with a probability of 94%, of any distribution."""
SeedOption = Annotated[int, typer.Option(min=0, help="The first seed: of the arrivals, and of a generated load.")]
SeedsOption = Annotated[int, typer.Option(min=1, max=100, help="How many, from --seed on: their least to largest.")]
_NUMBER: Final = re.compile(r"[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")


def publish_seeds(
    found: Sequence[Sequence[Row]],
    seeds: Sequence[int],
    directory: Path | None,
    *,
    as_json: bool,
    notes: Sequence[str] = (),
    fixed: Sequence[Row] = (),
) -> None:
    """Print the rows that each seed gave, in the same order, as one table; write and print as JSON all of them.

    Rows that are `fixed`, whatever the seed, come first.
    """
    said = f"{len(seeds)} seeds from {seeds[0]} on: the least to the largest" if len(seeds) > 1 else f"seed {seeds[0]}"
    rows = [*fixed, *chain.from_iterable(found)]
    publish_rows(rows, directory, as_json=as_json, table=over_seeds(found, fixed), notes=[said, *notes])


def over_seeds(found: Sequence[Sequence[Row]], fixed: Sequence[Row] = ()) -> Table:
    tables = [table_of([*fixed, *rows]) for rows in found]
    body = [
        [_range(cells) for cells in zip(*same, strict=True)]
        for same in zip(*(table.body for table in tables), strict=True)
    ]
    return Table(tables[0].head, body)


def _range(cells: Sequence[str]) -> str:
    if len(set(cells)) == 1:
        return cells[0]
    if "" in cells:  # a ratio to nothing: of all seeds there is none
        return ""
    ordered = sorted(cells, key=_number)
    return f"{ordered[0]} to {ordered[-1]}"


def _number(cell: str) -> float:
    found = _NUMBER.search(cell)
    return float(found[0].replace(",", "")) if found else math.inf
