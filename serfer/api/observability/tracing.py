"""OpenTelemetry traces of requests: one server span each, and under it where its query's time went.

    POST /v1/classify
    └── query                       from asking to come in until the answer
        ├── queue
        ├── decode
        ├── stage-0
        │   ├── task 0              an attempt: serfer.tile, serfer.attempt, serfer.cold, serfer.outcome
        │   └── task 1
        └── stage-1..2              a gang: its tasks are members, each one invocation
            └── task 0
                ├── stage-1         a member's part in a stage: serfer.wait_ms
                └── stage-2

They are made when the query has ended, with the times it had, so a query pays for nothing before. Where no collector is
named (OTEL_EXPORTER_OTLP_ENDPOINT), OpenTelemetry's SDK is not even imported; its other variables it reads itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from serfer.api.observability.timeline import stage_times
from serfer.api.service import ServiceResult
from serfer.core.run_machine import Attempt, Failure, StageRun, TileRun, gang_starts
from serfer.core.wire import Report
from serfer.settings import tracing_wanted

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

_FLUSH_MS = 3000


class Tracing:
    """Makes spans with a provider, which it shuts down at the end."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry import context, propagate, trace  # noqa: PLC0415 - only where traces are collected

        self._provider = provider
        self._tracer = provider.get_tracer("serfer")
        self._trace = trace
        self._context = context
        self._extract = propagate.extract

    @contextmanager
    def request(self, scope: Any) -> Iterator[Span]:  # noqa: ANN401 - an ASGI scope
        """Make the server span of a request, a child of what its traceparent header names."""
        carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        parent = self._extract(carrier)
        span = self._tracer.start_span(
            scope["method"], parent, self._trace.SpanKind.SERVER, {"http.request.method": scope["method"]}
        )
        token = self._context.attach(self._trace.set_span_in_context(span, parent))
        try:
            yield span
        finally:
            self._context.detach(token)
            span.end()

    def responded(self, span: Span, method: str, route: str | None, status: int, request_id: str) -> None:
        """Record the outcome of a request."""
        if route:
            span.update_name(f"{method} {route}")
            span.set_attribute("http.route", route)
        span.set_attributes({"http.response.status_code": status, "serfer.request_id": request_id})
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            span.set_status(self._trace.StatusCode.ERROR)

    def answered(self, model: str, answered: ServiceResult) -> None:
        """Make the spans of an answered query, under the span of the request that is being answered."""
        if self._trace.get_current_span().get_span_context().trace_flags.sampled:
            _Query(self._tracer, self._trace, model, answered).make()

    def failed(self, model: str, error: BaseException) -> None:
        """Name the class of what a query failed with; its words may quote the client."""
        span = self._trace.get_current_span()
        span.set_attributes({"serfer.model": model, "error.type": type(error).__name__})

    def close(self) -> None:
        """Send what is still here, for a few seconds at most."""
        self._provider.force_flush(_FLUSH_MS)
        self._provider.shutdown()


class _Query:
    """One answered query's spans; times of its clock become times of day as both clocks stand now."""

    def __init__(self, tracer: Any, trace: Any, model: str, answered: ServiceResult) -> None:  # noqa: ANN401 - the SDK's
        self._tracer = tracer
        self._trace = trace
        self._model = model
        self._answered = answered
        self._epoch_ns = time.time_ns() - time.monotonic_ns()

    def make(self) -> None:
        """Make them all, the outer before the inner."""
        arrived, result = self._answered.admitted - self._answered.queued_s, self._answered.result
        report = result.report
        known = {
            "serfer.model": self._model,
            "serfer.plan": report.plan,
            "serfer.target": report.target,
            "serfer.query": result.answer.query,
            "serfer.retries": report.retries,
            "serfer.hedges": report.hedges,
            "serfer.restarts": report.restarts,
            "serfer.usd": report.cost_usd,
        }
        query = self._span("query", arrived, result.answered, None, known)
        self._span("queue", arrived, self._answered.admitted, query)
        self._span("decode", *result.split, query)
        stages = result.answer.stages
        for number, (stage, gang) in enumerate(zip(stages, gang_starts(stages), strict=True)):
            if gang in (None, number):
                self._stage(number, stage, query)

    def _stage(self, number: int, run: StageRun, query: Span) -> None:
        """Make the spans of a stage, or of the gang that begins with it."""
        answer = self._answered.result.answer
        last = (run.gang_stop or number + 1) - 1
        ended = answer.stages[last].ended
        grid = self._answered.result.report.stages[number].grid
        known = {"serfer.stage": number, "serfer.grid": grid, "serfer.tasks": len(run.tiles)}
        name = f"stage-{number}..{last}" if run.gang_stop else f"stage-{number}"
        stage = self._span(name, run.started, answer.ended if ended is None else ended, query, known)
        for tile, known_tile in enumerate(run.tiles):
            for attempt in known_tile.attempts:
                self._attempt(number, tile, known_tile, attempt, stage)

    def _attempt(self, number: int, tile: int, run: TileRun, attempt: Attempt, stage: Span) -> None:
        ends = [one.ended for one in run.attempts if one.ended is not None]
        ended = attempt.ended or max(ends, default=self._answered.result.answer.ended)
        known = {"serfer.stage": number, "serfer.tile": tile, "serfer.attempt": attempt.number, **_facts(attempt)}
        failed = isinstance(attempt.result, Failure)
        name, whole = f"task {tile}", (attempt.requested, max(ended, attempt.requested))
        task = self._span(name, *whole, stage, known, failed=failed)
        stages = self._answered.result.answer.stages
        if not (stages[number].gang_stop and isinstance(attempt.result, Report)):
            return
        reports = {id(each.report): later for later, one in enumerate(stages) for each in one.tiles}
        for part in stage_times(attempt):
            if (later := reports.get(id(part.report))) is not None:
                figures = {"serfer.stage": later, "serfer.tile": tile, **_durations(part.report)}
                self._span(f"stage-{later}", part.started, part.ended, task, figures)

    def _span(
        self,
        name: str,
        start: float,
        end: float,
        parent: Span | None,
        known: dict[str, Any] | None = None,
        *,
        failed: bool = False,
    ) -> Span:
        context = self._trace.set_span_in_context(parent) if parent else None
        span: Span = self._tracer.start_span(name, context, attributes=known, start_time=self._ns(start))
        if failed:
            span.set_status(self._trace.StatusCode.ERROR)
        span.end(self._ns(end))
        return span

    def _ns(self, moment: float) -> int:
        return self._epoch_ns + round(moment * 1e9)


def _facts(attempt: Attempt) -> dict[str, Any]:
    match attempt.result:
        case Report() as report:
            known = {
                "serfer.outcome": "answered",
                "serfer.cold": report.init_ms > 0,
                "serfer.environment": report.environment,
                "serfer.init_ms": report.init_ms,
                **({"serfer.fetch_ms": report.fetch_ms} if report.fetch_ms else {}),
            }
            return known if report.later else {**known, **_durations(report)}
        case Failure(kind):
            return {"serfer.outcome": kind.value}
    return {"serfer.outcome": "given up"}


def _durations(report: Report) -> dict[str, float]:
    steps = {"read": report.read_ms, "compute": report.compute_ms, "write": report.write_ms, "wait": report.wait_ms}
    return {f"serfer.{step}_ms": ms for step, ms in steps.items() if step != "wait" or ms}


def open_tracing() -> Tracing | None:
    """Return tracing to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names, None where no variable names one."""
    if not tracing_wanted():
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - it takes 0.2 s
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource  # noqa: PLC0415 - same
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - same
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - same

    resource = Resource.create()
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "serfer"}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracing(provider)
