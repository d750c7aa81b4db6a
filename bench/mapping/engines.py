"""`serfer map` compared with the same windows on Dask, Ray and concurrent.futures, two workers of one thread each.

A start is an engine's map of four windows, so that both workers have started: ratios are of what a map takes beyond it.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import rasterio
import typer
import zarr
from numpy.typing import NDArray

from serfer.cli.shared.options import JsonOption, status_line
from serfer.core.errors import UnavailableError, WrongAnswerError
from serfer_bench.core.results import stamp_now
from serfer_bench.core.tables import Column, Measurement, Results, publish, table_of
from serfer_bench.mapping.engine_run import ENGINES, WORKERS
from serfer_bench.mapping.images import PREPROCESS, normalised, strip, write_image
from serfer_bench.mapping.runs import MapRun, run
from serfer_bench.mapping.runs import command as map_command

_OWN = "serfer map"
_TRIES = 4  # Ray gives its processes 30 s to start, which they exceed on a busy machine
_PLAIN = [word for pair in (f"concurrency={WORKERS}", "compression=none", "check=false") for word in ("--set", pair)]


@dataclass(frozen=True)
class EngineMaps(Measurement):
    """Maps of one image by an engine, start included: medians of rounds, and the driver's largest peak of memory.

    Processor seconds are of all processes; ratios are of what is beyond the start, within a round.
    """

    side: Annotated[int, Column("pixels a side", ",")]
    windows: Annotated[int, Column("windows", ",")]
    engine: Annotated[str, Column("engine")]
    start_s: Annotated[float, Column("start s", ".1f")]
    start_processor_s: Annotated[float, Column("its processor s", ".1f")]
    seconds: Annotated[float, Column("seconds", ".1f")]
    processor_s: Annotated[float, Column("processor s", ".1f")]
    ratio: Annotated[float, Column("seconds / serfer map", ".2f")]
    processor_ratio: Annotated[float, Column("processor s / serfer map", ".2f")]
    driver_bytes: Annotated[int, Column("driver MB", ",.0f", 1e-6)]


def _map(engine: str, home: Path) -> MapRun:
    image, plan, out = home / "image.tif", home / "plan", home / f"{engine}.zarr"
    if engine == _OWN:
        return run(map_command(image, plan, home / "own.tif", [*_PLAIN, "--overwrite"]))
    words = [sys.executable, "-m", "serfer_bench.mapping.engine_run", engine, str(image), str(plan), str(out)]
    for tries in range(_TRIES, 0, -1):
        try:
            done = run(words)
            break
        except UnavailableError:
            if tries == 1:
                raise
    with rasterio.open(home / "own.tif") as own:
        if not np.array_equal(own.read(), zarr.open_array(out)[:]):
            raise WrongAnswerError(f"{engine} has another result than serfer map")
    return done


def _maps(side: int, starts: dict[str, MapRun], rounds: list[dict[str, MapRun]]) -> list[EngineMaps]:
    rows, windows = [], int(rounds[0][_OWN].report["windows"])
    beyond = [{name: _taken(maps[name]) - _taken(start) for name, start in starts.items()} for maps in rounds]
    for engine, start in starts.items():
        done = np.median([_taken(maps[engine]) for maps in rounds], axis=0)
        ratios = np.median([taken[engine] / taken[_OWN] for taken in beyond], axis=0)
        largest = max(maps[engine].driver_bytes for maps in rounds)
        row: list[Any] = [side, windows, engine, *map(float, (*_taken(start), *done, *ratios)), largest]
        rows.append(EngineMaps(*row))
    return rows


def _taken(done: MapRun) -> NDArray[np.float64]:
    return np.array([done.seconds, done.processor_s])


def command(
    side: Annotated[list[int], typer.Option(min=128, help="The image's sides in pixels, multiples of 8; several.")],
    window: Annotated[int, typer.Option(min=64, help="The side of windows.")] = 512,
    width: Annotated[int, typer.Option(min=1, max=256, help="Channels of the U-Net's first map.")] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="How often each engine maps each image, in turn.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Compare serfer map with Dask, Ray and concurrent.futures: time, memory of the driver."""
    import torch  # noqa: PLC0415 - slow to import

    import serfer  # noqa: PLC0415 - its public functions import torch
    from serfer_bench.pipeline.unet import Unet  # noqa: PLC0415 - imports torch

    if missing := [name for name in ("distributed", "ray") if not find_spec(name)]:
        raise UnavailableError(f"{' and '.join(missing)} cannot be imported: install {' '.join(missing)} beside SerFer")
    torch.manual_seed(0)
    unet, rows = Unet(width).eval(), list[EngineMaps]()
    unet.centre(torch.from_numpy(normalised(strip(0, window, window))))
    starts: dict[str, MapRun] = {}
    with status_line() as progress:
        for size in (2 * window, *side):
            maps: list[dict[str, MapRun]] = [{} for _ in range(rounds)]
            with tempfile.TemporaryDirectory(prefix="serfer-engines-") as folder:
                write_image((home := Path(folder)) / "image.tif", (size, size))
                shape = [(size, size)]
                serfer.map_plan(unet, shape, home / "plan", window=window, preprocess=PREPROCESS, reduce="argmax")
                for number, done in enumerate(maps, 1):
                    for engine in (_OWN, *ENGINES):
                        progress(f"{size} pixels a side by {engine}, {number} of {len(maps)}")
                        done[engine] = _map(engine, home)
            if starts:
                rows += _maps(size, starts, maps)
            starts = starts or maps[-1]
    publish(Results(map(asdict, rows), [table_of(rows)], stamp_now().lines), as_json=as_json)
