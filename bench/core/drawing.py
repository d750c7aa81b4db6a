"""Charts into files; matplotlib is imported only when something is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from serfer.pictures import check_suffix
from serfer_bench.core.charts import Chart


def draw_charts(title: str, charts: Sequence[Chart], legend: Sequence[str], stamp: Sequence[str], out: Path) -> None:
    check_suffix(out)
    from serfer.pictures.render import save  # noqa: PLC0415 - same
    from serfer_bench.core.charts_figure import charts_figure  # noqa: PLC0415 - matplotlib is slow to import

    save(charts_figure(title, charts, legend, stamp), out)
