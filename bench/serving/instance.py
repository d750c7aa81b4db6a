"""Bursts and steady loads at an instance over HTTP, with batching and without: throughput and latency.

    bench ── HTTP, Open Inference Protocol, one image of pixels a query ──> serfer instance --max-batch N    "batched"
                                                                       └──> serfer instance --max-batch 1    "single"

Latencies count from scheduled arrivals. Client and instance share this machine's processors; on a machine with a GPU
the same command measures that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Annotated

import aiohttp
import numpy as np
import typer

from serfer.cli.shared.options import JsonOption, status_line
from serfer.core.exactness import difference
from serfer.core.inference_protocol import HEADER
from serfer.core.plan import Plan
from serfer.drivers.instance.open_inference import decode_answer, encode_request
from serfer.pipeline.reference import unsplit
from serfer_bench.core.arrivals import burst, poisson
from serfer_bench.core.options import ModelOption, PlanOption, RowsOption, image_plan, plan_of
from serfer_bench.core.processes import serving
from serfer_bench.core.quantiles import holds, percentiles
from serfer_bench.core.results import publish_rows, require_answers
from serfer_bench.core.workload import Sent, run

BURSTS = (8, 32, 64, 128, 256, 1000)
"""Those of SerFer's figures 9 and 11 (section 6.1)."""
_CONNECTIONS = 256
_EXAMPLES = 8
_PATIENCE_S = 900.0
_MS_PER_S = 1000.0
_HALF_ERROR = 0.05  # of the logits' range: serfer study tune measures what fp16 loses; more than this is an error
_REFUSED, _LATE, _WRONG = "refused", "late", "wrong"
_ERRORS = {HTTPStatus.TOO_MANY_REQUESTS: _REFUSED, HTTPStatus.GATEWAY_TIMEOUT: _LATE}
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Workload:
    """Bursts of so many queries, and Poisson loads of so many a second for `seconds`.

    `deadline_ms` is each query's; `rounds` is how often each load comes, to one instance after the other. Answers of a
    `precision` of fp16 may differ.
    """

    bursts: Sequence[int] = BURSTS
    rates: Sequence[float] = ()
    seconds: float = 20.0
    rounds: int = 3
    deadline_ms: int = 600_000
    precision: str = "fp32"

    def loads(self, number: int) -> Iterator[tuple[str, Sequence[float]]]:
        for queries in self.bursts:
            yield f"burst of {queries:,}", burst(queries)
        for rate in self.rates:
            yield f"{rate:g}/s", poisson(rate, self.seconds, number)


@dataclass(frozen=True)
class InstanceTime:
    """A load's queries of all rounds at one instance: quantiles of latency in ms, of those that were answered.

    `images_per_s` is the median round's, from the first arrival to the last answer; `batch` is the mean number
    of images that ran together, as queries see it. Some may be refused (429), or late (504); wrong answers (rule 1)
    count as failed.
    """

    system: str
    device: str
    load: str
    queries: int
    answered: int
    refused: int
    late: int
    failed: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    images_per_s: float
    batch: float

    @property
    def shown(self) -> dict[str, str]:
        return {
            "system": self.system,
            "device": self.device,
            "load": self.load,
            "answered": f"{self.answered:,}",
            "refused": f"{self.refused:,}",
            "late": f"{self.late:,}",
            "failed": f"{self.failed:,}",
            **{
                f"p{share} ms": f"{ms:,.0f}" if holds(self.answered, share) else ""
                for share, ms in ((50, self.p50_ms), (95, self.p95_ms), (99, self.p99_ms))
            },
            "images/s": f"{self.images_per_s:,.1f}",
            "batch": f"{self.batch:.1f}",
        }


@dataclass(frozen=True)
class _Answer:
    batch: int = 0
    error: str = ""


_Rounds = list[list[Sent[_Answer]]]


@dataclass(frozen=True, eq=False)
class _System:
    name: str
    device: str
    url: str
    model: str
    examples: Sequence[tuple[bytes, int, np.ndarray]]
    exact: bool


def systems(max_batch: int | None, window_ms: float | None) -> dict[str, list[str]]:
    batched = [] if max_batch is None else ["--max-batch", str(max_batch)]
    waiting = {} if window_ms is None else {"window": [*batched, "--window-ms", str(window_ms)]}
    return {"batched": batched, **waiting, "single": ["--max-batch", "1"]}


def measure(
    directory: Path,
    options: Mapping[str, Sequence[str]],
    workload: Workload,
    *,
    url: str | None = None,
    progress: Progress = lambda _: None,
) -> list[InstanceTime]:
    plan = image_plan(directory)
    examples = _examples_of(plan, directory, workload)
    with ExitStack() as stack:
        running = []
        for name, more in {"given": ()}.items() if url else options.items():
            progress(f"starting the instance {name}")
            report = {"url": url} if url else stack.enter_context(serving("instance", directory, more))
            exact = workload.precision == "fp32"
            running.append(_System(name, report.get("device", "?"), report["url"], plan.model, examples, exact))
        ends = asyncio.run(_all(running, workload, progress))
    return [_row(system, load, rounds) for (system, load), rounds in ends.items()]


def _examples_of(plan: Plan, directory: Path, workload: Workload) -> list[tuple[bytes, int, np.ndarray]]:
    shape, whole = plan.input, unsplit(plan, directory)
    size = (_EXAMPLES, 1, shape.height, shape.width, shape.channels)
    images = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    timeout_s = workload.deadline_ms / _MS_PER_S
    return [(*encode_request(image, "image", "logits", timeout_s), whole(image)) for image in images]


async def _all(
    systems: Sequence[_System], workload: Workload, progress: Progress
) -> dict[tuple[_System, str], _Rounds]:
    ends: dict[tuple[_System, str], _Rounds] = {}
    connector = aiohttp.TCPConnector(limit=0, limit_per_host=_CONNECTIONS)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(_PATIENCE_S)) as http:
        for system in systems:
            progress(f"warming up {system.name}")
            await _load(http, system, burst(2 * _EXAMPLES))
        for number in range(workload.rounds):
            for load, arrivals in workload.loads(number):
                for system in systems:
                    progress(f"{load} at {system.name}: round {number + 1} of {workload.rounds}")
                    ends.setdefault((system, load), []).append(await _load(http, system, arrivals))
    return ends


async def _load(http: aiohttp.ClientSession, system: _System, arrivals: Sequence[float]) -> list[Sent[_Answer]]:
    return await run(lambda number: asyncio.create_task(_infer(http, system, number)), arrivals, patience_s=_PATIENCE_S)


async def _infer(http: aiohttp.ClientSession, system: _System, number: int) -> _Answer:
    body, header, expected = system.examples[number % len(system.examples)]
    url = f"{system.url}/v2/models/{system.model}/infer"
    async with http.post(url, data=body, headers={HEADER: str(header)}) as reply:
        answer = await reply.read()
        if reply.status != HTTPStatus.OK:
            return _Answer(error=_ERRORS.get(HTTPStatus(reply.status), str(reply.status)))
        inference = decode_answer(answer, reply.headers.get(HEADER), "logits", (1, expected.shape[1]))
    distance = difference(inference.logits, expected)
    right = distance.exact if system.exact else distance.error <= _HALF_ERROR
    return _Answer(inference.batch or 0, "" if right else _WRONG)


def _row(system: _System, load: str, rounds: _Rounds) -> InstanceTime:
    ends = [end for one in rounds for end in one]
    answers = [end.result or _Answer(error=end.error or "") for end in ends]
    times = [end.latency for end, answer in zip(ends, answers, strict=True) if not answer.error]
    p50, p95, p99 = percentiles(times, 50, 95, 99)
    refused, late = (sum(answer.error == word for answer in answers) for word in (_REFUSED, _LATE))
    rates = [sum(_is_answered(end) for end in one) / max(end.ended for end in one) for one in rounds]
    batches = [answer.batch for answer in answers if not answer.error]
    return InstanceTime(
        system=system.name,
        device=system.device,
        load=load,
        queries=len(ends),
        answered=len(times),
        refused=refused,
        late=late,
        failed=len(ends) - len(times) - refused - late,
        p50_ms=p50 * _MS_PER_S,
        p95_ms=p95 * _MS_PER_S,
        p99_ms=p99 * _MS_PER_S,
        images_per_s=float(np.median(rates)),
        batch=float(np.mean(batches or [0])),
    )


def _is_answered(end: Sent[_Answer]) -> bool:
    return end.result is not None and not end.result.error


def command(
    model: ModelOption = None,
    plan: PlanOption = None,
    queries: Annotated[
        list[int] | None,
        typer.Option("--burst", min=1, max=100_000, help="Queries of a burst; may be repeated. By default 8 to 1,000."),
    ] = None,
    rps: Annotated[
        list[float] | None,
        typer.Option(help="Queries a second of a Poisson load, in place of bursts; may be repeated."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="How long a Poisson load lasts.")] = 20.0,
    rounds: Annotated[int, typer.Option(min=1, help="How often each load comes; instances take turns.")] = 3,
    deadline_ms: Annotated[int, typer.Option("--deadline-ms", min=1, max=600_000, help="Of each query.")] = 600_000,
    device: Annotated[str, typer.Option(help="As for serfer instance, like the next three.")] = "auto",
    precision: Annotated[str, typer.Option()] = "fp32",
    max_batch: Annotated[int | None, typer.Option()] = None,
    threads: Annotated[int | None, typer.Option()] = None,
    window_ms: Annotated[
        float | None, typer.Option(help="Measure an instance that waits so long for full batches, too.")
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="An instance that serves already, of this plan, in their place.")
    ] = None,
    directory: RowsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send bursts, or steady loads, of single images to an instance over HTTP, with batching and without."""
    common = [
        "--device",
        device,
        "--precision",
        precision,
        *([] if threads is None else ["--set", f"threads={threads}"]),
    ]
    options = {name: [*common, *more] for name, more in systems(max_batch, window_ms).items()}
    workload = Workload(queries or (() if rps else BURSTS), rps or (), seconds, rounds, deadline_ms, precision)
    plan_directory = plan_of(model, plan)
    with status_line() as progress:
        rows = measure(plan_directory, options, workload, url=url.rstrip("/") if url else None, progress=progress)
    publish_rows(rows, directory, as_json=as_json)
    require_answers(sum(row.failed for row in rows), sum(row.queries for row in rows))
