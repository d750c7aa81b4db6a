"""A figure's number as it is measured, beside the published one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from serfer_bench.study.papers.infless.paper import World


@dataclass(frozen=True)
class FigureRow:
    """A value of a system in a setting; `relative` is over INFless' in the same setting, `published` the paper's."""

    figure: str
    profiles: str
    beta: str
    setting: str
    system: str
    what: str
    value: float
    relative: float | None
    published: str
    seed: int = 0

    @property
    def shown(self) -> dict[str, str]:
        return {
            "figure": self.figure,
            "profiles": self.profiles,
            "beta by": self.beta,
            "setting": self.setting,
            "system": self.system,
            "what": self.what,
            "value": _figures(self.value),
            "over INFless": "" if self.relative is None else f"{self.relative:.2f}",
            "published": self.published,
        }


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
