"""Telemetry of one application: metrics, log lines and, where a collector is configured, traces of requests.

Spans are made when a query has ended, with the times it had (pipeline/trace.py), so a query pays for nothing before.
Where no collector is named (OTEL_EXPORTER_OTLP_ENDPOINT), OpenTelemetry's SDK is not even imported.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from serfer.api.observability.logs import log_query
from serfer.api.observability.metrics import Metrics
from serfer.api.service import ServiceResult
from serfer.pipeline.pipeline import AsyncPipeline
from serfer.pipeline.trace import Span as QuerySpan
from serfer.pipeline.trace import query_span
from serfer.settings import tracing_wanted

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

    RequestSpan = tuple[Span, Any]

_FLUSH_MS = 3000


@dataclass(frozen=True)
class Telemetry:
    """Is notified of every query's end by the service, and of every request's by the middleware."""

    metrics: Metrics
    tracing: Tracing | None = None

    def answered(self, model: str, answered: ServiceResult) -> None:
        self.metrics.answered(model, answered)
        log_query(model, answered)
        if self.tracing:
            self.tracing.answered(model, answered)

    def failed(self, model: str, error: BaseException) -> None:
        self.metrics.failed(model, error)
        log_query(model, error=error)
        if self.tracing:
            self.tracing.failed(model, error)

    def close(self) -> None:
        if self.tracing:
            self.tracing.close()


def open_telemetry(pipelines: Mapping[str, AsyncPipeline]) -> Telemetry:
    return Telemetry(Metrics({model: pipeline.plan.digest for model, pipeline in pipelines.items()}), open_tracing())


class Tracing:
    """Makes spans with a provider, which it shuts down at the end."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry import context, propagate, trace  # noqa: PLC0415 - only where traces are collected

        self._provider = provider
        self._tracer = provider.get_tracer("serfer")
        self._trace = trace
        self._context = context
        self._extract = propagate.extract

    def begin(self, scope: Any) -> RequestSpan:  # noqa: ANN401 - an ASGI scope
        carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        parent = self._extract(carrier)
        span = self._tracer.start_span(
            scope["method"], parent, self._trace.SpanKind.SERVER, {"http.request.method": scope["method"]}
        )
        return span, self._context.attach(self._trace.set_span_in_context(span, parent))

    def end(self, begun: RequestSpan, method: str, route: str | None, status: int, request_id: str) -> None:
        span, token = begun
        self._context.detach(token)
        if route:
            span.update_name(f"{method} {route}")
            span.set_attribute("http.route", route)
        span.set_attributes({"http.response.status_code": status, "serfer.request_id": request_id})
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            span.set_status(self._trace.StatusCode.ERROR)
        span.end()

    def answered(self, model: str, answered: ServiceResult) -> None:
        if self._trace.get_current_span().get_span_context().trace_flags.sampled:
            queued = answered.admitted - answered.queued_s, answered.admitted
            query = query_span("query", answered.result, queued)
            # times of the driver's clock become times of day as both clocks stand now
            self._make(query, None, {"serfer.model": model}, time.time_ns() - time.monotonic_ns())

    def failed(self, model: str, error: BaseException) -> None:
        """Name the class of what a query failed with; its words may quote the client."""
        span = self._trace.get_current_span()
        span.set_attributes({"serfer.model": model, "error.type": type(error).__name__})

    def _make(self, span: QuerySpan, parent: Span | None, more: dict[str, Any], epoch_ns: int) -> None:
        context = self._trace.set_span_in_context(parent) if parent else None
        start_ns, end_ns = (epoch_ns + round(moment * 1e9) for moment in (span.start, span.end))
        made: Span = self._tracer.start_span(
            span.name, context, attributes={**more, **span.attributes}, start_time=start_ns
        )
        if span.failed:
            made.set_status(self._trace.StatusCode.ERROR)
        made.end(end_ns)
        for child in span.children:
            self._make(child, made, {}, epoch_ns)

    def close(self) -> None:
        self._provider.force_flush(_FLUSH_MS)
        self._provider.shutdown()


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
