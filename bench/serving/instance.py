"""Bursts and steady loads at an instance over HTTP, with batching and without: what it sustains, and how long it takes.

    bench ── HTTP, Open Inference Protocol, one image of pixels a query ──> serfer instance --max-batch N    "batched"
                                                                       └──> serfer instance --max-batch 1    "single"

Latencies count from when a query was due. Client and instance share this machine's processors; on a machine with a GPU
the same command measures that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import aiohttp
import numpy as np

from bench.core.server_process import serving
from bench.load.arrivals import burst, poisson
from drivers.open_inference import HEADER, decode_answer, encode_request
from serfer.core.errors import InputError, UsageError
from serfer.core.exactness import difference
from serfer.core.plan import Plan
from serfer.pipeline.reference import unsplit
from serfer.plan_directory import load_plan

BURSTS = (8, 32, 128, 512, 1000)
_CONNECTIONS = 256
_QUESTIONS = 8
_PATIENCE_S = 900.0
_MS_PER_S = 1000.0
_HALF_ERROR = 0.05  # of the logits' range: what fp16 loses, serfer tune measures; more is no loss but an error
_REFUSED, _LATE, _WRONG = "refused", "late", "wrong"
_ERRORS = {HTTPStatus.TOO_MANY_REQUESTS: _REFUSED, HTTPStatus.GATEWAY_TIMEOUT: _LATE}
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Offer:
    """What is offered: bursts of so many queries, and Poisson loads of so many a second for `seconds`.

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
        """Yield a round's loads: a name, and when its queries are due, in seconds."""
        for queries in self.bursts:
            yield f"burst of {queries:,}", burst(queries)
        for rate in self.rates:
            yield f"{rate:g}/s", poisson(rate, self.seconds, number)


@dataclass(frozen=True)
class InstanceTime:
    """A load's queries of all rounds at one instance: quantiles of latency in ms, of those that were answered.

    `images_per_s` is the median round's, from the first query's due time to the last answer; `batch` is the mean number
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
        """Its columns as people read them."""
        return {
            "system": self.system,
            "device": self.device,
            "load": self.load,
            "answered": f"{self.answered:,}",
            "refused": f"{self.refused:,}",
            "late": f"{self.late:,}",
            "failed": f"{self.failed:,}",
            "p50 ms": f"{self.p50_ms:,.0f}",
            "p95 ms": f"{self.p95_ms:,.0f}",
            "p99 ms": f"{self.p99_ms:,.0f}",
            "images/s": f"{self.images_per_s:,.1f}",
            "batch": f"{self.batch:.1f}",
        }


@dataclass(frozen=True)
class _End:
    """How one query ended: seconds since it was due, when that was since the load began, its batch, or what failed."""

    latency: float
    ended: float
    batch: int = 0
    error: str = ""


@dataclass(frozen=True, eq=False)
class _System:
    """An instance that serves, and the questions that it is asked: request bodies with their right answers."""

    name: str
    device: str
    url: str
    model: str
    questions: Sequence[tuple[bytes, int, np.ndarray]]
    exact: bool


def systems(most: int | None, window_ms: float | None) -> dict[str, list[str]]:
    """Return the instances that are compared, by name, and the options that make each."""
    batched = [] if most is None else ["--max-batch", str(most)]
    found = {"batched": batched}
    if window_ms is not None:
        found["window"] = [*batched, "--window-ms", str(window_ms)]
    return {**found, "single": ["--max-batch", "1"]}


def measure(
    directory: Path,
    options: Mapping[str, Sequence[str]],
    offer: Offer,
    *,
    url: str | None = None,
    progress: Progress = lambda _: None,
) -> list[InstanceTime]:
    """Start the instances with their options, or take the one at `url`, and offer each load to one after the other."""
    plan = load_plan(directory)
    if plan.preprocess is None:
        raise UsageError("this plan does not say how an image becomes its input: split it with --preprocess")
    questions = _questions(plan, directory, offer)
    with ExitStack() as stack:
        found = []
        for name, more in {"given": ()}.items() if url else options.items():
            progress(f"starting the instance {name}")
            said = {"url": url} if url else stack.enter_context(serving("instance", directory, more))
            found.append(
                _System(name, said.get("device", "?"), said["url"], plan.model, questions, offer.precision == "fp32")
            )
        ends = asyncio.run(_all(found, offer, progress))
    return [_row(system, load, rounds) for (system, load), rounds in ends.items()]


def _questions(plan: Plan, directory: Path, offer: Offer) -> list[tuple[bytes, int, np.ndarray]]:
    shape, whole = plan.input, unsplit(plan, directory)
    size = (_QUESTIONS, 1, shape.height, shape.width, shape.channels)
    images = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    timeout_s = offer.deadline_ms / _MS_PER_S
    return [(*encode_request(image, "image", "logits", timeout_s), whole(image)) for image in images]


async def _all(
    found: Sequence[_System], offer: Offer, progress: Progress
) -> dict[tuple[_System, str], list[list[_End]]]:
    ends: dict[tuple[_System, str], list[list[_End]]] = {}
    connector = aiohttp.TCPConnector(limit=0, limit_per_host=_CONNECTIONS)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(_PATIENCE_S)) as http:
        for system in found:
            progress(f"warming up {system.name}")
            await _load(http, system, burst(2 * _QUESTIONS))
        for number in range(offer.rounds):
            for load, arrivals in offer.loads(number):
                for system in found:
                    progress(f"{load} at {system.name}: round {number + 1} of {offer.rounds}")
                    ends.setdefault((system, load), []).append(await _load(http, system, arrivals))
    return ends


async def _load(http: aiohttp.ClientSession, system: _System, arrivals: Sequence[float]) -> list[_End]:
    start = time.perf_counter()
    return list(await asyncio.gather(*(_ask(http, system, number, start, due) for number, due in enumerate(arrivals))))


async def _ask(http: aiohttp.ClientSession, system: _System, number: int, start: float, due: float) -> _End:
    body, header, expected = system.questions[number % len(system.questions)]
    if (wait := start + due - time.perf_counter()) > 0:
        await asyncio.sleep(wait)
    url, batch, error = f"{system.url}/v2/models/{system.model}/infer", 0, ""
    try:
        async with http.post(url, data=body, headers={HEADER: str(header)}) as reply:
            answer = await reply.read()
            if reply.status == HTTPStatus.OK:
                found = decode_answer(answer, reply.headers.get(HEADER), "logits", (1, expected.shape[1]))
                batch = found.batch or 0
                apart = difference(found.logits, expected)
                error = "" if (apart.exact if system.exact else apart.error <= _HALF_ERROR) else _WRONG
            else:
                error = _ERRORS.get(HTTPStatus(reply.status), str(reply.status))
    except (aiohttp.ClientError, TimeoutError, InputError) as failure:
        error = type(failure).__name__
    ended = time.perf_counter() - start
    return _End(ended - due, ended, batch, error)


def _row(system: _System, load: str, rounds: Sequence[Sequence[_End]]) -> InstanceTime:
    ends = [end for one in rounds for end in one]
    answered = [end for end in ends if not end.error]
    p50, p95, p99 = np.quantile([end.latency for end in answered] or [0.0], [0.5, 0.95, 0.99]) * _MS_PER_S
    refused, late = (sum(end.error == word for end in ends) for word in (_REFUSED, _LATE))
    rates = [sum(not end.error for end in one) / max(end.ended for end in one) for one in rounds]
    return InstanceTime(
        system=system.name,
        device=system.device,
        load=load,
        queries=len(ends),
        answered=len(answered),
        refused=refused,
        late=late,
        failed=len(ends) - len(answered) - refused - late,
        p50_ms=float(p50),
        p95_ms=float(p95),
        p99_ms=float(p99),
        images_per_s=float(np.median(rates)),
        batch=float(np.mean([end.batch for end in answered] or [0])),
    )
