"""Prometheus metrics at GET /metrics; docs/reference/metrics.md lists every name.

Labels have few values, none of them a client's: routes are templates, models those that are served, and whatever else
is "other". So clients cannot create series, and no name, key or image is in one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
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
from serfer.core.report import QueryReport, StageReport

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_METHODS = frozenset({"GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT", "PATCH"})
_OTHER = "other"
_PATIENCE_S = 0.5  # a scrape does not wait longer for a check of store and functions: it reports the last one
_Metric = TypeVar("_Metric")
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
_TOTALS = {
    "retries": ("serfer_retries", "Tasks tried again."),
    "hedges": ("serfer_hedges", "Late tasks that got a duplicate."),
    "disbanded": ("serfer_gangs_disbanded", "Gangs that were aborted and ran stage by stage."),
    "warm_ups": ("serfer_warm_ups", "Requests that warmed functions of later stages or the other plan."),
    "restarts": ("serfer_restarts", "Queries restarted after lost or altered pieces."),
}
"""Counters of a report's fields."""


class Metrics:
    """Counts what one application does, in a registry of its own; `plans` are the served models' plan digests."""

    def __init__(self, plans: Mapping[str, str]) -> None:
        registry = self.registry = CollectorRegistry()
        self.over_quota = self.overloaded = 0

        def counter(name: str, words: str, labels: Sequence[str]) -> _ChildCache[Counter]:
            return _ChildCache(Counter(name, words, labels, registry=registry).labels)

        def histogram(name: str, words: str, labels: Sequence[str]) -> _ChildCache[Histogram]:
            return _ChildCache(Histogram(name, words, labels, registry=registry, buckets=_SECONDS).labels)

        self._requests = counter("serfer_http_requests", "Requests answered.", ["route", "method", "status"])
        self._seconds = histogram(
            "serfer_http_request_seconds", "Seconds from a request's head to its last byte.", ["route"]
        )
        self._bytes = counter("serfer_http_request_bytes", "Bytes of bodies received.", ["route"])
        self._kept = Counter("serfer_results_kept", "Results kept for their owners to fetch.", registry=registry)
        self._result_bytes = counter("serfer_result_bytes", "Bytes of results kept and sent.", ["direction"])
        self._retries = counter("serfer_call_retries", "Calls of stores and the registry tried again.", ["call"])
        stage = ["model", "stage"]
        self._queries = counter("serfer_queries", "Queries that ended.", ["model", "target", "outcome"])
        self._query_seconds = histogram("serfer_query_seconds", "Seconds from decoding to the answer.", ["model"])
        self._queue = Histogram(
            "serfer_queue_seconds", "Seconds that queries waited for their turn.", registry=registry, buckets=_SECONDS
        )
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
        self._totals = {field: Counter(*known, registry=registry) for field, known in _TOTALS.items()}
        self._plans = counter("serfer_plan_queries", "Queries that functions answered, by plan.", ["model", "plan"])
        labels, words = ["version", "model", "plan"], "Version, model and plan digest; always 1."
        build = Gauge("serfer_build_info", words, labels, registry=registry)
        for model, plan in plans.items():
            build.labels(__version__, model, plan).set(1)

    def request(self, route: str | None, method: str, status: int, seconds: float, bytes_in: int) -> None:
        """Count a request; `route` is its template, None where no route took it."""
        place = route or _OTHER
        self._requests[place, method if method in _METHODS else _OTHER, str(status)].inc()
        self._seconds[(place,)].observe(seconds)
        if bytes_in:
            self._bytes[(place,)].inc(bytes_in)

    def retried(self, call: str, attempt: int, error: Exception) -> None:
        """Count a retry, as a hook of serfer/core/retry.py."""
        del attempt, error
        self._retries[(call,)].inc()

    def result_kept(self, size: int) -> None:
        self._kept.inc()
        self._result_bytes[("kept",)].inc(size)

    def result_sent(self, size: int) -> None:
        self._result_bytes[("sent",)].inc(size)

    def refused(self, problem: Problem) -> None:
        self.over_quota += problem.slug == "quota"
        self.overloaded += problem.slug == OVERLOADED

    def answered(self, model: str, answered: ServiceResult) -> None:
        report = answered.result.report
        self._queries[model, report.target, "answered"].inc()
        self._query_seconds[(model,)].observe(report.latency_ms / 1000)
        self._queue.observe(answered.queued_s)
        self._usd[(model,)].inc(report.cost_usd)
        if report.stages:
            self._plans[model, report.plan].inc()
        for field, total in self._totals.items():
            if count := getattr(report, field):
                total.inc(count)
        for stage in report.stages:
            self._stage(model, stage)
        self._store(model, report)

    def _stage(self, model: str, stage: StageReport) -> None:
        self._stages[model, stage.name].observe(stage.ms / 1000)
        self._tasks[model, stage.name].inc(stage.tasks)
        if stage.cold:
            self._cold[model, stage.name].inc(stage.cold)
        if stage.gang is not None:
            self._exchanged[model, stage.name].inc(stage.bytes_exchanged)
            self._waited[model, stage.name].inc(stage.wait_ms / 1000)

    def _store(self, model: str, report: QueryReport) -> None:
        store = report.store
        for direction, count in (("put", store.bytes_put), ("get", store.bytes_get)):
            if count:
                self._store_bytes[model, direction].inc(count)
        for operation, count in (("put", store.puts), ("get", store.gets), ("exists", store.exists)):
            if count:
                self._operations[model, operation].inc(count)

    def failed(self, model: str, error: BaseException) -> None:
        self._queries[model, "none", outcome(error)].inc()


def outcome(error: BaseException) -> str:
    """Return the word for how a query failed; "bug" for unexpected exceptions."""
    return next((word for kind, word in _OUTCOMES if isinstance(error, kind)), "bug")


class _ChildCache(dict[tuple[str, ...], _Metric], Generic[_Metric]):
    """A metric's children by their labels: prometheus_client takes three times as long to find one."""

    def __init__(self, make: Callable[..., _Metric]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, labels: tuple[str, ...]) -> _Metric:
        child = self[labels] = self._make(*labels)
        return child


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
