"""A burst that lasts, over HTTP, at a driver with a pool: where each second's queries ran, and how long they took.

    bench ── POST /v1/classify, when a query is due ──> serfer serve --route ... ──> functions, and then instances
      └── GET /metrics, each second: instances wanted, there, and used

Latencies count from when a query was due. Bench, driver, functions and instances share this machine's processors.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

import aiohttp
import numpy as np
from PIL import Image

from bench.core.server_process import serving
from bench.load.arrivals import poisson
from serfer.core.errors import UsageError
from serfer.core.plan import Plan
from serfer.images import decode_image
from serfer.pictures.draw_latency import latency_scene
from serfer.pictures.latency import Chart, Curve, across_of, down_of, from_zero
from serfer.pictures.pareto import scale_of
from serfer.pictures.render import check_suffix, save
from serfer.pipeline.reference import unsplit
from serfer.plan_directory import load_plan
from serfer.settings import Settings

Progress = Callable[[str], None]
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
    """What became of the queries that were due in some seconds from `second` on; instances as last seen in them.

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
        """Its columns as people read them."""
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


@dataclass(frozen=True)
class _End:
    """How one query ended: when it was due, seconds it took, and its target or what failed."""

    due: float
    latency: float
    outcome: str


@dataclass
class _Seen:
    """What is known so far: ends of queries, and instances by when they were seen."""

    ends: list[_End] = field(default_factory=list)
    instances: list[tuple[float, dict[str, int]]] = field(default_factory=list)


def measure(directory: Path, experiment: Experiment, settings: Settings, progress: Progress) -> list[Step]:
    """Run the experiment with a driver of its own for a plan directory, and return what became of it, in steps.

    Raises UsageError for a plan that takes no images, UnavailableError where the driver does not come up.
    """
    plan = load_plan(directory)
    if plan.preprocess is None:
        raise UsageError("this plan does not say how an image becomes its input: split it with --preprocess")
    questions = _questions(plan, directory, settings)
    known = set(_records(settings))
    progress("starting a driver")
    with serving("serve", directory, experiment.options) as said:
        return _steps(asyncio.run(_run(str(said["url"]), questions, experiment, settings, known, progress)), experiment)


def _questions(plan: Plan, directory: Path, settings: Settings) -> list[tuple[bytes, int]]:
    """Return photographs of noise, and the class that the unsplit network finds in each."""
    whole, questions = unsplit(plan, directory), []
    for seed in range(_PICTURES):
        coarse = np.random.default_rng(seed).integers(0, 256, (12, 16, 3), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(coarse).resize(_SIZE, Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
        assert plan.preprocess is not None  # noqa: S101 - it was looked at before
        pixels = decode_image(buffer.getvalue(), "picture", plan.preprocess, plan.input, settings.image_limits())
        questions.append((buffer.getvalue(), int(whole(pixels[None])[0].argmax())))
    return questions


async def _run(
    url: str,
    questions: Sequence[tuple[bytes, int]],
    experiment: Experiment,
    settings: Settings,
    known: set[Path],
    progress: Progress,
) -> _Seen:
    seen = _Seen()
    timeout = aiohttp.ClientTimeout(_PATIENCE_S)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as http:
        progress("warming up")
        for _ in range(_WARM_ROUNDS):
            warming = _Asking(http, url, questions, _Seen(), time.perf_counter())
            await asyncio.gather(*(warming.one(number, 0.0) for number in range(experiment.warm)))
        ask = _Asking(http, url, questions, seen)
        arrivals = poisson(experiment.rate, experiment.seconds, 0)
        ask.start = time.perf_counter()
        watching = asyncio.create_task(ask.watch(experiment, progress))
        killing = asyncio.create_task(_kill(experiment, settings, known))
        await asyncio.gather(*(ask.one(number, due) for number, due in enumerate(arrivals)))
        await watching
        killing.cancel()
    return seen


async def _kill(experiment: Experiment, settings: Settings, known: set[Path]) -> None:
    """Kill an instance that came since the experiment began, at its time or as soon as there is one."""
    if experiment.kill_s is None:
        return
    await asyncio.sleep(experiment.kill_s)
    while not (found := [path for path in _records(settings) if path not in known]):  # noqa: ASYNC110 - files
        await asyncio.sleep(1.0)
    os.kill(int(json.loads(found[0].read_text(encoding="utf-8"))["process"]["pid"]), signal.SIGKILL)


def _records(settings: Settings) -> list[Path]:
    """Return what pools on this machine have written down of their instances."""
    return sorted((settings.cache_dir / "pools").glob("*/*.json"))


@dataclass
class _Asking:
    """The clients of an experiment; times count from `start`."""

    http: aiohttp.ClientSession
    url: str
    questions: Sequence[tuple[bytes, int]]
    seen: _Seen
    start: float = 0.0

    @property
    def now(self) -> float:
        """Seconds since the first query could come."""
        return time.perf_counter() - self.start

    async def one(self, number: int, due: float) -> None:
        """Ask when it is due, and note how that ends."""
        image, expected = self.questions[number % len(self.questions)]
        if (wait := due - self.now) > 0:
            await asyncio.sleep(wait)
        headers = {"Content-Type": "image/jpeg"}
        try:
            async with self.http.post(f"{self.url}/v1/classify?top_k=1", data=image, headers=headers) as reply:
                answer = await reply.json(content_type=None)
                outcome = _outcome(reply.status, answer, expected)
        except (aiohttp.ClientError, TimeoutError, ValueError) as failure:
            outcome = type(failure).__name__
        self.seen.ends.append(_End(due, self.now - due, outcome))

    async def watch(self, experiment: Experiment, progress: Progress) -> None:
        """Note each second which instances there are, until the load and then the pool are over."""
        while True:
            async with self.http.get(f"{self.url}/metrics") as reply:
                found = {name: int(float(value)) for name, value in _INSTANCES.findall(await reply.text())}
            self.seen.instances.append((self.now, found))
            over = self.now - experiment.seconds
            progress(
                f"{self.now:,.0f} s: {len(self.seen.ends):,} queries ended, {found.get('serving', 0)} instances serve"
            )
            if over > experiment.after_s or (over > 1 and not found.get("on")):
                return
            await asyncio.sleep(1.0)


def _outcome(status: int, answer: dict[str, object], expected: int) -> str:
    """Return a query's target, "refused", "wrong" or what failed."""
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return "refused"
    if status != HTTPStatus.OK:
        return str(status)
    images = answer["images"]
    assert isinstance(images, list)  # noqa: S101 - the service's own
    found = images[0]["predictions"][0]["index"]
    return str(answer["target"]) if found == expected else "wrong"


def _steps(seen: _Seen, experiment: Experiment) -> list[Step]:
    last = max([end.due for end in seen.ends] + [when for when, _ in seen.instances])
    return [
        _step(seen, number * experiment.step_s, experiment.step_s)
        for number in range(int(last / experiment.step_s) + 1)
    ]


def _step(seen: _Seen, begin: float, length: float) -> Step:
    ends = [end for end in seen.ends if begin <= end.due < begin + length]
    outcomes = [end.outcome for end in ends]
    counts = {name: outcomes.count(name) for name in (*_TARGETS, "refused", "wrong")}
    times = [end.latency for end in ends if end.outcome in _TARGETS]
    p50, p99 = np.quantile(times or [0.0], [0.5, 0.99]) * _MS_PER_S
    before = [found for when, found in seen.instances if when < begin + length]
    there = {name: before[-1].get(name, 0) if before else 0 for name in _STATES}
    return Step(
        second=begin,
        queries=len(ends),
        **counts,
        failed=len(ends) - sum(counts.values()),
        p50_ms=float(p50),
        p99_ms=float(p99),
        **there,
    )


def draw(title: str, steps: Sequence[Step], step_s: float, stamp: Sequence[str], out: Path) -> None:
    """Draw an experiment; the format follows from the suffix of `out`."""
    check_suffix(out)
    middles = [step.second + step_s / 2 for step in steps]
    answered = [(at, step) for at, step in zip(middles, steps, strict=True) if step.serverless + step.gpu]
    targets = [
        Curve(name, tuple((at, getattr(step, name) / step_s) for at, step in zip(middles, steps, strict=True)))
        for name in _TARGETS
    ]
    instances = [
        Curve(name, tuple((at, float(getattr(step, name))) for at, step in zip(middles, steps, strict=True)))
        for name in ("on", "serving")
    ]
    latency = [
        Curve(name, tuple((at, getattr(step, f"{name}_ms")) for at, step in answered)) for name in ("p50", "p99")
    ]
    charts = [
        _chart("queries answered", "queries a second", targets, middles),
        _chart("instances", "instances", instances, middles),
        _chart("latency", "ms", latency, middles, log=True),
    ]
    save(latency_scene(title, charts, _keys(steps), stamp), out)


def _chart(title: str, down: str, curves: Sequence[Curve], times: Sequence[float], *, log: bool = False) -> Chart:
    values = down_of(curves)
    scale = scale_of(values or [1.0]) if log else from_zero(values)
    return Chart(title, "seconds", down, from_zero([*across_of(curves), *times]), scale, tuple(curves))


def _keys(steps: Sequence[Step]) -> list[str]:
    queries = sum(step.queries for step in steps)
    total = {name: sum(getattr(step, name) for step in steps) for name in _TARGETS}
    return [
        f"serverless: {total['serverless']:,} of {queries:,} queries ran on the plan's functions",
        f"gpu: {total['gpu']:,} ran on instances",
        "on: instances that are paid for, those that boot among them",
        "serving: instances that the driver sends queries to",
        "p50: half of the queries were faster, counted from when they were due",
        "p99: of a hundred queries, one was slower",
    ]
