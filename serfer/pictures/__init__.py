"""Pictures of a plan: its network with the cuts, its tiles over an image, both as characters, and what it beat.

`anatomy` has the numbers, `network`, `layout` and `pareto` decide what goes where, `draw_*` make scenes of it, and
`render` draws a scene with matplotlib, which is imported only then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from serfer.core.plan import Plan, Preprocess
from serfer.images import ImageLimits, decode_image, read_image
from serfer.pictures.draw_latency import latency_scene
from serfer.pictures.draw_network import network_scene
from serfer.pictures.draw_pareto import pareto_scene
from serfer.pictures.draw_tiles import tiles_scene
from serfer.pictures.latency import Chart
from serfer.pictures.pareto import choices
from serfer.pictures.render import SUFFIXES, check_suffix, save
from serfer.pictures.scene import stacked
from serfer.pictures.text import text_picture

__all__ = [
    "SUFFIXES",
    "choices",
    "draw_latency",
    "draw_network",
    "draw_pareto",
    "draw_plan",
    "draw_tiles",
    "picture_pixels",
    "text_picture",
]


def draw_latency(title: str, charts: Sequence[Chart], keys: Sequence[str], stamp: Sequence[str], out: Path) -> None:
    """Draw the latencies of a load as charts, with a line of the key for each system and the stamp below."""
    check_suffix(out)
    save(latency_scene(title, charts, keys, stamp), out)


def draw_network(plan: Plan, directory: Path, out: Path) -> None:
    """Draw the network of a plan directory, its stages and its cuts; the format follows from the suffix of `out`."""
    check_suffix(out)
    save(network_scene(plan, directory), out)


def draw_tiles(plan: Plan, image: NDArray[np.uint8] | None, out: Path) -> None:
    """Draw one tile of each spread stage over an image, as `picture_pixels` gives it, or over a gradient."""
    check_suffix(out)
    save(tiles_scene(plan, image), out)


def draw_pareto(plan: Plan, out: Path) -> None:
    """Draw latency against dollars of a plan and of what it competed with."""
    check_suffix(out)
    save(pareto_scene(plan), out)


def draw_plan(plan: Plan, directory: Path, out: Path, image: NDArray[np.uint8] | None = None) -> None:
    """Draw the network and, where some stage is spread, its tiles below it, as one file."""
    check_suffix(out)
    scenes = [network_scene(plan, directory)]
    if any(stage.grid.tiles > 1 for stage in plan.stages):
        scenes.append(tiles_scene(plan, image))
    save(stacked(scenes), out)


def picture_pixels(plan: Plan, path: Path, limits: ImageLimits) -> NDArray[np.uint8]:
    """Return what the network sees of an image file, (H, W, 3) in red, green, blue; raises ImageError."""
    stretched = Preprocess(None, "bilinear", "RGB", 1.0, (0.0,) * 3, (1.0,) * 3)
    resize, way = (plan.preprocess.resize, plan.preprocess.interpolation) if plan.preprocess else (None, "bilinear")
    colours = replace(stretched, resize=resize, interpolation=way)
    return decode_image(read_image(path, limits), str(path), colours, replace(plan.input, channels=3), limits)
