"""`serfer map` on a large image, as a user runs it: a process of the command line over local workers.

The network is a U-Net with random weights. Its windows' multiply-accumulates are timed in ONNX Runtime alone, on all
cores, before and after each map: what else the machine does slows both.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer

from serfer.cli.shared.options import JsonOption, status_line
from serfer.core.errors import UsageError, WrongAnswerError
from serfer_bench.core.results import stamp_now
from serfer_bench.core.tables import Results, Table, publish
from serfer_bench.mapping.images import PREPROCESS, Comparison, compare, normalised, strip, write_image
from serfer_bench.mapping.rate import WindowRate, window_rate
from serfer_bench.mapping.runs import MapRun, kept_parts, kill, run
from serfer_bench.mapping.runs import command as map_command

if TYPE_CHECKING:
    from serfer_bench.pipeline.unet import Unet

_SAMPLE = 256
_MEGA, _GIGA = 1e6, 1e9
_SEED = 7


@dataclass(frozen=True)
class Timed:
    """A map beside its multiply-accumulates.

    `macs` are the image's at once and `overlap` what windows add to them, as a share; `macs_per_s` is what all cores
    did in ONNX Runtime alone, the mean of before and after. `ratio` is the process's seconds over those of the windows'
    multiply-accumulates, `strict` over those of the image's; `mapped_ratio` is the first without the start of Python
    and of the workers' service. `processor_ratio` is the first in processor time, of all processes: it means something
    on a machine that does other work as well.
    """

    window: int
    windows: int
    macs: int
    overlap: float
    seconds: float
    macs_per_s: float
    ratio: float
    strict: float
    mapped_ratio: float
    processor_ratio: float
    driver_bytes: int
    largest_worker_bytes: int


@dataclass(frozen=True)
class Kills:
    """A map that was killed when `kept` windows were there; the last run found `resumed` of them whole."""

    kept: tuple[int, ...]
    resumed: int
    windows: int
    same_bytes: bool


@dataclass(frozen=True)
class Mapping:
    """All that was measured: the maps of each size of windows, what they differ in, and the killed one."""

    rows: int
    cols: int
    width: int
    scores: bool
    maps: tuple[Timed, ...]
    windows_differ: Comparison | None
    whole_differs: Comparison | None
    kills: Kills | None


def measure(
    size: tuple[int, int],
    windows: Sequence[int],
    home: Path,
    *,
    width: int,
    scores: bool,
    whole: bool,
    kills: int,
    rounds: int,
    sample: int,
    progress: Callable[[str], None],
) -> Mapping:
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
    results = []
    for window in windows:
        progress(f"making a plan of windows of {window}")
        directory, out = home / f"plan-{window}", home / f"result-{window}.tif"
        reduce = None if scores else "argmax"
        plan = serfer.map_plan(unet, [size], directory, window=window, preprocess=PREPROCESS, reduce=reduce)
        words = map_command(image, directory, out, [*more, "--overwrite"])
        with window_rate(plan, directory, size, os.cpu_count() or 1, sample) as rate:
            timed += [_timed(window, words, rate, progress) for _ in range(rounds)]
        results.append(out)
    killed = None
    if kills:
        killed = _killed(image, home, timed[0], more, kills, progress)
    progress("comparing results")
    between = compare(results[1], results[0]) if len(results) > 1 else None
    against = _whole(unet, image, results[0], scores=scores) if whole else None
    return Mapping(*size, width, scores, tuple(timed), between, against, killed)


def _timed(window: int, words: Sequence[str], rate: WindowRate, progress: Callable[[str], None]) -> Timed:
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
        macs=round(rate.macs / (1 + overlap)),
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


def _killed(
    image: Path, home: Path, of: Timed, more: Sequence[str], kills: int, progress: Callable[[str], None]
) -> Kills:
    out, whole = home / "killed.tif", home / f"result-{of.window}.tif"
    words, parts = map_command(image, home / f"plan-{of.window}", out, more), home / "killed.tif.parts"
    moments = random.Random(_SEED)  # noqa: S311 - not a secret
    kept: list[int] = []
    for number in range(kills):
        least = (kept[-1] if kept else 0) + moments.randint(1, max(1, of.windows // (kills + 3)))
        progress(f"kill {number + 1} of {kills}, once {least} of {of.windows} windows are there")
        kill(words, parts, least, moments.uniform(0, of.seconds / of.windows))
        if out.exists():
            if not _same(out, whole):
                raise WrongAnswerError("a map that was killed has left a result that is not whole")
            raise UsageError("the map had its result before it was killed: give a larger image")
        kept.append(kept_parts(parts))
    progress("the killed map again")
    report = run(words).report
    return Kills(tuple(kept), int(report["resumed"]), of.windows, _same(out, whole))


def _same(one: Path, other: Path) -> bool:
    with one.open("rb") as left, other.open("rb") as right:
        while True:
            mine, theirs = left.read(1 << 22), right.read(1 << 22)
            if mine != theirs:
                return False
            if not mine:
                return True


def _whole(unet: Unet, image: Path, result: Path, *, scores: bool) -> Comparison:
    import rasterio  # noqa: PLC0415 - slow to import
    import torch  # noqa: PLC0415 - same

    with rasterio.open(image) as dataset, rasterio.open(result) as form:
        pixels, profile = dataset.read(), form.profile
    with torch.inference_mode():
        values = unet(torch.from_numpy(normalised(pixels)))[0].numpy()
    truth = result.with_name("whole.tif")
    if not scores:
        values = values.argmax(axis=0, keepdims=True)
    with rasterio.open(truth, "w", **profile) as dataset:
        dataset.write(values.astype(profile["dtype"]))
    return compare(result, truth)


def results(measured: Mapping, notes: Sequence[str] = ()) -> Results:
    head = (
        *("windows of", "windows", "GMACs", "a megapixel", "overlap", "GMAC/s, all cores", "seconds"),
        *("/ windows' MACs", "/ image's MACs", "without start", "processor time", "driver MB", "largest worker MB"),
    )
    pixels = measured.rows * measured.cols / _MEGA
    body = [
        (
            f"{each.window}",
            f"{each.windows}",
            f"{each.macs / _GIGA:,.0f}",
            f"{each.macs / _GIGA / pixels:.1f}",
            f"{each.overlap:.1%}",
            f"{each.macs_per_s / _GIGA:.1f}",
            f"{each.seconds:.1f}",
            f"{each.ratio:.2f}",
            f"{each.strict:.2f}",
            f"{each.mapped_ratio:.2f}",
            f"{each.processor_ratio:.2f}",
            f"{each.driver_bytes / _MEGA:,.0f}",
            f"{each.largest_worker_bytes / _MEGA:,.0f}",
        )
        for each in measured.maps
    ]
    kind = "scores, float32" if measured.scores else "classes, uint8"
    said = [
        f"{measured.rows:,} x {measured.cols:,} pixels, a U-Net of {measured.width} channels, random weights; {kind}."
    ]
    for window in dict.fromkeys(each.window for each in measured.maps):
        rounds = [each for each in measured.maps if each.window == window]
        windows, image = median(each.ratio for each in rounds), median(each.strict for each in rounds)
        used = median(each.processor_ratio for each in rounds)
        said.append(
            f"Windows of {window}: {windows:.2f} times the time of their multiply-accumulates, {image:.2f} times that "
            f"of the image's, {used:.2f} times their processor time (median of {len(rounds)})."
        )
    if measured.windows_differ is not None:
        said.append(f"Windows of two sizes: {_words(measured.windows_differ)}.")
    if measured.whole_differs is not None:
        said.append(f"Against PyTorch on the whole image: {_words(measured.whole_differs)}.")
    if (killed := measured.kills) is not None:
        said.append(
            f"Killed with {', '.join(f'{each}' for each in killed.kept)} of {killed.windows} windows there; the last "
            f"run resumed with {killed.resumed}, and the result has "
            f"{'the same bytes' if killed.same_bytes else 'OTHER BYTES'}."
        )
    return Results([asdict(measured)], [Table(head, body)], [*said, *notes])


def _words(measured: Comparison) -> str:
    classes = f"{measured.differs:.1e} of the pixels have another class"
    if measured.clear is None:
        return classes
    return (
        f"largest difference {measured.error:.1e} of the range, {classes}, {measured.clear:.1e} where the best two "
        "differ by more than 1e-5 of it"
    )


def command(
    rows: Annotated[int, typer.Option(min=128, help="The image's height in pixels, a multiple of 8.")] = 9000,
    cols: Annotated[int, typer.Option(min=128, help="The image's width in pixels, a multiple of 8.")] = 12000,
    window: Annotated[list[int], typer.Option(min=64, help="The side of windows; several are compared.")] = [1024],  # noqa: B006
    width: Annotated[int, typer.Option(min=1, max=256, help="Channels of the U-Net's first map.")] = 16,
    scores: Annotated[bool, typer.Option("--scores", help="Write scores in float32, not the best class.")] = False,
    whole: Annotated[bool, typer.Option("--whole", help="Compare with PyTorch on the whole image at once.")] = False,
    kills: Annotated[int, typer.Option(min=0, max=9, help="How often another run is killed, and resumed.")] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="How often each map runs.")] = 1,
    sample: Annotated[int, typer.Option(min=1, help="Windows that are timed in ONNX Runtime alone.")] = 24,
    as_json: JsonOption = False,
) -> None:
    """Run serfer map on a large generated image: exactness, time, memory, kills."""
    if rows % 8 or cols % 8:
        raise UsageError("the network halves maps three times: give sizes that are multiples of 8")
    with status_line() as progress, tempfile.TemporaryDirectory(prefix="serfer-mapping-") as home:
        measured = measure(
            (rows, cols),
            window,
            Path(home),
            width=width,
            scores=scores,
            whole=whole,
            kills=kills,
            rounds=rounds,
            sample=sample,
            progress=progress,
        )
    publish(results(measured, stamp_now().lines), as_json=as_json)
