"""A figure's number as it is measured, beside the published one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from serfer_bench.core.tables import Column, Measurement
from serfer_bench.study.papers.infless.paper import World


@dataclass(frozen=True)
class FigureRow(Measurement):
    """A value of a system in a setting; `relative` is over INFless' in the same setting, `published` the paper's."""

    figure: Annotated[str, Column("figure")]
    profiles: Annotated[str, Column("profiles")]
    beta: Annotated[str, Column("beta by")]
    setting: Annotated[str, Column("setting")]
    system: Annotated[str, Column("system")]
    what: Annotated[str, Column("what")]
    value: Annotated[float, Column("value", _figures)]
    relative: Annotated[float | None, Column("over INFless", ".2f")]
    published: Annotated[str, Column("published")]
    seed: int = 0


def rows_of(
    figure: str,
    world: World,
    setting: str,
    what: str,
    values: Mapping[str, float],
    published: Mapping[str, str],
) -> list[FigureRow]:
    base = values.get("infless")
    return [
        FigureRow(
            figure,
            world.profiles,
            world.beta,
            setting,
            system,
            what,
            value,
            value / base if base else None,
            published.get(system, ""),
        )
        for system, value in values.items()
    ]


def _figures(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= _WHOLE else f"{value:.4g}"


_WHOLE = 1000
