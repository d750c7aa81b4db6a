"""Prometheus metrics at GET /metrics; docs/reference/metrics.md lists every name.

Labels have few values, none of them a client's: routes are templates, models those that are served, and whatever else
is "other". So clients cannot create series, and no name, key or image is in one.
"""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from serfer import __version__
from serfer.api.http.problems import OVERLOADED, Problem
from serfer.api.service import Service, ServiceResult
from serfer.core.errors import (
    DeadlineError,
    InputError,
    OverloadedError,
    QueryError,
    SerferError,
    UnavailableError,
    UsageError,
)

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
METHODS = frozenset({"GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT", "PATCH"})
_OTHER = "other"
_PATIENCE_S = 0.5  # a scrape does not wait longer for a check of store and functions: it reports the last one
_OUTCOMES = (
    (DeadlineError, "late"),
    (OverloadedError, "shed"),
    (UnavailableError, "unavailable"),
    (QueryError, "failed"),
    (InputError, "refused"),
    (UsageError, "refused"),
    (SerferError, "failed"),
    (asyncio.CancelledError, "cancelled"),
)
_TOTALS = (
    ("serfer_retries", "Tasks tried again."),
    ("serfer_hedges", "Late tasks that got a duplicate."),
    ("serfer_gangs_disbanded", "Gangs that were aborted and ran stage by stage."),
    ("serfer_warm_ups", "Requests that warmed functions of later stages or the other plan."),
    ("serfer_restarts", "Queries restarted after lost or altered pieces."),
)


class Metrics:
    """Counts what one application does, in a registry of its own; `plans` are the served models' plan digests."""

    def __init__(self, plans: Mapping[str, str]) -> None:
        registry = self.registry = CollectorRegistry()
        self.over_quota = self.overloaded = 0

        counter, histogram = partial(_Counter, registry), partial(_Histogram, registry)
        self._requests = counter("serfer_http_requests", "Requests answered.", ["route", "method", "status"])
        self._seconds = histogram(
            "serfer_http_request_seconds", "Seconds from a request's head to its last byte.", ["route"]
        )
        self._bytes = counter("serfer_http_request_bytes", "Bytes of bodies received.", ["route"])
        self._kept = Counter("serfer_results_kept", "Results kept for their owners to fetch.", registry=registry)
        # threads count these, too
        self._result_bytes = Counter(
            "serfer_result_bytes", "Bytes of results kept and sent.", ["direction"], registry=registry
        )
        self._retries = Counter(
            "serfer_call_retries", "Calls of stores and the registry tried again.", ["call"], registry=registry
        )
        stage = ["model", "stage"]
        self._queries = counter("serfer_queries", "Queries that ended.", ["model", "target", "outcome"])
        self._query_seconds = histogram("serfer_query_seconds", "Seconds from decoding to the answer.", ["model"])
        self._queue = histogram("serfer_queue_seconds", "Seconds that queries waited for their turn.", [])
        self._stages = histogram("serfer_stage_seconds", "Wall time of stages, seconds.", stage)
        self._tasks = counter("serfer_tasks", "Tasks that answered queries.", stage)
        self._cold = counter("serfer_cold_starts", "Tasks that waited for a new environment.", stage)
        self._exchanged = counter(
            "serfer_exchanged_bytes", "Bytes of halos that members of gangs received from one another.", stage
        )
        self._waited = counter(
            "serfer_gang_wait_seconds", "Seconds that members of gangs waited for halos, all together.", stage
        )
        self._store_bytes = counter(
            "serfer_store_bytes", "Bytes written to and read from the store.", ["model", "direction"]
        )
        self._operations = counter("serfer_store_operations", "Store operations.", ["model", "operation"])
        self._usd = counter("serfer_usd", "Dollars that Lambda charges, or would charge.", ["model"])
        self._totals = [Counter(*known, registry=registry) for known in _TOTALS]
        self._plans = counter("serfer_plan_queries", "Queries that functions answered, by plan.", ["model", "plan"])
        labels, words = ["version", "model", "plan"], "Version, model and plan digest; always 1."
        build = Gauge("serfer_build_info", words, labels, registry=registry)
        for model, plan in plans.items():
            build.labels(__version__, model, plan).set(1)

    def request(self, route: str | None, method: str, status: int, seconds: float, bytes_in: int) -> None:
        """Count a request, of one of METHODS or "other"; `route` is its template, None where no route took it."""
        place = route or _OTHER
        self._requests.of[place, method, str(status)] += 1
        _observe((self._seconds.of[(place,)], seconds))
        if bytes_in:
            self._bytes.of[(place,)] += bytes_in

    def retried(self, call: str, attempt: int, error: Exception) -> None:
        """Count a retry, as a hook of serfer/core/retry.py."""
        del attempt, error
        self._retries.labels(call).inc()

    def result_kept(self, size: int) -> None:
        self._kept.inc()
        self._result_bytes.labels("kept").inc(size)

    def result_sent(self, size: int) -> None:
        self._result_bytes.labels("sent").inc(size)

    def refused(self, problem: Problem) -> None:
        self.over_quota += problem.slug == "quota"
        self.overloaded += problem.slug == OVERLOADED

    def answered(self, model: str, answered: ServiceResult) -> None:
        report = answered.result.report
        self._queries.of[model, report.target, "answered"] += 1
        self._usd.of[(model,)] += report.cost_usd
        times = [(self._query_seconds.of[(model,)], report.latency_ms / 1000), (self._queue.of[()], answered.queued_s)]
        if report.stages:
            self._plans.of[model, report.plan] += 1
        for stage in report.stages:
            times += ((self._stages.of[model, stage.name], stage.ms / 1000),)
            self._tasks.of[model, stage.name] += stage.tasks
            if stage.cold:
                self._cold.of[model, stage.name] += stage.cold
            if stage.gang is not None:
                self._exchanged.of[model, stage.name] += stage.bytes_exchanged
                self._waited.of[model, stage.name] += stage.wait_ms / 1000
        _observe(*times)
        counts = report.retries, report.hedges, report.disbanded, report.warm_ups, report.restarts
        for total, count in zip(self._totals, counts, strict=True):
            if count:
                total.inc(count)
        store = report.store
        sizes, calls = self._store_bytes.of, self._operations.of
        for of, what, count in (
            *((sizes, "put", store.bytes_put), (sizes, "get", store.bytes_get)),
            *((calls, "put", store.puts), (calls, "get", store.gets), (calls, "exists", store.exists)),
        ):
            if count:
                of[model, what] += count

    def failed(self, model: str, error: BaseException) -> None:
        self._queries.of[model, "none", outcome(error)] += 1


def outcome(error: BaseException) -> str:
    """Return the word for how a query failed; "bug" for unexpected exceptions."""
    return next((word for kind, word in _OUTCOMES if isinstance(error, kind)), "bug")


class _Counter(Collector):
    """A counter with a series, in `of`, for each tuple of labels; for the event loop's thread alone.

    Adding to one of prometheus_client's takes five calls, observing with its histogram seven.
    """

    def __init__(self, registry: CollectorRegistry, name: str, words: str, labels: Sequence[str]) -> None:
        self.of = defaultdict[tuple[str, ...], float](float)
        self._name, self._words, self._labelnames = name, words, labels
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._words, labels=self._labelnames)
        for labels, value in self.of.items():
            family.add_metric(labels, value)
        yield family


class _Histogram(Collector):
    """A histogram of seconds, likewise: a series is the number of each bucket, and the sum."""

    def __init__(self, registry: CollectorRegistry, name: str, words: str, labels: Sequence[str]) -> None:
        self.of = defaultdict[tuple[str, ...], list[float]](lambda: [0.0] * (len(_SECONDS) + 2))
        self._name, self._words, self._labelnames = name, words, labels
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._words, labels=self._labelnames)
        for labels, (*numbers, total) in self.of.items():
            bounds = (*map(str, _SECONDS), "+Inf")
            family.add_metric(labels, [*zip(bounds, accumulate(numbers), strict=True)], total)
        yield family


def _observe(*times: tuple[list[float], float]) -> None:
    for series, seconds in times:
        series[bisect_left(_SECONDS, seconds)] += 1
        series[-1] += seconds


class ServiceMetrics(Collector):
    """Gauges of a service, as they are when scraped; `ready` is as of the last look."""

    def __init__(self, metrics: Metrics, service: Service) -> None:
        self._metrics = metrics
        self._service = service
        self._ready = False

    def collect(self) -> Iterator[Metric]:
        service, admission = self._service, self._service.admission
        yield GaugeMetricFamily("serfer_queue_length", "Queries that wait for their turn.", admission.turns.waiting)
        yield GaugeMetricFamily("serfer_in_flight", "Queries in flight.", admission.turns.running)
        yield GaugeMetricFamily(
            "serfer_rate", "Queries a second that depart while others wait; 0 if not known.", admission.rate or 0.0
        )
        yield GaugeMetricFamily("serfer_draining", "1 while the driver drains.", float(service.draining))
        yield GaugeMetricFamily("serfer_ready", "1 if store and functions answer.", float(self._ready))
        words = "Times the process was started again."
        yield CounterMetricFamily("serfer_process_restarts", words, value=service.restarts)
        shed = CounterMetricFamily("serfer_shed", "Requests answered with 429.", labels=["reason"])
        shed.add_metric(["overloaded"], self._metrics.overloaded)
        shed.add_metric(["quota"], self._metrics.over_quota)
        yield shed

    async def look(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                self._ready = (await self._service.health()).ready


def metrics_router(metrics: Metrics, service: Service) -> APIRouter:
    router = APIRouter(tags=["operation"])
    now = ServiceMetrics(metrics, service)
    metrics.registry.register(now)

    @router.get("/metrics", response_class=Response)
    async def scrape(request: Request) -> Response:
        """Return this driver's metrics for Prometheus, as text or OpenMetrics."""
        await now.look()
        encode, media_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(metrics.registry), headers={"Content-Type": media_type})

    return router
