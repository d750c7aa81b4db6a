"""Maps an image into zarr by windows on another engine's two workers: `engine_run.py ENGINE IMAGE PLAN RESULT.zarr`."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor  # noqa: TID251 - as users have it
from functools import partial

import zarr

import serfer
from serfer.cli.shared.options import print_json

ENGINES = "concurrent.futures", "dask", "ray"
WORKERS = 2


def _write(out: str, group: list[serfer.MapWindow]) -> None:
    array = zarr.open_array(out, mode="r+")
    for window in group:
        array[:, *window.writes[0].slices] = window.run()


def _compute(engine: str, write: partial[None], groups: list[list[serfer.MapWindow]]) -> None:
    if engine == "dask":
        from dask.distributed import Client  # type: ignore[import-not-found]  # noqa: PLC0415 - where it is measured

        with Client(n_workers=WORKERS, threads_per_worker=1, dashboard_address=None) as client:
            client.gather(client.map(write, groups))
    elif engine == "ray":
        import ray  # noqa: PLC0415 - where it is measured

        ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False)
        ray.get([ray.remote(_write).remote(*write.args, group) for group in groups])
    else:
        with ProcessPoolExecutor(WORKERS) as pool:
            list(pool.map(write, groups))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    engine, image, plan, out = sys.argv[1:]
    windows = serfer.windows(image, plan)
    [form], [chunk] = windows.results, windows.chunks
    shape = form.channels, form.height, form.width
    zarr.create_array(out, shape=shape, chunks=chunk, dtype=form.dtype, compressors=None, overwrite=True)
    _compute(engine, partial(_write, out), windows.groups())
    print_json({"windows": len(windows)})
