"""A sustained burst over HTTP at a driver with a pool: where each second's queries ran, and their latencies.

    bench ── POST /v1/classify, at each arrival ──> serfer serve --route ... ──> functions, and then instances
      └── GET /metrics, each second: instances wanted, there, and used

Latencies count from scheduled arrivals. Bench, driver, functions and instances share this machine's processors.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Annotated

import aiohttp
import typer

from serfer.cli.shared.options import JsonOption, status_lines
from serfer.control.scenario import scenario_file
from serfer.core.plan import Plan
from serfer.images import Recipe, decode_image
from serfer.pipeline.reference import unsplit
from serfer.settings import Settings, load_settings
from serfer_bench.core.arrivals import poisson
from serfer_bench.core.options import ModelOption, PlanOption, RowsOption, image_plan, plan_of
from serfer_bench.core.photographs import photograph
from serfer_bench.core.processes import serving
from serfer_bench.core.quantiles import percentiles
from serfer_bench.core.results import publish_rows, require_answers
from serfer_bench.core.workload import Sent, run

Progress = Callable[[str], None]
_Instances = Sequence[tuple[float, dict[str, int]]]
_PICTURES = 8
_WARM_ROUNDS = 2  # the first starts environments, the second finds them ready
_SIZE = (640, 480)
_PATIENCE_S = 120.0
_MS_PER_S = 1000.0
_STATES = ("wanted", "on", "serving")
_INSTANCES = re.compile(r'^serfer_pool_instances\{state="(\w+)"\} (\S+)$', re.MULTILINE)
_TARGETS = ("serverless", "gpu")


@dataclass(frozen=True)
class Experiment:
    """A Poisson load of `rate` queries a second for `seconds`, and at most `after_s` until the instances are gone.

    Before it, `warm` queries at once, twice. At `kill_s`, if it is given, an instance of the pool on this machine is
    killed. `options` are the driver's.
    """

    rate: float
    seconds: float
    after_s: float
    step_s: float
    kill_s: float | None
    warm: int
    options: Sequence[str]


@dataclass(frozen=True)
class Step:
    """The queries scheduled in some seconds from `second` on, by outcome; instances as last seen in them.

    `wrong` are answers whose best class is not the unsplit network's, `failed` all ends but an answer and a 429.
    """

    second: float
    queries: int
    serverless: int
    gpu: int
    refused: int
    wrong: int
    failed: int
    p50_ms: float
    p99_ms: float
    wanted: int
    on: int
    serving: int

    @property
    def shown(self) -> dict[str, str]:
        answered = self.serverless + self.gpu
        return {
            "second": f"{self.second:g}",
            "queries": f"{self.queries:,}",
            "serverless": f"{self.serverless / answered:.0%}" if answered else "",
            "gpu": f"{self.gpu / answered:.0%}" if answered else "",
            "refused": f"{self.refused:,}",
            "wrong": f"{self.wrong:,}",
            "failed": f"{self.failed:,}",
            "p50 ms": f"{self.p50_ms:,.0f}" if answered else "",
            "p99 ms": f"{self.p99_ms:,.0f}" if answered else "",
            "wanted": str(self.wanted),
            "on": str(self.on),
            "serving": str(self.serving),
        }


def measure(directory: Path, experiment: Experiment, settings: Settings, progress: Progress) -> list[Step]:
    examples = examples_of(image_plan(directory), directory, settings)
    before = set(_records(settings))
    progress("starting a driver")
    with serving("serve", directory, experiment.options) as report:
        clients = _Clients(str(report["url"]), examples)
        asyncio.run(_run(clients, experiment, settings, before, progress))
    return _steps(clients.ends, clients.instances, experiment)


def examples_of(plan: Plan, directory: Path, settings: Settings) -> list[tuple[bytes, int]]:
    whole, examples = unsplit(plan, directory), []
    for seed in range(_PICTURES):
        image = photograph(_SIZE, seed)
        assert plan.preprocess is not None  # noqa: S101 - it was looked at before
        recipe = Recipe(plan.preprocess, plan.input, settings.image_limits())
        pixels = decode_image(image, "picture", recipe).pixels
        examples.append((image, int(whole(pixels[None])[0].argmax())))
    return examples


async def _run(
    clients: _Clients, experiment: Experiment, settings: Settings, before: set[Path], progress: Progress
) -> None:
    timeout = aiohttp.ClientTimeout(_PATIENCE_S)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as http:

        def send(number: int) -> asyncio.Task[str]:
            return asyncio.create_task(clients.classify(http, number))

        progress("warming up")
        for _ in range(_WARM_ROUNDS):
            await run(send, (0.0,) * experiment.warm)
        clients.start()
        watching = asyncio.create_task(clients.watch(http, experiment, progress))
        killing = asyncio.create_task(_kill(experiment, settings, before))
        arrivals = poisson(experiment.rate, experiment.seconds, 0)
        clients.ends = await run(send, arrivals, patience_s=_PATIENCE_S)
        await watching
        killing.cancel()


async def _kill(experiment: Experiment, settings: Settings, before: set[Path]) -> None:
    if experiment.kill_s is None:
        return
    await asyncio.sleep(experiment.kill_s)
    while not (records := [path for path in _records(settings) if path not in before]):  # noqa: ASYNC110 - files
        await asyncio.sleep(1.0)
    os.kill(int(json.loads(records[0].read_text(encoding="utf-8"))["process"]["pid"]), signal.SIGKILL)


def _records(settings: Settings) -> list[Path]:
    return sorted((settings.cache_dir / "pools").glob("*/*.json"))


@dataclass
class _Clients:
    """The clients of an experiment: ends of queries, and instances with the seconds from its start when seen."""

    url: str
    examples: Sequence[tuple[bytes, int]]
    ends: list[Sent[str]] = field(default_factory=list)
    instances: list[tuple[float, dict[str, int]]] = field(default_factory=list)
    _ended: int = 0
    _start: float = 0.0

    def start(self) -> None:
        self._ended, self._start = 0, time.perf_counter()

    async def classify(self, http: aiohttp.ClientSession, number: int) -> str:
        try:
            return await classify(http, self.url, *self.examples[number % len(self.examples)])
        finally:
            self._ended += 1

    async def watch(self, http: aiohttp.ClientSession, experiment: Experiment, progress: Progress) -> None:
        while True:
            async with http.get(f"{self.url}/metrics") as reply:
                states = {name: int(float(value)) for name, value in _INSTANCES.findall(await reply.text())}
            now = time.perf_counter() - self._start
            self.instances.append((now, states))
            progress(f"{now:,.0f} s: {self._ended:,} queries ended, {states.get('serving', 0)} instances serve")
            over = now - experiment.seconds
            if over > experiment.after_s or (over > 1 and not states.get("on")):
                return
            await asyncio.sleep(1.0)


async def classify(http: aiohttp.ClientSession, url: str, image: bytes, expected: int) -> str:
    headers = {"Content-Type": "image/jpeg"}
    async with http.post(f"{url}/v1/classify?top_k=1", data=image, headers=headers) as reply:
        return outcome(reply.status, await reply.json(content_type=None), expected)


def outcome(status: int, answer: dict[str, object], expected: int) -> str:
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return "refused"
    if status != HTTPStatus.OK:
        return str(status)
    images = answer["images"]
    assert isinstance(images, list)  # noqa: S101 - the service's own
    return str(answer["target"]) if images[0]["predictions"][0]["index"] == expected else "wrong"


def _steps(ends: Sequence[Sent[str]], instances: _Instances, experiment: Experiment) -> list[Step]:
    last, length = max([end.scheduled for end in ends] + [when for when, _ in instances]), experiment.step_s
    return [_step(ends, instances, number * length, length) for number in range(int(last / length) + 1)]


def _step(ends: Sequence[Sent[str]], instances: _Instances, begin: float, length: float) -> Step:
    ends = [end for end in ends if begin <= end.scheduled < begin + length]
    outcomes = [end.result for end in ends]
    counts = {name: outcomes.count(name) for name in (*_TARGETS, "refused", "wrong")}
    times = [end.latency for end in ends if end.result in _TARGETS]
    p50, p99 = percentiles(times, 50, 99)
    seen = [states for when, states in instances if when < begin + length]
    last = {name: seen[-1].get(name, 0) if seen else 0 for name in _STATES}
    return Step(
        second=begin,
        queries=len(ends),
        **counts,
        failed=len(ends) - sum(counts.values()),
        p50_ms=p50 * _MS_PER_S,
        p99_ms=p99 * _MS_PER_S,
        **last,
    )


def command(
    scenario: Annotated[
        Path, typer.Option(metavar="FILE or NAME", help="Prices and speeds that routing reckons with.")
    ],
    model: ModelOption = None,
    plan: PlanOption = None,
    policy: Annotated[str, typer.Option("--route", help="As for serfer serve, like the next three.")] = "auto",
    instances: Annotated[str, typer.Option(metavar="SPEC")] = "local",
    workers: Annotated[str, typer.Option()] = "local",
    max_usd_per_hour: Annotated[float | None, typer.Option("--max-usd-per-hour")] = None,
    rps: Annotated[float, typer.Option(min=0.01, help="Queries a second of the burst, as a Poisson process.")] = 10.0,
    seconds: Annotated[float, typer.Option(min=1, max=86_400, help="How long it lasts.")] = 180.0,
    after_s: Annotated[float, typer.Option(min=0, help="How long to watch the instances go after it.")] = 120.0,
    kill_s: Annotated[
        float | None, typer.Option(min=0, help="Kill an instance then, or as soon as there is one (local ones).")
    ] = None,
    warm: Annotated[int, typer.Option(min=0, max=1000, help="Queries at once before it, to warm functions up.")] = 4,
    step_s: Annotated[float, typer.Option(min=1, help="Seconds of a row.")] = 5.0,
    directory: RowsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send a sustained burst to a driver with a pool, and show second by second where its queries ran."""
    options = ["--route", policy, "--instances", instances, "--workers", workers]
    options += ["--set", f"scenario={scenario_file(scenario)}"]
    options += [] if max_usd_per_hour is None else ["--set", f"max_usd_per_hour={max_usd_per_hour}"]
    experiment = Experiment(rps, seconds, after_s, step_s, kill_s, warm, options)
    plan_directory = plan_of(model, plan)
    with status_lines() as progress:
        steps = measure(plan_directory, experiment, load_settings(), progress)
    publish_rows(steps, directory, as_json=as_json)
    require_answers(sum(step.failed + step.wrong for step in steps), sum(step.queries for step in steps))
