"""A detector of text over a page of 10,000 pixels: exact windows beside SAHI's and MONAI's, against the page at once.

The network is PP-OCRv4's detector with its published weights (Apache-2.0), an ONNX file of the package
rapidocr-onnxruntime. It has ten squeeze-and-excite gates, which take averages of the whole page.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import psutil
import typer

from serfer.cli.shared.options import JsonOption, status_lines
from serfer.core.errors import UnavailableError, UsageError
from serfer_bench.core.results import stamp_now
from serfer_bench.core.tables import Column, Measurement, Results, publish, table_of
from serfer_bench.mapping.page import write_page
from serfer_bench.mapping.page_picture import Drawn, draw
from serfer_bench.mapping.page_ways import Found, Killed, at_once, blended_maps, by_serfer, planned, sliced_boxes
from serfer_bench.mapping.text_boxes import TEXT, Fates, fates

_STRIDE = 32
_BYTES_A_PIXEL = 240  # of the network on a whole page, as measured
_MEGA, _GIGA = 1e6, 1e9


@dataclass(frozen=True)
class Way(Measurement):
    """A way to run the network, and what became of the page's boxes: how many it has, and the fates of the reference's.

    `difference` is the largest one of probabilities, `across` the share of pixels on the other side of 0.3; None of a
    way that has boxes alone. `peak_bytes` and `seconds` are of all its processes.
    """

    way: Annotated[str, Column("way")]
    boxes: Annotated[int, Column("boxes")]
    same: Annotated[int, Column("same")]
    cut: Annotated[int, Column("cut")]
    doubled: Annotated[int, Column("doubled")]
    lost: Annotated[int, Column("lost")]
    added: Annotated[int, Column("added")]
    difference: Annotated[float | None, Column("largest difference", ".1e", empty="-")]
    across: Annotated[float | None, Column("pixels across 0.3", ".1e", empty="-")]
    peak_bytes: Annotated[int, Column("peak GB", ".2f", 1 / _GIGA)]
    seconds: Annotated[float, Column("seconds", ".0f")]


@dataclass(frozen=True)
class Demonstration:
    """The ways over one page, the whole page at once first, and how SerFer's was killed."""

    rows: int
    cols: int
    side: int
    ways: tuple[Way, ...]
    killed: Killed


def demonstrate(
    network: Path, size: tuple[int, int], side: int, home: Path, progress: Callable[[str], None]
) -> tuple[Demonstration, list[Drawn]]:
    """Run every way over the page, which is written to `home` with all maps; return figures, and what can be drawn.

    Raises UnavailableError without the memory for the whole page, and for another network as `serfer.map_plan`.
    """
    _check_memory(size)
    progress("serfer map-plan")
    windows = planned(network, home, size)
    page = home / "page.tif"
    progress("the page")
    write_page(page, size)
    progress("the whole page at once")
    whole = at_once(page, network, home)
    exact, killed = by_serfer(page, home, windows, progress)
    progress("windows as SAHI's")
    merged = sliced_boxes(page, network, home, side)
    progress("windows as MONAI's")
    constant, gaussian = blended_maps(page, network, home, side)
    found = {
        "the whole page at once": whole,
        "serfer map": exact,
        f"SAHI's windows of {side:,}, boxes merged": merged,
        f"MONAI's windows of {side:,}, constant": constant,
        f"MONAI's windows of {side:,}, gaussian": gaussian,
    }
    ends = {what: fates(one.boxes, whole.boxes) for what, one in found.items()}
    ways = tuple(_way(what, one, whole, ends[what]) for what, one in found.items())
    drawn = [Drawn(what, one.boxes, ends[what]) for what, one in found.items()]
    return Demonstration(*size, side, ways, killed), drawn


def _check_memory(size: tuple[int, int]) -> None:
    wanted, free = _BYTES_A_PIXEL * size[0] * size[1], psutil.virtual_memory().available
    if wanted > free:
        raise UnavailableError(
            f"the network on the whole page takes about {wanted / _GIGA:.1f} GB and {free / _GIGA:.1f} GB are free: "
            "give a smaller page, such as --rows 3008 --cols 2016"
        )


def _way(what: str, found: Found, whole: Found, ends: Fates) -> Way:
    difference = across = None
    if found.values is not None and whole.values is not None:
        difference = float(np.abs(found.values - whole.values).max())
        across = float(((found.values > TEXT) != (whole.values > TEXT)).mean())
    return Way(
        way=what,
        boxes=len(found.boxes),
        same=ends.count("same"),
        cut=ends.count("cut"),
        doubled=ends.count("doubled"),
        lost=ends.count("lost"),
        added=ends.added,
        difference=difference,
        across=across,
        peak_bytes=found.peak_bytes,
        seconds=found.seconds,
    )


def results(shown: Demonstration, notes: Sequence[str] = ()) -> Results:
    killed = shown.killed
    said = [
        f"{shown.rows:,} x {shown.cols:,} pixels, typeset from a text in the public domain and made to look scanned."
    ]
    said.append(
        f"serfer map was killed with {killed.kept} of {killed.windows} windows there, of all passes; the next run "
        f"resumed with {killed.resumed}. Its seconds are those of both runs, its memory is that of all processes."
    )
    said.append("MONAI's two blendings share their windows: memory and seconds are those of both.")
    return Results([asdict(shown)], [table_of(shown.ways)], [*said, *notes])


def command(
    network: Annotated[Path, typer.Argument(help="PP-OCRv4's detector, ch_PP-OCRv4_det_infer.onnx.")],
    rows: Annotated[int, typer.Option(min=320, help="The page's height in pixels, a multiple of 32.")] = 10016,
    cols: Annotated[int, typer.Option(min=320, help="The page's width in pixels, a multiple of 32.")] = 5024,
    side: Annotated[int, typer.Option(min=64, help="Side of SAHI's and MONAI's windows, a multiple of 32.")] = 1024,
    draw_to: Annotated[Path | None, typer.Option("--draw", help="Draw the page and its boxes to this file.")] = None,
    keep: Annotated[Path | None, typer.Option(help="Keep the page, the plan and the maps in this new folder.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Find the text of a page of 10,000 pixels: at once, by serfer map, in fixed windows."""
    if rows % _STRIDE or cols % _STRIDE or side % _STRIDE:
        raise UsageError(f"the network has a stride of {_STRIDE}: give sizes that are multiples of it")
    if not network.is_file():
        raise UsageError(f"{network} is not a file: `make demo-map` downloads the network, and runs this")
    if draw_to is not None and not draw_to.parent.is_dir():
        raise UsageError(f"--draw {draw_to}: {draw_to.parent} is not a directory")
    if keep is not None and keep.exists():
        raise UsageError(f"--keep {keep} is there already: name a new folder")
    with ExitStack() as stack:
        progress = stack.enter_context(status_lines())
        if keep is None:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="serfer-page-")))
        else:
            keep.mkdir(parents=True)
            home = keep
        shown, drawn = demonstrate(network, (rows, cols), side, home, progress)
        if draw_to is not None:
            draw(home / "page.tif", drawn, draw_to)
    publish(results(shown, stamp_now().lines), as_json=as_json)
