"""`serfer map-plan`: a network becomes a plan for images that no function holds."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from serfer.cli.explain import print_plan_json
from serfer.cli.shared.display import counted, plain
from serfer.cli.shared.map_display import dollars, duration, passes_lines
from serfer.cli.shared.map_network_options import (
    BoxesOption,
    ImageChannelsOption,
    KeptMapsOption,
    MapLabelsOption,
    MapPreprocessOption,
    MemoryOption,
    ReduceOption,
    StatisticsOption,
    WindowOption,
    map_network,
)
from serfer.cli.shared.named_model import DownloadOption, RandomOption, WeightsFileOption, WeightsFrom
from serfer.cli.shared.options import JsonOption, NameOption, ProfilesOption, status_line
from serfer.cli.shared.plan_summary import chosen_line
from serfer.cli.shared.terminal import complain, out
from serfer.cli.split import dependency_bytes
from serfer.core.errors import UsageError
from serfer.settings import load_settings

if TYPE_CHECKING:
    from serfer.core.costs.aws import AwsFacts
    from serfer.core.plan import MapBoxes, Plan

_AT_ONCE = 16  # windows, as an example
_SIZE = re.compile(r"([1-9]\d{0,6})x([1-9]\d{0,6})")


def map_plan(
    model: Annotated[
        str,
        typer.Argument(
            help="An .onnx file whose height and width are free, or module.py:factory, a function without arguments "
            "that returns the nn.Module (the file is imported and run, so it must be one that you trust); or timm:NAME "
            "or torchvision:NAME."
        ),
    ],
    directory: Annotated[Path, typer.Option("--out", help="The plan directory to write; a plan there is replaced.")],
    sizes: Annotated[
        list[str],
        typer.Option(
            "--size",
            help="HEIGHTxWIDTH of the images, in pixels; several may be given. Or any: one plan for images of all "
            "sizes that the network takes; or any,multiple=8, for those that are multiples of 8 pixels.",
        ),
    ],
    weights_file: WeightsFileOption = None,
    random: RandomOption = False,
    download: DownloadOption = False,
    window: WindowOption = "auto",
    channels: ImageChannelsOption = 3,
    reduce: ReduceOption = None,
    output: BoxesOption = None,
    statistics: StatisticsOption = "auto",
    kept_maps: KeptMapsOption = "auto",
    preprocess: MapPreprocessOption = None,
    labels: MapLabelsOption = None,
    memory: MemoryOption = "auto",
    store: Annotated[str, typer.Option(help="What predictions are for: redis, s3 or valkey.")] = "redis",
    profiles: ProfilesOption = None,
    name: NameOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a plan that runs a network over images of any size, window by window, as if on the whole image.

    Means, variances and maxima over the whole image (group and instance norm, squeeze-and-excite, global and pyramid
    pooling) are added up in passes before the map. A network that looks at the whole image otherwise is refused by
    name.
    """
    settings = load_settings()
    from serfer.splitter.map_plan import map_plan as make  # noqa: PLC0415 - the command line starts fast

    network = map_network(
        model,
        WeightsFrom(weights_file, random, download),
        window=window,
        channels=channels,
        reduce=reduce,
        output=output,
        statistics=statistics,
        kept_maps=kept_maps,
        preprocess=preprocess,
        labels=labels,
        memory=memory,
        name=name,
    )
    assert network is not None  # noqa: S101 - there is a model
    with status_line() as progress:
        plan = make(
            network.model,
            _sizes(sizes),
            directory,
            **network.options,
            store=store,
            dependency_bytes=lambda: dependency_bytes(settings, progress),
            facts=settings.facts(),
            profiles=settings.profiles(profiles, 0.0),
            progress=progress,
        )
    if as_json:
        print_plan_json(plan)
    else:
        _print_summary(plan, directory, settings.facts())


def _print_summary(plan: Plan, directory: Path, facts: AwsFacts) -> None:
    """Print the windows, what an image of the first size costs, and which files of the sizes are too large to read."""
    from serfer.mapping.estimate import WindowPrices  # noqa: PLC0415 - the command line starts fast
    from serfer.mapping.kept_maps import PassFiles  # noqa: PLC0415 - same
    from serfer.mapping.options import MapOptions  # noqa: PLC0415 - same
    from serfer.mapping.results import result_paths  # noqa: PLC0415 - same
    from serfer.raster.limits import RasterLimits  # noqa: PLC0415 - same

    windows = plan.windows
    if windows is None:
        return
    height, width = windows.heights[0].size, windows.widths[0].size
    prices, count = WindowPrices(plan, facts), len(windows.first)
    files = PassFiles(windows, (height, width), Path("OUT.parts"), None, {})
    passes = [(cut, range(len(cut))) for cut in map(files.of, range(len(windows.passes)))]
    one, many = (prices.estimate(windows.first, range(count), (height, width), each, passes) for each in (1, _AT_ONCE))
    place = shlex.quote(str(directory))
    out.print(plain(chosen_line(plan)))
    if windows.rules:
        padded = ", to which images are padded" if plan.boxes else ""
        out.print(plain(f"for images of any size: {windows.rules}{padded}"), soft_wrap=True)
    at_once = f", {duration(many.seconds)} with {_AT_ONCE} at once" if count > 1 else ""
    out.print(
        f"an image of {height:,} x {width:,} pixels: {counted(count, 'window')}, ${one.usd:.6f} "
        f"({dollars(one.usd_per_megapixel or 0)} a megapixel), {duration(one.seconds)} one after the other{at_once} "
        "(predicted for Lambda)"
    )
    if plan.boxes:
        _print_boxes(plan.boxes)
    elif len(plan.output_tensors) > 1:
        names = ", ".join(result_paths(plan, "OUT.tif", MapOptions()))
        out.print(plain(f"a file for each output: {names} (serfer map --one-file: bands of OUT.tif)"))
    if windows.passes:
        for line in passes_lines(replace(one, kept_bytes=files.most_bytes(), kept_where="the folder of OUT")):
            out.print(plain(line))
    line = f"next: serfer map IMAGE --plan {place} --out OUT (all figures: serfer explain {place})"
    out.print(plain(line), soft_wrap=True)
    largest = max(each.size for each in windows.heights), max(each.size for each in windows.widths)
    if largest[0] * largest[1] > (most := RasterLimits().max_whole_pixels):
        complain(
            f"of images with more than {most:,} pixels, interlaced PNG and progressive JPEG are refused, which are "
            "decoded whole: TIFF, other PNG and other JPEG are read"
        )


def _print_boxes(boxes: MapBoxes) -> None:
    """Print what boxes a plan makes of an image."""
    head = boxes.head
    classes = f" of {head.classes} classes" if head.classes else ""
    text = (
        f"boxes{classes} of the whole image, as {head.family} has them, of a score of {head.min_score:g} or more, none "
        f"over {head.max_iou:g} of the union with a better one: OUT.geojson, or OUT.json (COCO); images are padded to "
        f"multiples of {boxes.multiple}"
    )
    out.print(plain(text))


def _sizes(texts: list[str]) -> list[tuple[int, int]] | str:
    """Return the sizes that were given, or the one text for those of any size; raises UsageError."""
    if any(text.startswith("any") for text in texts):
        if len(texts) > 1:
            raise UsageError("--size any is for images of all sizes: give no other --size with it")
        return texts[0]
    return [_size(text) for text in texts]


def _size(text: str) -> tuple[int, int]:
    match = _SIZE.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is not a size: write HEIGHTxWIDTH such as 9000x12000, or any")
    return int(match[1]), int(match[2])
