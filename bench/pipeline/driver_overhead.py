"""The driver by itself: a burst over functions that do nothing, against the same invocations without a driver.

The tasks of the burst are recorded and sent again: by our client with no pipeline around it, as many at once, for the
rate; and one after the other by `boto3.client("lambda").invoke`, for the processor time of an invocation.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from botocore.credentials import Credentials

from serfer.cli.shared.options import JsonOption, status_line
from serfer.core.errors import SerferError
from serfer.core.plan import Plan
from serfer.core.run_machine import Failure
from serfer.core.wire import Crop, Report, Task, decode_task, encode_report, encode_task
from serfer.drivers.lambda_http import LambdaInvoker
from serfer.drivers.push import PushDriver
from serfer.local.lambda_.function import REGION
from serfer.local.lambda_.http_server import Exchange, HttpServer
from serfer.plan_directory import load_plan
from serfer.settings import load_settings
from serfer.storage.memory import MemoryStore
from serfer_bench.core.null_workers import last_stage, null_report
from serfer_bench.core.options import FixedPlanOption
from serfer_bench.core.plans import bench_plan
from serfer_bench.core.tables import Results, Table, publish

_MOST_BYTES = 6 << 20


class NullService:
    """Answers invocations of a plan's tasks; outputs that ride along are zeros."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._answers: dict[tuple[int, int, int, int, bool], bytes] = {}

    def handle(self, exchange: Exchange) -> None:
        task = decode_task(json.loads(exchange.body))
        if last_stage(task) == len(self._plan.stages) - 1:  # its checksum is the query's own
            exchange.reply(200, self._answer(task))
            return
        key = (task.stage, last_stage(task), task.tile, task.batch, task.inline)
        if key not in self._answers:
            self._answers[key] = self._answer(task)
        exchange.reply(200, self._answers[key])

    def _answer(self, task: Task) -> bytes:
        return json.dumps(encode_report(null_report(self._plan, task, [0.0] * len(self._plan.stages)))).encode()


@contextmanager
def null_service(directory: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "serfer_bench.pipeline.driver_overhead", str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        if process.stdin is None or process.stdout is None:
            raise AssertionError("both are pipes")
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


async def _serve(directory: Path) -> None:
    server = HttpServer(NullService(load_plan(directory)).handle, lambda _: _MOST_BYTES)
    port = server.listen("127.0.0.1")
    sys.stdout.write(f"http://127.0.0.1:{port}\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))


_CONCURRENCY = 64
_BARE = 1000  # invocations through boto3
_INLINE_LIMIT = 4_400_000
_DEADLINE_S = 600.0
_MS_PER_S = 1000
Progress = Callable[[str], None]


@dataclass(frozen=True)
class DriverOverhead:
    """Invocations a second of a burst and of the bare client, and processor milliseconds an invocation.

    `lost` counts queries without an answer. Payloads are the same in all three, `payload_bytes` on average.
    """

    plan: str
    queries: int
    tasks: int
    lost: int
    driver_rate: float
    client_rate: float
    driver_ms: float
    client_ms: float
    boto3_ms: float
    payload_bytes: float

    @property
    def rate(self) -> float:
        return self.driver_rate / self.client_rate

    @property
    def against_boto3(self) -> float:
        return self.driver_ms / self.boto3_ms


class _Recorder:
    def __init__(self, invoker: LambdaInvoker) -> None:
        self._invoker = invoker
        self.tasks: list[tuple[str, Task]] = []

    async def invoke(self, function: str, task: Task, timeout_s: float) -> Report | Failure:
        self.tasks.append((function, task))
        return await self._invoker.invoke(function, task, timeout_s)

    async def close(self) -> None:
        await self._invoker.close()


def measure(directory: Path, queries: int = 1000, progress: Progress = lambda _: None) -> DriverOverhead:
    plan = load_plan(directory)
    crops = _crops(plan)
    with null_service(directory) as url:
        if not url:
            raise SerferError("the null service did not start")
        progress("recording what a query sends")
        recorded = asyncio.run(_record(plan, url, crops))
        progress(f"a burst of {queries} queries")
        lost, *driver = asyncio.run(_burst(plan, url, crops, queries))
        progress("the same invocations with no pipeline around them")
        client = asyncio.run(_bare(url, recorded * queries))
        progress("the same through boto3")
        boto3_ms = _boto3(url, (recorded * _BARE)[:_BARE])
    tasks = queries * len(recorded)
    return DriverOverhead(
        plan=plan.model,
        queries=queries,
        tasks=tasks,
        lost=lost,
        driver_rate=tasks / driver[0],
        client_rate=tasks / client[0],
        driver_ms=driver[1] / tasks * _MS_PER_S,
        client_ms=client[1] / tasks * _MS_PER_S,
        boto3_ms=boto3_ms,
        payload_bytes=sum(len(encode_task(task)) for _, task in recorded) / len(recorded),
    )


def _crops(plan: Plan) -> list[Crop]:
    shape = plan.input
    pixels = np.random.default_rng(0).integers(0, 256, (1, shape.height, shape.width, shape.channels), dtype=np.uint8)
    return [Crop("uint8", pixels[:, *tile.inputs[0].slices].tobytes()) for tile in plan.stages[0].tiles]


def _client(url: str) -> LambdaInvoker:
    return LambdaInvoker(url, REGION, Credentials("local", "local"))


def _driver(plan: Plan, invoker: Any) -> PushDriver:  # noqa: ANN401 - an invoker
    return PushDriver(plan, invoker, MemoryStore(), inline_limit=_INLINE_LIMIT, slots=_CONCURRENCY, hedge=False)


async def _record(plan: Plan, url: str, crops: Sequence[Crop]) -> list[tuple[str, Task]]:
    recorder = _Recorder(_client(url))
    driver = _driver(plan, recorder)
    await driver.run(crops, 1, _DEADLINE_S)
    await driver.close()
    await recorder.close()
    return recorder.tasks


async def _burst(plan: Plan, url: str, crops: Sequence[Crop], queries: int) -> tuple[int, float, float]:
    client = _client(url)
    driver = _driver(plan, client)
    clocks = time.perf_counter(), time.process_time()
    answers = await asyncio.gather(*(driver.run(crops, 1, _DEADLINE_S) for _ in range(queries)), return_exceptions=True)
    await driver.close()
    spent = time.perf_counter() - clocks[0], time.process_time() - clocks[1]
    await client.close()
    return sum(isinstance(answer, BaseException) for answer in answers), *spent


async def _bare(url: str, tasks: Sequence[tuple[str, Task]]) -> tuple[float, float]:
    client, waiting = _client(url), iter(tasks)

    async def one_after_the_other() -> None:
        for function, task in waiting:
            await client.invoke(function, task, _DEADLINE_S)

    clocks = time.perf_counter(), time.process_time()
    await asyncio.gather(*(one_after_the_other() for _ in range(_CONCURRENCY)))
    spent = time.perf_counter() - clocks[0], time.process_time() - clocks[1]
    await client.close()
    return spent


def _boto3(url: str, tasks: Sequence[tuple[str, Task]]) -> float:
    import boto3  # noqa: PLC0415 - slow to import

    session = boto3.Session(aws_access_key_id="local", aws_secret_access_key="local", region_name=REGION)  # noqa: S106
    client = session.client("lambda", endpoint_url=url)
    payloads = [(function, encode_task(task)) for function, task in tasks]
    client.invoke(FunctionName=payloads[0][0], Payload=payloads[0][1])["Payload"].read()
    started = time.process_time()
    for function, payload in payloads:
        client.invoke(FunctionName=function, Payload=payload)["Payload"].read()
    return (time.process_time() - started) / len(payloads) * _MS_PER_S


def results(result: DriverOverhead) -> Results:
    rows = (
        ("driver and client", f"{result.driver_rate:,.0f}", f"{result.driver_ms:.3f}"),
        ("client alone", f"{result.client_rate:,.0f}", f"{result.client_ms:.3f}"),
        ("boto3", "", f"{result.boto3_ms:.3f}"),
    )
    return Results(
        [{**asdict(result), "rate": result.rate, "against_boto3": result.against_boto3}],
        [Table(("invoked by", "invocations a second", "processor ms each"), rows)],
        [
            (
                f"{result.plan}, {result.queries} queries, {result.tasks} invocations of {result.payload_bytes:,.0f} "
                f"bytes on average, {result.lost} queries lost"
            ),
            f"{result.rate:.0%} of the client's rate, {result.against_boto3:.0%} of boto3's processor time",
        ],
    )


def command(
    plan: FixedPlanOption = "alexnet",
    queries: Annotated[int, typer.Option(min=1, help="Queries of the burst.")] = 1000,
    as_json: JsonOption = False,
) -> None:
    """Measure the driver's own cost: a burst over functions that do nothing, against the bare client and boto3."""
    with status_line() as progress:
        result = measure(bench_plan(plan, load_settings(), progress), queries, progress)
    publish(results(result), as_json=as_json)
    if result.lost:
        raise SerferError(f"{result.lost} of {result.queries} queries were lost")
