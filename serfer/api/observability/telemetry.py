"""Telemetry of one application: metrics, log lines and, where a collector is configured, traces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from serfer.api.observability.logs import log_query
from serfer.api.observability.metrics import Metrics
from serfer.api.observability.tracing import Tracing, open_tracing
from serfer.api.service import ServiceResult
from serfer.pipeline.pipeline import AsyncPipeline


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
