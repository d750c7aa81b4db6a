"""`serfer map` on a large image, as a user runs it: a process of the command line over local workers.

The network is a U-Net with random weights. Its windows' multiply-accumulates are timed in ONNX Runtime alone, on all
cores, before and after each map: what else the machine does slows both.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from serfer.cli.shared.options import JsonOption, status_line
from serfer.core.errors import UsageError
from serfer_bench.core.results import stamp_now
from serfer_bench.core.tables import Column, Measurement, Results, publish, table_of
from serfer_bench.mapping.images import PREPROCESS, normalised, strip, write_image
from serfer_bench.mapping.rate import WindowRate, window_rate
from serfer_bench.mapping.runs import MapRun, run
from serfer_bench.mapping.runs import command as map_command

_SAMPLE = 256


@dataclass(frozen=True)
class Timed(Measurement):
    """A map beside its multiply-accumulates.

    `macs` are the image's at once and `overlap` what windows add to them, as a share; `macs_per_s` is what all cores
    did in ONNX Runtime alone, the mean of before and after. `ratio` is the process's seconds over those of the windows'
    multiply-accumulates, `strict` over those of the image's; `mapped_ratio` is the first without the start of Python
    and of the workers' service. `processor_ratio` is the first in processor time, of all processes: it means something
    on a machine that does other work as well.
    """

    window: Annotated[int, Column("windows of")]
    windows: Annotated[int, Column("windows")]
    macs: Annotated[int, Column("GMACs", ",.0f", 1e-9)]
    macs_per_pixel: Annotated[float, Column("a megapixel", ".1f", 1e-3)]
    overlap: Annotated[float, Column("overlap", ".1%")]
    macs_per_s: Annotated[float, Column("GMAC/s, all cores", ".1f", 1e-9)]
    seconds: Annotated[float, Column("seconds", ".1f")]
    ratio: Annotated[float, Column("/ windows' MACs", ".2f")]
    strict: Annotated[float, Column("/ image's MACs", ".2f")]
    mapped_ratio: Annotated[float, Column("without start", ".2f")]
    processor_ratio: Annotated[float, Column("processor time", ".2f")]
    driver_bytes: Annotated[int, Column("driver MB", ",.0f", 1e-6)]
    largest_worker_bytes: Annotated[int, Column("largest worker MB", ",.0f", 1e-6)]


def measure(
    size: tuple[int, int],
    windows: Sequence[int],
    home: Path,
    *,
    width: int,
    scores: bool,
    rounds: int,
    sample: int,
    progress: Callable[[str], None],
) -> list[Timed]:
    import torch  # noqa: PLC0415 - slow to import

    import serfer  # noqa: PLC0415 - its public functions import torch
    from serfer_bench.pipeline.unet import Unet  # noqa: PLC0415 - imports torch

    progress("writing the image")
    image = home / "image.tif"
    write_image(image, size)
    torch.manual_seed(0)
    unet = Unet(width).eval()
    unet.centre(torch.from_numpy(normalised(strip(0, _SAMPLE, _SAMPLE))))
    more = ["--set", "compression=none"] if scores else []
    timed: list[Timed] = []
    for window in windows:
        progress(f"making a plan of windows of {window}")
        directory, out = home / f"plan-{window}", home / f"result-{window}.tif"
        reduce = None if scores else "argmax"
        plan = serfer.map_plan(unet, [size], directory, window=window, preprocess=PREPROCESS, reduce=reduce)
        words = map_command(image, directory, out, [*more, "--overwrite"])
        with window_rate(plan, directory, size, os.cpu_count() or 1, sample) as rate:
            timed += [_timed(window, size, words, rate, progress) for _ in range(rounds)]
    return timed


def _timed(
    window: int, size: tuple[int, int], words: Sequence[str], rate: WindowRate, progress: Callable[[str], None]
) -> Timed:
    progress(f"windows of {window}: multiply-accumulates alone")
    before = rate.measure()
    progress(f"windows of {window}: serfer map")
    done: MapRun = run(words)
    progress(f"windows of {window}: multiply-accumulates alone")
    after = rate.measure()
    speed = (before.per_s + after.per_s) / 2
    processor_speed = (before.per_processor_s + after.per_processor_s) / 2
    overlap = float(done.report["estimate"]["overlap"])
    alone = rate.macs / speed
    return Timed(
        window=window,
        windows=int(done.report["windows"]),
        macs=(macs := round(rate.macs / (1 + overlap))),
        macs_per_pixel=macs / (size[0] * size[1]),
        overlap=overlap,
        seconds=done.seconds,
        macs_per_s=speed,
        ratio=done.seconds / alone,
        strict=done.seconds / alone * (1 + overlap),
        mapped_ratio=float(done.report["seconds"]) / alone,
        processor_ratio=done.processor_s * processor_speed / rate.macs,
        driver_bytes=done.driver_bytes,
        largest_worker_bytes=done.largest_worker_bytes,
    )


def results(maps: Sequence[Timed], notes: Sequence[str] = ()) -> Results:
    said = []
    for window in dict.fromkeys(each.window for each in maps):
        rounds = [each for each in maps if each.window == window]
        windows, image = median(each.ratio for each in rounds), median(each.strict for each in rounds)
        used = median(each.processor_ratio for each in rounds)
        said.append(
            f"Windows of {window}: {windows:.2f} times the time of their multiply-accumulates, {image:.2f} times that "
            f"of the image's, {used:.2f} times their processor time (median of {len(rounds)})."
        )
    return Results(map(asdict, maps), [table_of(maps)], [*said, *notes])


def command(
    rows: Annotated[int, typer.Option(min=128, help="The image's height in pixels, a multiple of 8.")] = 9000,
    cols: Annotated[int, typer.Option(min=128, help="The image's width in pixels, a multiple of 8.")] = 12000,
    window: Annotated[list[int], typer.Option(min=64, help="The side of windows; several are compared.")] = [1024],  # noqa: B006
    width: Annotated[int, typer.Option(min=1, max=256, help="Channels of the U-Net's first map.")] = 16,
    scores: Annotated[bool, typer.Option("--scores", help="Write scores in float32, not the best class.")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="How often each map runs.")] = 1,
    sample: Annotated[int, typer.Option(min=1, help="Windows that are timed in ONNX Runtime alone.")] = 24,
    as_json: JsonOption = False,
) -> None:
    """Run serfer map on a large generated image: time and memory."""
    if rows % 8 or cols % 8:
        raise UsageError("the network halves maps three times: give sizes that are multiples of 8")
    with status_line() as progress, tempfile.TemporaryDirectory(prefix="serfer-mapping-") as home:
        measured = measure(
            (rows, cols),
            window,
            Path(home),
            width=width,
            scores=scores,
            rounds=rounds,
            sample=sample,
            progress=progress,
        )
    publish(results(measured, stamp_now().lines), as_json=as_json)
