"""The picture of the surface: for each network, objective and share of cold queries, who wins by image and burst."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path as MplPath
from matplotlib.transforms import Affine2D

from serfer.core.errors import InputError
from serfer.core.units import MS_PER_S
from serfer.pictures.render import (
    GREY,
    INK,
    LIGHT,
    WHITE,
    drawable,
    fitting_size,
    picture_settings,
    save,
    stage_colour,
)
from serfer_bench.core.tables import Table
from serfer_bench.study.planner.ways_to_answer import WAYS, Question

TITLE = "Modelled: the cheapest way within an objective, by pixels (across) and queries at once (up)"
_NONE = "none"
_SHARE = "% cold"
_LETTERS = dict(zip((*WAYS, _NONE), "FSPGIU-", strict=True))
_COLOURS = {**{way: stage_colour(number) for number, way in enumerate(WAYS)}, _NONE: LIGHT}
_CELL, _GAP, _LEFT, _ABOVE, _BELOW, _LINE = 0.25, 0.14, 1.25, 0.95, 0.35, 0.16  # inches
_Panel = tuple[float, float]
"""An objective in seconds, and a share of cold queries."""


class Won(Protocol):
    """A question about a network at one size of image, and who wins: a way, or "none"."""

    @property
    def model(self) -> str: ...

    @property
    def size(self) -> int: ...

    @property
    def question(self) -> Question: ...

    @property
    def winner(self) -> str: ...


@dataclass(frozen=True)
class _Shown:
    model: str
    size: int
    question: Question
    winner: str


def won(tables: Sequence[Table]) -> list[Won]:
    try:
        winners, details = tables[:2]
        bursts = sorted({_number(row[details.head.index("burst")]) for row in details.body})
        return [shown for row in winners.body for shown in _shown(dict(zip(winners.head, row, strict=True)), bursts)]
    except (KeyError, ValueError) as error:
        raise InputError(f"these are not the tables of serfer study planner surface: {error}") from error


def _shown(row: dict[str, str], bursts: Sequence[int]) -> Iterator[Won]:
    slo_s = _number(row["within ms"]) / MS_PER_S
    for name, cell in row.items():
        if not name.endswith(_SHARE):
            continue
        for burst in bursts:
            question = Question(burst, float(name.removesuffix(_SHARE)) / 100, slo_s, math.nan)  # no rate is shown
            yield _Shown(row["network"], _number(row["px"]), question, _winner(cell, burst))


def _winner(cell: str, burst: int) -> str:
    for part in cell.split(", then "):
        way, _, most = part.partition(" to ")
        if not most or burst <= _number(most):
            return way
    raise ValueError(f"{cell!r} has no winner of {burst} queries at once")


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def draw(cells: Sequence[Won], stamp: Sequence[str], out: Path, title: str = TITLE) -> None:
    models = [*dict.fromkeys(cell.model for cell in cells)]
    panels = [*dict.fromkeys((cell.question.slo_s, cell.question.cold_share) for cell in cells)]
    sizes = sorted({cell.size for cell in cells})
    bursts = sorted({cell.question.burst for cell in cells})
    wide, high = _CELL * len(sizes), _CELL * len(bursts)
    width = max(_LEFT + len(panels) * (wide + _GAP) + _GAP, 6.0)
    below = _BELOW + _LINE * len(stamp)
    height = _ABOVE + len(models) * (high + _GAP) + below
    with picture_settings():
        figure = Figure(figsize=(width, height))
        for row, model in enumerate(models):
            bottom = height - _ABOVE - (row + 1) * (high + _GAP) + _GAP
            _text(figure, (0.1, bottom + high / 2), model, 8, INK)
            for column, panel in enumerate(panels):
                left = _LEFT + column * (wide + _GAP)
                axes = figure.add_axes((left / width, bottom / height, wide / width, high / height))
                won = {
                    (cell.size, cell.question.burst): cell.winner
                    for cell in cells
                    if cell.model == model and (cell.question.slo_s, cell.question.cold_share) == panel
                }
                _panel(axes, won, sizes, bursts)
                _ticks(axes, sizes if row == len(models) - 1 else [], bursts if not column else [])
                if not row:
                    axes.set_title(f"{100 * panel[1]:.3g}% cold", fontsize=7, color=GREY, pad=3)
        _objectives(figure, panels, height - _ABOVE + 0.22, wide)
        _heading(figure, title, {cell.winner for cell in cells})
        for number, line in enumerate(reversed(stamp)):
            _text(figure, (0.1, 0.1 + _LINE * number), line, fitting_size(line, 7, width - 0.2), GREY)
    save(figure, out)


def _text(
    figure: Figure, inches: tuple[float, float], text: str, size: float, colour: str, weight: str = "normal"
) -> None:
    width, height = figure.get_size_inches()
    place = inches[0] / width, inches[1] / height
    figure.text(*place, drawable(text), size=size, color=colour, weight=weight, va="center_baseline")


def _objectives(figure: Figure, panels: Sequence[_Panel], y: float, wide: float) -> None:
    for slo_s in dict.fromkeys(slo_s for slo_s, _ in panels):
        first = min(column for column, panel in enumerate(panels) if panel[0] == slo_s)
        place = _LEFT + first * (wide + _GAP), y
        _text(figure, place, f"within {slo_s * MS_PER_S:,.0f} ms", 8, INK, "bold")


def _heading(figure: Figure, title: str, won: set[str]) -> None:
    width, height = figure.get_size_inches()
    _text(figure, (0.1, height - 0.2), title, fitting_size(title, 10, width - 0.2, bold=True), INK, "bold")
    names = [name for name in _LETTERS if name in won]
    handles = [Patch(color=_COLOURS[name], label=f"{_LETTERS[name]}  {name}") for name in names]
    place: dict[str, Any] = {
        "loc": "upper left",
        "bbox_to_anchor": (0.1 / width, 1 - 0.32 / height),
        "borderaxespad": 0.0,
    }
    figure.legend(handles=handles, ncols=len(names), fontsize=7.5, handlelength=1.0, columnspacing=1.2, **place)


def _panel(axes: Axes, won: dict[tuple[int, int], str], sizes: Sequence[int], bursts: Sequence[int]) -> None:
    axes.set_xlim(0, len(sizes))
    axes.set_ylim(0, len(bursts))
    squares: dict[str, list[MplPath]] = {}
    for (size, burst), way in won.items():
        x, y = sizes.index(size), bursts.index(burst)
        squares.setdefault(way, []).append(MplPath.unit_rectangle().transformed(Affine2D().translate(x, y)))
        axes.text(x + 0.5, y + 0.48, _LETTERS[way], size=6, color=WHITE, ha="center", va="center")
    for way, paths in squares.items():  # one for all of a way: a patch for each made the file a third larger
        together = MplPath.make_compound_path(*paths)
        axes.add_patch(PathPatch(together, facecolor=_COLOURS[way], edgecolor=WHITE, linewidth=0.8))


def _ticks(axes: Axes, sizes: Sequence[int], bursts: Sequence[int]) -> None:
    axes.set_xticks([number + 0.5 for number in range(len(sizes))], [str(size) for size in sizes], rotation=90)
    axes.set_yticks([number + 0.5 for number in range(len(bursts))], [f"{burst:,}" for burst in bursts])
    axes.tick_params(labelsize=6, length=0, colors=GREY, pad=1.5)
    for spine in axes.spines.values():
        spine.set_visible(False)
