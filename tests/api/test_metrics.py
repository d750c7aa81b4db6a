import asyncio
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from serfer import __version__
from serfer.api.http.problems import Problem
from serfer.api.observability.metrics import _SECONDS, Metrics, _Counter, _Histogram, _observe, outcome
from serfer.api.observability.telemetry import Telemetry
from serfer.api.service import ServiceResult
from serfer.core.errors import (
    DeadlineError,
    ImageError,
    LambdaUnavailableError,
    StoreUnavailableError,
    TaskFailedError,
    UsageError,
)
from serfer.core.keys import StoreCounts
from serfer.core.report import QueryReport, StageReport
from serfer.core.retry import Backoff, RetryPolicy, retry
from serfer.pipeline.health import Health
from tests.support.served import png

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture
def observed(metrics):
    return Telemetry(metrics)


def answered(target="serverless", **changes):
    stages = (StageReport("stage-0", "2x2", 4, 20.0, 4, 100, 200), StageReport("stage-1", "1x1", 1, 10.0, 0, 200, 28))
    store = StoreCounts(bytes_put=300, bytes_get=400, puts=5, gets=6, exists=0)
    values = {"stages": stages, "store": store, "retries": 2, "hedges": 1, "restarts": 0, **changes}
    values |= {"model": "small", "weights": "given", "untrained": False}
    report = QueryReport(images=(), latency_ms=40.0, cost_usd=0.5, plan="digest", target=target, **values)
    return ServiceResult(SimpleNamespace(report=report), admitted=1.0, queued_s=0.25)


def scraped(http, parse=parse_text, **headers):
    response = http.get("/metrics", headers=headers)
    assert response.status_code == 200
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in parse(response.text)
        for sample in family.samples
    }


class TestQueries:
    def test_what_members_of_gangs_exchange_and_wait_is_added_up(self, metrics):
        stages = (
            StageReport("stage-0", "2x1", 2, 20.0, 2, 100, 200, gang=0),
            StageReport("stage-1", "1x1", 1, 10.0, 0, 200, 28, gang=0, bytes_exchanged=150, wait_ms=6.5),
        )
        metrics.answered("small", answered(stages=stages))
        metrics.answered("small", answered(stages=stages, disbanded=1))
        value, of = metrics.registry.get_sample_value, {"model": "small"}
        assert value("serfer_exchanged_bytes_total", {**of, "stage": "stage-1"}) == 300
        assert value("serfer_gang_wait_seconds_total", {**of, "stage": "stage-1"}) == pytest.approx(0.013)
        assert value("serfer_cold_starts_total", {**of, "stage": "stage-0"}) == 4
        assert value("serfer_gangs_disbanded_total") == 1

    def test_an_answers_report_is_added_up(self, metrics):
        metrics.answered("small", answered())
        metrics.answered("small", answered())
        of = {"model": "small"}
        for name, labels, expected in (
            ("queries_total", {**of, "target": "serverless", "outcome": "answered"}, 2),
            *(("query_seconds_sum", of, pytest.approx(0.08)), ("queue_seconds_sum", {}, 0.5)),
            ("stage_seconds_sum", {**of, "stage": "stage-0"}, pytest.approx(0.04)),
            ("tasks_total", {**of, "stage": "stage-0"}, 8),
            ("cold_starts_total", {**of, "stage": "stage-0"}, 8),
            ("cold_starts_total", {**of, "stage": "stage-1"}, None),
            ("exchanged_bytes_total", {**of, "stage": "stage-0"}, None),
            ("store_bytes_total", {**of, "direction": "get"}, 800),
            ("store_operations_total", {**of, "operation": "put"}, 10),
            *(("usd_total", of, 1.0), ("retries_total", {}, 4), ("hedges_total", {}, 2), ("restarts_total", {}, 0)),
        ):
            assert metrics.registry.get_sample_value(f"serfer_{name}", labels) == expected, name

    def test_queries_are_counted_by_the_plan_that_they_ran_on(self, metrics):
        for plan in ("digest", "cold", "cold"):
            served = answered(plan_reason="because")
            served.result.report = replace(served.result.report, plan=plan)
            metrics.answered("small", served)
        metrics.answered("small", answered("cache", stages=()))
        value = metrics.registry.get_sample_value
        counts = [value("serfer_plan_queries_total", {"model": "small", "plan": plan}) for plan in ("digest", "cold")]
        assert counts == [1, 2]

    @pytest.mark.parametrize(
        ("error", "word"),
        [
            (DeadlineError(""), "late"),
            (StoreUnavailableError(""), "unavailable"),
            (LambdaUnavailableError(""), "unavailable"),
            (TaskFailedError(""), "failed"),
            (ImageError(""), "refused"),
            (UsageError(""), "refused"),
            (asyncio.CancelledError(), "cancelled"),
            (KeyError(""), "bug"),
        ],
    )
    def test_every_failure_has_a_word(self, metrics, error, word):
        metrics.failed("small", error)
        assert outcome(error) == word
        assert metrics.registry.get_sample_value(
            "serfer_queries_total", {"model": "small", "target": "none", "outcome": word}
        )

    def test_two_applications_count_for_themselves(self):
        first, second = Metrics({}), Metrics({})
        first.request("/x", "GET", 200, 0.1, 0)
        assert second.registry.get_sample_value("serfer_http_request_seconds_count", {"route": "/x"}) is None


class TestScrape:
    def test_over_a_quota_and_over_capacity_are_two_things(self, http, metrics):
        metrics.refused(Problem(429, "", slug="quota"))
        for _ in range(3):
            metrics.refused(Problem(429, "", slug="overloaded"))
        samples = scraped(http)
        assert samples["serfer_shed_total", "quota"] == 1
        assert samples["serfer_shed_total", "overloaded"] == 3

    def test_a_query_is_seen(self, http):
        http.post("/v1/classify", content=png(), headers={"Content-Type": "image/png"}).raise_for_status()
        samples = scraped(http)
        assert samples["serfer_queries_total", "answered", "serverless", "small"] == 1
        assert samples["serfer_http_requests_total", "/v1/classify", "200", "POST"] == 1
        assert samples["serfer_tasks_total", "small", "stage-1"] == 4
        assert samples["serfer_http_request_bytes_total", "/v1/classify"] == len(png())

    def test_both_formats_can_be_parsed_and_say_which_they_are(self, http):
        assert http.get("/metrics").headers["content-type"].startswith("text/plain; version=0.0.4")
        openmetrics = http.get("/metrics", headers={"Accept": OPENMETRICS})
        assert openmetrics.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
        assert scraped(http, parse_openmetrics, Accept=OPENMETRICS)[("serfer_ready",)] == 1

    def test_busy_gauges_show_the_present_load(self, http, service):
        for running, drains in ((3, False), (0, True)):
            service.admission.turns.running = running
            if drains:
                service.drain()
            samples = scraped(http)
            assert (samples[("serfer_in_flight",)], samples[("serfer_draining",)]) == (running, drains)

    def test_retries_of_calls_are_counted_by_name(self, http):
        errors = [StoreUnavailableError("gone"), StoreUnavailableError("gone")]

        def call():
            if errors:
                raise errors.pop()

        retry(call, RetryPolicy("store", StoreUnavailableError, Backoff(0.1, 0.1)), lambda _: None)
        assert scraped(http)["serfer_call_retries_total", "store"] == 2

    @pytest.mark.parametrize("look", [asyncio.Event().wait, AsyncMock(return_value=Health("it is gone"))])
    def test_a_store_that_is_gone_or_hangs_shows_and_keeps_no_scrape_waiting(self, http, service, monkeypatch, look):
        monkeypatch.setattr("serfer.api.observability.metrics._PATIENCE_S", 0.01)
        monkeypatch.setattr(service, "health", look)
        assert scraped(http)[("serfer_ready",)] == 0

    def test_build_info_names_the_served_plan(self, http):
        builds = [set(labels) for name, *labels in scraped(http) if name == "serfer_build_info"]
        assert builds == [{__version__, "small", "digest"}]


def test_series_are_those_of_prometheus_clients_own():
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    counter = _Counter(ours, "a", "A.", ["x", "y"])
    histogram = _Histogram(ours, "b", "B.", ["x"])
    own = Counter("a", "A.", ["x", "y"], registry=theirs)
    buckets = Histogram("b", "B.", ["x"], registry=theirs, buckets=_SECONDS)
    for number, seconds in enumerate([0.0, 0.005, 0.0051, 1.0, 60.0, 60.1, 1e9]):
        counter.of["1", str(number % 2)] += seconds
        own.labels("1", str(number % 2)).inc(seconds)
        _observe((histogram.of[(str(number % 3),)], seconds))
        buckets.labels(str(number % 3)).observe(seconds)
    lines = [line for line in generate_latest(theirs).decode().splitlines() if "_created" not in line]
    assert generate_latest(ours).decode().splitlines() == lines
