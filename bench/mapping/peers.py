"""`serfer map` beside MONAI's sliding windows: each network on one image, with time, memory and errors.

Each way is a process that reads an image file and writes an array file, and they take turns, so that what else the
machine does slows all. MONAI is not a dependency: the command says where it can be imported from.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.machinery import PathFinder
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Annotated

import numpy as np
import typer

from serfer.cli.shared.options import JsonOption, status_line
from serfer.core.errors import MissingExtraError, UnavailableError, UsageError
from serfer_bench.core.onnx_file import write_onnx
from serfer_bench.core.results import stamp_now
from serfer_bench.core.tables import Results, Table, publish
from serfer_bench.mapping.images import PREPROCESS, write_image
from serfer_bench.mapping.runs import MapRun, run
from serfer_bench.mapping.runs import command as map_command

_MEGA = 1e6
_STRIDE = 16
_ROWS = 512
MAP, WHOLE, MONAI_TORCH, MONAI_ONNX = "serfer map", "torch, whole", "MONAI, torch", "MONAI, ONNX Runtime"
NETWORKS = ("U-Net", "DnCNN", "DeepLabV3+")
_PLAN, _MODEL, _IMAGE, _TRUTH = "plan", "window.onnx", "image.tif", "whole.npy"


@dataclass(frozen=True)
class Way:
    """A way to compute a network's map of an image, once.

    `seconds` are the process's, `without_start_s` those without the start of Python, its imports and `serfer map`'s
    workers, `processor_s` those of all cores. `error` is the largest difference from torch on the whole image, relative
    to the range, `differs` the share of pixels with another best channel. `bytes` are the peak of the process,
    `worker_bytes` that of its largest worker.
    """

    network: str
    what: str
    seconds: float
    without_start_s: float
    processor_s: float
    error: float
    differs: float
    bytes: int
    worker_bytes: int


@dataclass(frozen=True)
class Comparing:
    """What is compared: an image of `size` by windows of a side, in a folder `home`, until `deadline`.

    `packages` are folders that MONAI may be imported from.
    """

    size: tuple[int, int]
    window: int
    rounds: int
    home: Path
    deadline: float
    packages: Sequence[str]
    progress: Callable[[str], None]

    def measure(self, names: Sequence[str]) -> tuple[list[Way], list[str]]:
        """Compare all ways of all networks; returns also what was left out at the deadline, in words."""
        write_image(self.home / _IMAGE, self.size)
        ways: list[Way] = []
        for name in names:
            try:
                self._prepare(name)
                ways.append(self._way(name, WHOLE))
                for _ in range(self.rounds):
                    ways += [self._way(name, what) for what in (MAP, MONAI_TORCH, MONAI_ONNX)]
            except TimeoutError:
                return ways, [f"Time was up at {name}: give more with --most-s, or a smaller image."]
        return ways, []

    def _prepare(self, name: str) -> None:
        """Make the plan of a network, and an ONNX file of it for images of a window's size."""
        self._left_s()
        import serfer  # noqa: PLC0415 - its public functions import torch
        from serfer_bench.mapping.peer_networks import network  # noqa: PLC0415 - imports torch

        self.progress(f"{name}: making a plan")
        net = network(name)
        plan = self.home / _PLAN
        serfer.map_plan(net, [self.size], plan, window=self.window, preprocess=PREPROCESS, statistics="exact")
        write_onnx(net, self.window, self.home / _MODEL)

    def _way(self, name: str, what: str) -> Way:
        left = self._left_s()
        self.progress(f"{name}: {what}")
        out = self.home / (_TRUTH if what == WHOLE else "result.npy")
        out.unlink(missing_ok=True)
        if what == MAP:
            done = run(map_command(self.home / _IMAGE, self.home / _PLAN, out), timeout_s=left)
        else:
            done = self._other(name, what, out, left)
        error, differs = _compared(out, self.home / _TRUTH)
        return Way(
            name,
            what,
            done.seconds,
            float(done.report["seconds"]),
            done.processor_s,
            error,
            differs,
            done.driver_bytes,
            done.largest_worker_bytes,
        )

    def _other(self, name: str, what: str, out: Path, left_s: float) -> MapRun:
        request = {
            "way": what,
            "network": name,
            "window": self.window,
            "image": str(self.home / _IMAGE),
            "model": str(self.home / _MODEL),
            "out": str(out),
            "packages": [*self.packages],
        }
        return run([sys.executable, "-m", "serfer_bench.mapping.peer_process", json.dumps(request)], timeout_s=left_s)

    def _left_s(self) -> float:
        """Return the seconds until the deadline; raises TimeoutError where it has passed."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


def _compared(file: Path, truth: Path) -> tuple[float, float]:
    """Return the largest difference of two arrays (C, H, W), relative to the range, and the share of other classes."""
    made, whole = np.load(file, mmap_mode="r"), np.load(truth, mmap_mode="r")
    if made.shape != whole.shape:
        raise UnavailableError(f"a map has the shape {made.shape}, and the network's own {whole.shape}")
    error, differs = 0.0, 0
    for top in range(0, whole.shape[1], _ROWS):
        one, other = made[:, top : top + _ROWS], whole[:, top : top + _ROWS]
        error = max(error, float(np.abs(one - other).max()))
        differs += int((one.argmax(0) != other.argmax(0)).sum())
    return error / (float(np.ptp(whole)) or 1.0), differs / whole[0].size


def check_monai(packages: Sequence[str]) -> None:
    """Raise MissingExtraError, which says how to install it, where MONAI cannot be imported."""
    if PathFinder.find_spec("monai", [*packages, *sys.path]) is None:
        raise MissingExtraError(
            "MONAI is not installed: pip install --no-deps --target FOLDER monai, then --packages FOLDER (it takes the "
            "torch that is there)"
        )


def results(ways: Sequence[Way], notes: Sequence[str]) -> Results:
    """Return the ways side by side, each as the median of its rounds, relative to `serfer map`."""
    head = (
        *("network", "way", "seconds", "/ serfer map", "without start", "/ serfer map", "processor s"),
        *("largest error / range", "other classes", "MB", "largest worker MB"),
    )
    body = []
    for name, of_network in groupby(ways, lambda way: way.network):
        rounds: dict[str, list[Way]] = {}
        for way in of_network:
            rounds.setdefault(way.what, []).append(way)
        seconds = {what: median(way.seconds for way in each) for what, each in rounds.items()}
        inside = {what: median(way.without_start_s for way in each) for what, each in rounds.items()}
        body += [
            (
                *(name, what),
                *(f"{seconds[what]:.1f}", _times(seconds, what), f"{inside[what]:.1f}", _times(inside, what)),
                f"{median(way.processor_s for way in each):.1f}",
                *(f"{max(way.error for way in each):.1e}", f"{max(way.differs for way in each):.2%}"),
                f"{max(way.bytes for way in each) / _MEGA:,.0f}",
                f"{max(way.worker_bytes for way in each) / _MEGA:,.0f}",
            )
            for what, each in rounds.items()
        ]
    said = (
        "Random weights. Errors are to torch on the whole image. MONAI's windows overlap by its default, a quarter, "
        "and are averaged. Each way is a process that reads the image and writes an array."
    )
    return Results([asdict(way) for way in ways], [Table(head, body)], [said, *notes])


def _times(seconds: dict[str, float], what: str) -> str:
    return f"x{seconds[what] / seconds[MAP]:.2f}" if MAP in seconds else "-"


def command(
    rows: Annotated[int, typer.Option(min=256, help="The image's height in pixels, a multiple of 16.")] = 2048,
    cols: Annotated[int, typer.Option(min=256, help="The image's width in pixels, a multiple of 16.")] = 3072,
    window: Annotated[int, typer.Option(min=64, help="The side of windows, of all ways; a multiple of 16.")] = 1024,
    only: Annotated[list[str], typer.Option("--network", help=f"{', '.join(NETWORKS)}.")] = [*NETWORKS],  # noqa: B006
    packages: Annotated[list[str], typer.Option(help="A folder that MONAI may be imported from.")] = [],  # noqa: B006
    rounds: Annotated[int, typer.Option(min=1, help="How often each way runs, in turn.")] = 1,
    most_s: Annotated[
        float, typer.Option(min=1, help="Seconds after which no other way starts, and none goes on.")
    ] = 300,
    as_json: JsonOption = False,
) -> None:
    """Compare serfer map with MONAI's sliding windows: the same networks, image and side of windows."""
    if rows % _STRIDE or cols % _STRIDE or window % _STRIDE:
        raise UsageError(f"the networks' strides are up to {_STRIDE}: give sizes and windows that are multiples of it")
    if strange := next((name for name in only if name not in NETWORKS), None):
        raise UsageError(f"the networks are {', '.join(NETWORKS)}, not {strange!r:.80}")
    check_monai(packages)
    with status_line() as progress, tempfile.TemporaryDirectory(prefix="serfer-peers-") as home:
        comparing = Comparing((rows, cols), window, rounds, Path(home), time.monotonic() + most_s, packages, progress)
        ways, notes = comparing.measure(only)
    publish(results(ways, [*notes, *stamp_now().lines]), as_json=as_json)
