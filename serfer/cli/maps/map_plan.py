"""`serfer map-plan`: a network becomes a plan for images that no function holds."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import typer

from serfer.cli.explain import print_plan_json
from serfer.cli.maps.options import MapPlanCommand
from serfer.cli.shared.display import counted, plain
from serfer.cli.shared.map_display import dollars, duration, passes_lines
from serfer.cli.shared.options import status_line
from serfer.cli.shared.plan_summary import chosen_line
from serfer.cli.shared.schema import settings_of
from serfer.cli.shared.terminal import complain, out
from serfer.cli.split import dependency_bytes
from serfer.core.costs.aws import AwsFacts
from serfer.core.errors import UsageError
from serfer.core.plan import MapBoxes, Plan
from serfer.mapping.estimate import WindowPrices
from serfer.mapping.kept_maps import PassFiles
from serfer.mapping.options import MapOptions
from serfer.mapping.results import file_places
from serfer.raster.reading.header import RasterLimits
from serfer.splitter.map_plan import map_plan as make_map_plan

_AT_ONCE = 16  # windows, as an example
_SIZE = re.compile(r"([1-9]\d{0,6})x([1-9]\d{0,6})")


def map_plan(options: MapPlanCommand, context: typer.Context) -> None:
    settings = settings_of(context)
    with status_line() as progress:
        plan = make_map_plan(
            options.model_with_weights(options.model),
            _sizes(options.sizes),
            options.out,
            store=options.store,
            dependency_bytes=lambda: dependency_bytes(settings, progress),
            facts=settings.facts(),
            profiles=settings.profiles(options.profiles, 0.0),
            progress=progress,
            options=options,
        )
    if options.as_json:
        print_plan_json(plan)
    else:
        _print_summary(plan, options.out, settings.facts())


def _print_summary(plan: Plan, directory: Path, facts: AwsFacts) -> None:
    windows = plan.windows
    if windows is None:
        return
    height, width = windows.heights[0].size, windows.widths[0].size
    prices, count = WindowPrices(plan, facts), len(windows.first)
    files = PassFiles(windows, (height, width), Path("OUT.parts"), None, {})
    passes = [(cut, range(len(cut))) for cut in map(files.of, range(len(windows.passes)))]
    one, many = (
        prices.estimate(windows.first, range(count), (height, width), at_once, passes) for at_once in (1, _AT_ONCE)
    )
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
        names = ", ".join(path for path, _ in file_places(plan, "OUT.tif", MapOptions()))
        out.print(plain(f"a file for each output: {names} (serfer map --set one_file=true: bands of OUT.tif)"))
    if windows.passes:
        for line in passes_lines(replace(one, kept_bytes=files.most_bytes(), kept_where="the folder of OUT")):
            out.print(plain(line))
    line = f"next: serfer map IMAGE --plan {place} --out OUT (all figures: serfer explain {place})"
    out.print(plain(line), soft_wrap=True)
    largest = max(axis.size for axis in windows.heights), max(axis.size for axis in windows.widths)
    if largest[0] * largest[1] > (most := RasterLimits().max_whole_pixels):
        complain(
            f"of images with more than {most:,} pixels, interlaced PNG and progressive JPEG are refused, which are "
            "decoded whole: TIFF, other PNG and other JPEG are read"
        )


def _print_boxes(boxes: MapBoxes) -> None:
    head = boxes.head
    classes = f" of {head.classes} classes" if head.classes else ""
    text = (
        f"boxes{classes} of the whole image, as {head.family} has them, of a score of {head.min_score:g} or more, none "
        f"over {head.max_iou:g} of the union with a better one: OUT.geojson, or OUT.json (COCO); images are padded to "
        f"multiples of {boxes.multiple}"
    )
    out.print(plain(text))


def _sizes(texts: Sequence[str]) -> list[tuple[int, int]] | str:
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
