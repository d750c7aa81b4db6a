"""Where the first process of `serfer serve` spends a small query: function calls and processor time of each part.

One query is in flight; counts differ by a few percent between runs. Times are of the thread of the event loop: plain
images, passes of the network and what is made of them have threads of their own, of which the calls are counted. The
profiler makes each call longer, so shares are of parts that consist of calls, and the times are not those of a service
that is not profiled (`serfer bench peers`). The loop itself is in C (`serfer.pipeline.event_loop`): its calls are not
seen, and its share is what the thread took besides.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import aiohttp
import typer

import serfer
from serfer.cli.shared.options import JsonOption, status_line
from serfer.core.errors import UnavailableError
from serfer.local.server import free_ports
from serfer_bench.core.plans import Progress, write_onnx
from serfer_bench.core.processes import end
from serfer_bench.core.results import stamp_now
from serfer_bench.core.tables import Results, Table, publish
from serfer_bench.peers.command import examples_of

_WORKERS: Final = ("inprocess", "local")
_WARM_UP = 20
_Call = tuple[str, str, int, float]
_PATIENCE_S, _AGAIN_S, _END_S = 180.0, 0.05, 30.0
_LOG, _TOLD = "log.txt", 400  # characters of it in an error
_PROGRAM = "serfer_bench.serving.profiled_server"
_LOOP = "the event loop"
_THREADS = "other threads: decoding, the pass, the answer"
_PARTS: Final = {
    "HTTP": ("uvicorn/", "serfer/core/http1.py", "serfer/api/http/protocol.py"),
    "FastAPI, Starlette, pydantic": ("fastapi/", "starlette/", "pydantic/", "anyio/"),
    "handing images to the decoder's process": ("serfer/api/decoding/", "serfer/images.py"),
    "metrics and logs": ("serfer/api/observability/", "prometheus_client/", "serfer/control/online_load.py"),
    "admission and turns": ("serfer/api/admission.py", "serfer/api/service.py"),
    "our routes and middleware": ("serfer/api/",),
    _LOOP: ("asyncio/", "selectors.py", "serfer/pipeline/event_loop.py"),
    "the pipeline and the report": ("serfer/pipeline/", "serfer/core/costs/", "serfer/core/report.py", "numpy/"),
    "signing, and verifying signatures": ("serfer/core/sigv4.py", "serfer/local/lambda_/access.py"),
    "the client of Lambda": ("serfer/drivers/lambda_http.py", "botocore/", "aiohttp/", "yarl/"),
    "the local Lambda service": ("serfer/local/",),
    "the driver and its run machine": ("serfer/drivers/", "serfer/core/", "serfer/control/", "serfer/storage/"),
    "Python's library": ("",),
    _THREADS: (),
}
"""Parts by the beginnings of their files' names, the first that fits counts."""


@dataclass(frozen=True)
class QueryCounts:
    """Calls and processor seconds of a query by part, with one kind of workers."""

    workers: str
    queries: int
    calls: Mapping[str, float]
    seconds: Mapping[str, float]


def part_of(file: str) -> str:
    for place in (f"{Path(serfer.__file__).parents[1]}/serfer/", "/site-packages/", "/lib/python"):
        _, found, rest = file.rpartition(place)
        if found:
            file = f"serfer/{rest}" if place.endswith("/serfer/") else rest
            break
    file = re.sub(r"^3\.\d+t?/", "", file)  # of Python's library
    return next(part for part, beginnings in _PARTS.items() if file.startswith(beginnings))


def counted(
    workers: str, queries: int, total_s: float, calls: Sequence[_Call], others: Sequence[_Call] = ()
) -> QueryCounts:
    """Return what calls (file, name, count, processor seconds) of so many queries are for each.

    What they do not have of the thread's `total_s` seconds is the loop's. Of other threads' the number counts.
    """
    number, seconds = dict.fromkeys(_PARTS, 0.0), dict.fromkeys(_PARTS, 0.0)
    number[_THREADS] = sum(count for _, _, count, _ in others) / queries
    for file, _, count, own_s in calls:
        part = part_of(file)
        number[part] += count / queries
        seconds[part] += own_s / queries
    seconds[_LOOP] += max(0.0, total_s / queries - sum(seconds.values()))
    return QueryCounts(workers, queries, number, seconds)


def measure(network: Path, workers: str, queries: int, home: Path, progress: Progress) -> QueryCounts:
    progress(f"serfer serve --workers {workers}")
    [port], file = free_ports(1), home / f"{workers}.json"
    options = ["--output", "softmax", "--workers", workers, "--port", str(port), "--set", "log_level=error"]
    with (
        (home / _LOG).open("wb") as log,
        subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", _PROGRAM, str(file), "serve", str(network), *options, "--set", "drain_s=0"],
            stdout=log,
            stderr=log,
            env=os.environ | {"SERFER_LOCAL_CONCURRENCY": "1"},
        ) as process,
    ):
        try:
            image = examples_of(network)[0].image
            asyncio.run(_ask(process, f"http://127.0.0.1:{port}/v1/classify?top_k=5", image, queries))
        except UnavailableError as error:
            said = (home / _LOG).read_text(errors="replace").split()
            raise UnavailableError(f"{error}: {' '.join(said)[-_TOLD:]}") from error
        finally:
            end(process, _END_S)
    profiled = json.loads(file.read_text(encoding="utf-8"))
    return counted(workers, queries, profiled["seconds"], profiled["calls"], profiled["others"])


async def _ask(process: subprocess.Popen[bytes], url: str, image: bytes, queries: int) -> None:
    async with aiohttp.ClientSession(headers={"Content-Type": "image/jpeg"}) as http:

        async def ask() -> None:
            async with http.post(url, data=image) as response:
                await response.read()
                response.raise_for_status()

        started = time.monotonic()
        while True:
            try:
                await ask()
                break
            except aiohttp.ClientError as error:
                if process.poll() is not None or time.monotonic() - started > _PATIENCE_S:
                    raise UnavailableError(f"serfer serve gives no answer: {error}") from error
                await asyncio.sleep(_AGAIN_S)
        for _ in range(_WARM_UP):
            await ask()
        process.send_signal(signal.SIGUSR1)
        for _ in range(queries):
            await ask()
        process.send_signal(signal.SIGUSR2)
        await ask()  # it has seen the signal by the end of this one


def results(measured: Sequence[QueryCounts], network: str) -> Results:
    head = ("part", *(f"{what}, {one.workers}" for one in measured for what in ("calls", "share")))
    order = sorted(_PARTS, key=lambda part: -sum(one.seconds[part] for one in measured))
    rows = [(part, *(cell for one in measured for cell in _cells(one, part))) for part in order]
    rows.append(("all", *(cell for one in measured for cell in (f"{sum(one.calls.values()):,.0f}", ""))))
    records = [
        {"workers": one.workers, "queries": one.queries, "calls": one.calls, "seconds": one.seconds} for one in measured
    ]
    said = f"{network}, one query in flight; shares are of the thread of the event loop"
    return Results(records, [Table(head, rows)], [said, *stamp_now().lines])


def _cells(one: QueryCounts, part: str) -> tuple[str, str]:
    return f"{one.calls[part]:,.0f}", f"{one.seconds[part] / sum(one.seconds.values()):.0%}"


def command(
    model: Annotated[str, typer.Option(help="A network of the zoo.")] = "squeezenet",
    size: Annotated[int, typer.Option(min=32, help="The side of its images, in pixels.")] = 96,
    queries: Annotated[int, typer.Option(min=1, help="Queries, one after the other.")] = 300,
    as_json: JsonOption = False,
) -> None:
    """Count what a query takes in the first process of serfer serve, by part (docs/results/peers.md)."""
    with status_line() as progress, tempfile.TemporaryDirectory(prefix="serfer-profile-") as home:
        progress(f"writing {model}")
        network = Path(home, f"{model}.onnx")
        write_onnx(model, size, network)
        measured = [measure(network, workers, queries, Path(home), progress) for workers in _WORKERS]
    publish(results(measured, f"{model} at {size} px"), as_json=as_json)
