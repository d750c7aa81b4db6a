"""Shared by `serfer map-plan` and `serfer map --network`: what is said of a network that maps images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from serfer.cli.shared.named_model import WeightsFrom
from serfer.cli.shared.options import memory_in, status_lines
from serfer.cli.shared.plan_summary import chosen_line
from serfer.cli.shared.terminal import complain
from serfer.core.errors import UsageError
from serfer.plan_directory import load_plan
from serfer.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from serfer.wiring.map_network import KeptMapPlan, MapNetwork

NetworkOption = Annotated[
    str | None,
    typer.Option(
        "--network",
        metavar="NETWORK",
        help="In place of --plan: an .onnx file, module.py:factory, timm:NAME or torchvision:NAME. "
        "Its plan is made, for images of any size where that can be, and kept in the cache for the next "
        "time; the options from --weights-file to --memory say more of the network, as those of map-plan.",
    ),
]
WindowOption = Annotated[
    str,
    typer.Option(
        "--window", help="Side of windows in pixels of the result, or auto: the cheapest that functions can hold."
    ),
]
ImageChannelsOption = Annotated[int, typer.Option("--channels", min=1, max=4096, help="The images' channels.")]
ReduceOption = Annotated[
    str | None,
    typer.Option(
        "--reduce",
        metavar="[OUTPUT=]KIND",
        help="What is made of the map's channels: argmax (classes), softmax or sigmoid. Of a network with several "
        "outputs, name the one.",
    ),
]
BoxesOption = Annotated[
    str | None,
    typer.Option(
        "--output",
        metavar="boxes[:FAMILY][,score=S][,iou=I]",
        help="The network is a detector: its maps are boxes of the whole image (docs/how-to/detect.md).",
    ),
]
StatisticsOption = Annotated[
    str,
    typer.Option(
        "--statistics",
        help="For a network that takes means, variances or maxima of the whole image: exact, by passes before the "
        "map; or auto, the same unless that is more than three times the work of the map.",
    ),
]
KeptMapsOption = Annotated[
    str,
    typer.Option(
        "--kept-maps",
        help="Whether passes keep maps on the disk for later ones, which read them in place of the image: auto, "
        "where that is cheaper than computing them again; always, wherever less is computed so; or never.",
    ),
]
MapPreprocessOption = Annotated[
    Path | None,
    typer.Option("--preprocess", help="A TOML file: how pixels become the input (docs/how-to/preprocess.md)."),
]
MapLabelsOption = Annotated[Path | None, typer.Option("--labels", help="A text file with a class's name in each line.")]
MemoryOption = Annotated[
    str,
    typer.Option(
        "--memory", help="MB of the function, several to choose from, or auto: 1 to 4 vCPUs or all there are."
    ),
]


def map_network(
    model: str | None,
    weights: WeightsFrom,
    *,
    window: str,
    channels: int,
    reduce: str | None,
    output: str | None,
    statistics: str,
    kept_maps: str,
    preprocess: Path | None,
    labels: Path | None,
    memory: str,
    name: str | None = None,
) -> MapNetwork | None:
    """Return a network with what the options say of it, None for none.

    Raises UsageError, for options without a network, too, and InputError for an unusable file.
    """
    from serfer.splitter.network.description import read_labels, read_preprocess  # noqa: PLC0415 - starts fast
    from serfer.wiring.map_network import MapNetwork  # noqa: PLC0415 - same

    network = MapNetwork(
        None if model is None else weights.of(model),
        window=window,
        channels=channels,
        reduce=reduce,
        output=output,
        statistics=statistics,
        kept_maps=kept_maps,
        preprocess=read_preprocess(preprocess, resized=False) if preprocess else None,
        labels=read_labels(labels) if labels else (),
        memory_mb=memory_in(memory),
        name=name,
    )
    if model is not None:
        return network
    unsaid = MapNetwork(None).options
    named = (key.removesuffix("_mb") for key, value in network.options.items() if value != unsaid[key])
    given = [f"--{key.replace('_', '-')}" for key in named]
    if given or weights.given:
        raise UsageError(
            f"{' and '.join(filter(None, [*given, weights.given]))} describe a network, --network FILE: a plan has its "
            "own"
        )
    return None


def plan_to_map_by(
    plan: Path | None, network: MapNetwork | None, images: Callable[[], Sequence[str]], *, deployed: bool
) -> Path:
    """Return the directory of a plan that was given, or of a network's, and say of that where it is and what it is for.

    Raises as `chosen_plan` does.
    """
    from serfer.mapping.chosen_plan import chosen_plan  # noqa: PLC0415 - the command line starts fast

    made = False
    with status_lines() as progress:

        def step(text: str) -> None:  # a plan that is there has no steps
            nonlocal made
            made = True
            progress(text)

        kept = chosen_plan(plan, network, images, load_settings(), deployed=deployed, progress=step)
    if network is not None:
        _say(network.called, kept, made=made)
    return kept.directory


def _say(network: str, kept: KeptMapPlan, *, made: bool) -> None:
    plan = load_plan(kept.directory)
    windows = plan.windows
    assert windows is not None  # noqa: S101 - of a map plan
    if made:
        complain(chosen_line(plan))
    if windows.rules:
        images = f"images of any size, {windows.rules}"
    else:
        heights, widths = (" or ".join(f"{axis.size:,}" for axis in axes) for axes in (windows.heights, windows.widths))
        images = f"images of {heights} x {widths} pixels and not for any size: {kept.refused}"
    complain(f"the plan of {network} is kept in {kept.directory}, for {images}")
    if plan.preprocess is None:
        complain(f"{network} gets the values that images have, unchanged: --preprocess FILE.toml says what is right")
