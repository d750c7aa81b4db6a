"""Pictures that are drawn from the tables of a record: curves over two columns, distributions over quantiles, winners.

A picture says at its foot which figures it shows; one that says others, or is not there, is drawn again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from serfer.core.dataclass_codec import LATER, unstructure
from serfer.core.errors import InputError
from serfer.files import read_text
from serfer_bench.core.charts import Chart, Curve, is_wide
from serfer_bench.core.drawing import draw_charts
from serfer_bench.core.tables import Table

_MAX_BYTES: Final = 4 << 20
_DIGITS: Final = 12
_NUMBER: Final = re.compile(r"-?\d[\d,]*(\.\d+)?")


@dataclass(frozen=True)
class TableChart:
    """A chart of the rows of a table (from 1) whose cells are those of `where`, a curve for each text of `curve`.

    Points are the columns `x` and `y`; without `y`, a row is a distribution, whose quantiles are the columns that begin
    with a percentage. Rows with `dashed` in a cell are drawn so; an empty cell is not drawn. `names` are those of
    curves in place of the texts of their cells; points of one name are one curve.
    """

    table: int
    title: str
    x_label: str
    y_label: str
    curve: tuple[str, ...]
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict, metadata=LATER)
    x: str = field(default="", metadata=LATER)
    y: str = field(default="", metadata=LATER)
    dashed: str = field(default="", metadata=LATER)
    names: Mapping[str, str] = field(default_factory=dict, metadata=LATER)

    @property
    def columns(self) -> set[str]:
        return {*self.curve, *self.where, self.x, self.y} - {""}

    def of(self, tables: Sequence[Table]) -> Chart:
        if not 1 <= self.table <= len(tables):
            raise InputError(f"picture {self.title!r}: table {self.table}: there are {len(tables)}")
        table = tables[self.table - 1]
        if missing := self.columns - {*table.head}:
            raise InputError(f"picture {self.title!r}: there is no column {', '.join(sorted(missing))}")
        lines = [dict(zip(table.head, row, strict=True)) for row in table.body]
        kept = [line for line in lines if all(line[name] in texts for name, texts in self.where.items())]
        curves = tuple(self._curves(kept))
        if not curves:
            raise InputError(f"picture {self.title!r}: no row is {dict(self.where)}")
        return Chart(self.title, self.x_label, self.y_label, curves, y_max=None if self.y else 1.0)

    def _curves(self, lines: Sequence[Mapping[str, str]]) -> Iterator[Curve]:
        for name in dict.fromkeys(self._name(line) for line in lines):
            mine = [line for line in lines if self._name(line) == name]
            if not self.y:
                yield from (Curve(name, points) for line in mine if (points := _distribution(line)))
                continue
            mine = [line for line in mine if line[self.y]]
            solid = [self._point(line) for line in mine if not self._is_dashed(line)]
            dashed = [self._point(line) for line in mine if self._is_dashed(line)]
            if solid:
                yield Curve(name, tuple(solid))
            if dashed:
                yield Curve(name, (*solid[-1:], *dashed), dashed=True)

    def _name(self, line: Mapping[str, str]) -> str:
        name = ", ".join(line[column] for column in self.curve)
        return self.names.get(name, name)

    def _point(self, line: Mapping[str, str]) -> tuple[float, float]:
        return _number(line[self.x]), _number(line[self.y])

    def _is_dashed(self, line: Mapping[str, str]) -> bool:
        return self.dashed != "" and self.dashed in line.values()


@dataclass(frozen=True)
class Picture:
    """A file of docs/pictures with charts below each other, or with who wins by tables of `study planner surface`.

    Axes of the same label are all logarithmic where their values together range far, or none of them is.
    """

    file: str
    title: str
    charts: tuple[TableChart, ...] = field(default=(), metadata=LATER)
    form: Literal["charts", "winners"] = field(default="charts", metadata=LATER)

    def draw(self, tables: Sequence[Table], about: str, root: Path) -> bool:
        if self.shows(tables, root):
            return False
        stamp = [about, self._figures(tables)]
        if self.form == "winners":
            from serfer_bench.study.planner.surface_picture import draw, won  # noqa: PLC0415 - matplotlib is slow to import

            draw(won(tables), stamp, root / self.file, self.title)
            return True
        charts = self.drawn(tables)
        names = list(dict.fromkeys(curve.name for chart in charts for curve in chart.curves))
        draw_charts(self.title, charts, names, stamp, root / self.file)
        return True

    def drawn(self, tables: Sequence[Table]) -> list[Chart]:
        charts = [chart.of(tables) for chart in self.charts]
        values = dict[str, list[float]]()
        for chart in charts:
            for x, y in (point for curve in chart.curves for point in curve.points):
                values.setdefault(chart.x_label, []).append(x)
                values.setdefault(chart.y_label, []).append(y)
        return [
            replace(
                chart,
                x_log=is_wide(values[chart.x_label]),
                y_log=chart.y_max is None and is_wide(values[chart.y_label]),
            )
            for chart in charts
        ]

    def shows(self, tables: Sequence[Table], root: Path) -> bool:
        path = root / self.file
        return path.is_file() and self._figures(tables) in read_text(path, _MAX_BYTES)

    def _figures(self, tables: Sequence[Table]) -> str:
        used = tables if self.form == "winners" else [tables[chart.table - 1] for chart in self.charts]
        shown = json.dumps([unstructure(self), [[table.head, table.body] for table in used]])
        return f"figures {hashlib.sha256(shown.encode()).hexdigest()[:_DIGITS]}"


def _distribution(line: Mapping[str, str]) -> tuple[tuple[float, float], ...]:
    quantiles = ((cell, column.partition("%")) for column, cell in line.items() if "%" in column)
    return tuple((_number(cell), float(share) / 100) for cell, (share, _, _) in quantiles if cell)


def _number(cell: str) -> float:
    if not (found := _NUMBER.search(cell)):
        raise InputError(f"{cell!r:.40} cannot be drawn: there is no number in it")
    return float(found[0].replace(",", ""))
