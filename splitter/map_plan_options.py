"""Options of map plans, of `serfer map-plan` and of a network that is mapped with without a plan."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from serfer.core.errors import UsageError
from serfer.core.options import Options, option
from serfer.core.plan import Preprocess

KeptMaps = Literal["auto", "always", "never"]


def memory_in(text: str) -> list[int] | None:
    if text == "auto":
        return None
    if not re.fullmatch(r"\d{1,6}(,\d{1,6})*", text):
        raise UsageError(f"--memory is auto or MB such as 1769 or 1769,3538, not {text!r}")
    return [int(size) for size in text.split(",")]


@dataclass(frozen=True, kw_only=True)
class MapPlanOptions(Options):
    """How a network becomes a map plan, besides the sizes of the images."""

    window: int | Literal["auto"] = option(
        "auto",
        "The side of windows in pixels of the result, of several the finest, a multiple of the network's stride; or "
        "auto: the cheapest for a pixel that functions can hold.",
        least=1,
    )
    channels: int | None = option(None, "The images' channels; by default those of the file, or 3.", least=1, most=4096)
    reduce: str | None = option(
        None,
        "What is made of the map's channels: argmax (classes, a hundredth as large), softmax or sigmoid. Of a network "
        "with several outputs, name the one.",
        metavar="[OUTPUT=]KIND",
    )
    output: str | None = option(
        None,
        "The network is a detector: its maps are boxes of the whole image (docs/how-to/detect.md). A file whose "
        "metadata say so needs none.",
        metavar="boxes[:FAMILY][,score=S][,iou=I]",
    )
    statistics: Literal["auto", "exact"] = option(
        "auto",
        "For a network that takes means, variances or maxima of the whole image, which are added up in passes before "
        "the map: exact, whatever that takes; auto, unless it is more than three times the work of the map.",
    )
    kept_maps: KeptMaps = option(
        "auto",
        "Whether passes keep maps on the disk of the process that maps, for later ones, which read them in place of "
        "the image: auto, where that is predicted to be cheaper than computing them again; always, wherever less is "
        "computed so; or never.",
    )
    preprocess: Preprocess | Path | None = option(
        None, "A TOML file: how pixels become the input (docs/how-to/preprocess.md).", metavar="FILE"
    )
    labels: Sequence[str] | Path = option((), "A text file with a class's name in each line.", metavar="FILE")
    memory_mb: int | Sequence[int] | None = option(
        None,
        "MB of the function, several to choose from, or auto: 1 to 4 vCPUs or all there are.",
        "--memory",
        read=memory_in,
        shown="auto",
    )
    name: str | None = option(
        None, "The network's name in the plan and in services; by default its file's, or its own."
    )
