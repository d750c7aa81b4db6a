import os
import subprocess
import sys
import time
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest
from opentelemetry.trace import SpanKind, StatusCode

from serfer.api.observability.telemetry import Telemetry, open_tracing
from serfer.api.service import ServiceResult
from serfer.core.errors import StoreUnavailableError
from serfer.core.keys import StoreCounts
from serfer.core.run_machine import Attempt, Failure, FailureKind, StageRun, TileRun
from serfer.core.wire import Report
from tests.e2e.conftest import eventually
from tests.support.http_stub import serving
from tests.support.served import PNG, ended, png

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


@pytest.fixture
def observed(metrics, tracing):
    return Telemetry(metrics, tracing)


@pytest.fixture
def spans(exporter):
    """Wait until a request's span has ended, which its client hears of first, and return all by name."""

    def span_named(name="POST /v1/classify"):
        eventually(lambda: any(span.name == name for span in exporter.get_finished_spans()), name)
        return {span.name: span for span in exporter.get_finished_spans()}

    return span_named


class TestRequests:
    def test_a_query_is_a_tree_under_its_request_with_each_task_under_its_stage(self, http, exporter, spans):
        def below(above):
            known = exporter.get_finished_spans()
            return [span for span in known if span.parent and span.parent.span_id == above.context.span_id]

        before = time.time_ns()
        http.post("/v1/classify", content=png(), headers={**PNG, "X-Request-Id": "mine"}).raise_for_status()
        recorded, after = spans(), time.time_ns()
        server, query = recorded["POST /v1/classify"], recorded["query"]
        assert server.kind is SpanKind.SERVER
        assert server.attributes["http.route"] == "/v1/classify"
        assert server.attributes["http.response.status_code"] == 200
        assert server.attributes["serfer.request_id"] == "mine"
        assert query.parent.span_id == server.context.span_id
        assert {span.name for span in below(query)} == {*("queue", "decode", "stage-0", "stage-1", "stage-2")}
        assert (query.attributes["serfer.model"], query.attributes["serfer.target"]) == ("small", "serverless")
        for span in recorded.values():
            assert before <= span.start_time <= span.end_time <= after
        tasks = below(recorded["stage-0"])
        assert [task.attributes["serfer.tile"] for task in tasks] == [0, 1, 2, 3]
        assert {task.attributes["serfer.outcome"] for task in tasks} == {"answered"}
        assert {task.attributes["serfer.cold"] for task in tasks} == {False}

    def test_a_callers_trace_is_continued(self, http, spans):
        http.get("/healthz", headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
        span = spans("GET /healthz")["GET /healthz"]
        assert f"{span.context.trace_id:032x}" == TRACE
        assert f"{span.parent.span_id:016x}" == PARENT

    def test_unsampled_requests_have_no_spans(self, http, exporter, spans):
        http.post("/v1/classify", content=png(), headers={**PNG, "traceparent": f"00-{TRACE}-{PARENT}-00"})
        http.get("/healthz")
        spans("GET /healthz")
        assert [span.name for span in exporter.get_finished_spans()] == ["GET /healthz"]

    def test_an_asynchronous_query_belongs_to_its_requests_trace(self, http, spans):
        ended(http, http.post("/v1/classify", content=png(), headers={**PNG, "Prefer": "respond-async"}))
        recorded = spans()
        assert recorded["query"].parent.span_id == recorded["POST /v1/classify"].context.span_id

    def test_a_failure_is_an_error_without_words(self, http, spans, service, monkeypatch):
        unavailable = AsyncMock(side_effect=StoreUnavailableError("secret words"))
        monkeypatch.setattr(service.pipelines["small"], "answer", unavailable)
        assert http.post("/v1/classify", content=png(), headers=PNG).status_code == 503
        span = spans()["POST /v1/classify"]
        assert span.status.status_code is StatusCode.ERROR
        assert span.attributes["error.type"] == "StoreUnavailableError"
        assert "secret" not in span.to_json()

    def test_an_unknown_path_is_not_named(self, http, spans):
        http.get("/secret")
        assert "secret" not in spans("GET")["GET"].to_json()


def attempts():
    report = Report("abc", 12.0, 1.0, 2.0, 3.0, 6.0, 1, 1, StoreCounts())
    lost = Failure(FailureKind.THROTTLED, "", "secret")
    return [Attempt(0, 1.0, 1.1, 1.2, lost), Attempt(1, 1.3, 1.4), Attempt(2, 1.5, 1.6, 1.8, report)]


def test_every_attempt_of_a_task_has_a_span(tracing, exporter):
    run = StageRun(1.0, [TileRun(attempts())], 1.8)
    counts = {"retries": 1, "hedges": 1, "restarts": 0, "cost_usd": 0.1}
    report = SimpleNamespace(plan="digest", target="serverless", stages=[SimpleNamespace(grid="1x1")], **counts)
    answer = SimpleNamespace(query="q", stages=[run], ended=1.9)
    result = SimpleNamespace(report=report, answer=answer, split=(0.9, 1.0), answered=2.0)
    begun = tracing.begin({"headers": [], "method": "POST"})
    tracing.answered("small", ServiceResult(result, 0.8, 0.1))
    tracing.end(begun, "POST", None, 200, "id")
    tasks = [span for span in exporter.get_finished_spans() if span.name == "task 0"]
    assert [task.attributes["serfer.outcome"] for task in tasks] == ["throttled", "given up", "answered"]
    assert [task.status.status_code for task in tasks] == [StatusCode.ERROR, StatusCode.UNSET, StatusCode.UNSET]
    assert [(task.end_time - task.start_time) / 1e9 for task in tasks] == pytest.approx([0.2, 0.5, 0.3])
    assert (tasks[2].attributes["serfer.cold"], tasks[2].attributes["serfer.init_ms"]) == (True, 12.0)
    queue = next(span for span in exporter.get_finished_spans() if span.name == "queue")
    assert (queue.end_time - queue.start_time) / 1e9 == pytest.approx(0.1)


class TestOpening:
    def test_nothing_is_imported_without_a_collector(self):
        code = """
import sys
import serfer.api.app
from serfer.api.observability.telemetry import open_tracing
assert open_tracing() is None
assert not [name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))]
"""
        env = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
        subprocess.run([sys.executable, "-c", code], check=True, env=env)

    @pytest.mark.parametrize(("named", "name"), [({}, "serfer"), ({"OTEL_SERVICE_NAME": "mine"}, "mine")])
    def test_spans_reach_the_collector_at_the_end(self, monkeypatch, named, name):
        with serving() as collector:
            known = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_EXPORTER_OTLP_COMPRESSION": "none", **named}
            for variable, value in known.items():
                monkeypatch.setenv(variable, value)
            tracing = open_tracing()
            tracing.end(tracing.begin({"headers": [], "method": "GET"}), "GET", "/x", 200, "id")
            tracing.close()
        [taken] = collector.requests
        assert (taken.method, taken.path) == ("POST", "/v1/traces")
        assert name.encode() in taken.body
        assert b"GET /x" in taken.body

    def test_an_unreachable_collector_does_not_block_requests(self, monkeypatch):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        tracing = open_tracing()
        tracing.end(tracing.begin({"headers": [], "method": "GET"}), "GET", None, 200, "id")
        tracing.close()
