"""Pictures of a plan: its network with the cuts, its tiles over an image, both as characters, and what it beat.

`anatomy` has the numbers, `network` and `layout` decide what goes where, `draw_network` and `draw_tiles` make scenes of
it, which `render` puts onto a figure. Charts are drawn on matplotlib's own axes: `charts`, `pareto` and `policies` have
the data, `charts_figure` and `pareto_figure` the axes. matplotlib is imported only when something is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from serfer.core.plan import ImageLimits, Plan, Preprocess
from serfer.images import decode_image, read_image
from serfer.pictures.charts import Chart
from serfer.pictures.draw_network import network_scene
from serfer.pictures.draw_tiles import tiles_scene
from serfer.pictures.formats import SUFFIXES, check_suffix
from serfer.pictures.pareto import choices
from serfer.pictures.scene import Scene, stacked
from serfer.pictures.text import text_picture

__all__ = [
    "SUFFIXES",
    "check_suffix",
    "choices",
    "draw_charts",
    "draw_network",
    "draw_pareto",
    "draw_plan",
    "draw_tiles",
    "picture_pixels",
    "text_picture",
]


def draw_charts(title: str, charts: Sequence[Chart], legend: Sequence[str], stamp: Sequence[str], out: Path) -> None:
    """Draw charts below each other, with a legend of lines that begin with curves' names and a stamp below."""
    check_suffix(out)
    from serfer.pictures.charts_figure import charts_figure  # noqa: PLC0415 - matplotlib is slow to import
    from serfer.pictures.render import save  # noqa: PLC0415 - same

    save(charts_figure(title, charts, legend, stamp), out)


def draw_network(plan: Plan, directory: Path, out: Path) -> None:
    """Draw the network of a plan directory, its stages and its cuts; the format follows from the suffix of `out`."""
    check_suffix(out)
    _save_scene(network_scene(plan, directory), out)


def draw_tiles(plan: Plan, image: NDArray[np.uint8] | None, out: Path) -> None:
    """Draw one tile of each spread stage over an image, as `picture_pixels` gives it, or over a gradient."""
    check_suffix(out)
    _save_scene(tiles_scene(plan, image), out)


def draw_pareto(plan: Plan, out: Path) -> None:
    """Draw latency against dollars of a plan and of what it competed with."""
    check_suffix(out)
    from serfer.pictures.pareto_figure import pareto_figure  # noqa: PLC0415 - matplotlib is slow to import
    from serfer.pictures.render import save  # noqa: PLC0415 - same

    save(pareto_figure(plan), out)


def draw_plan(plan: Plan, directory: Path, out: Path, image: NDArray[np.uint8] | None = None) -> None:
    """Draw the network and, where some stage is spread, its tiles below it, as one file."""
    check_suffix(out)
    scenes = [network_scene(plan, directory)]
    if any(stage.grid.tiles > 1 for stage in plan.stages):
        scenes.append(tiles_scene(plan, image))
    _save_scene(stacked(scenes), out)


def _save_scene(scene: Scene, out: Path) -> None:
    from serfer.pictures.render import save, scene_figure  # noqa: PLC0415 - matplotlib is slow to import

    save(scene_figure(scene), out)


def picture_pixels(plan: Plan, path: Path, limits: ImageLimits) -> NDArray[np.uint8]:
    """Return what the network sees of an image file, (H, W, 3) in red, green, blue; raises ImageError."""
    stretched = Preprocess(None, "bilinear", "RGB", 1.0, (0.0,) * 3, (1.0,) * 3)
    known = plan.preprocess or stretched
    colours = replace(stretched, resize=known.resize, interpolation=known.interpolation, pad=known.pad)
    return decode_image(read_image(path, limits), str(path), colours, replace(plan.input, channels=3), limits)
