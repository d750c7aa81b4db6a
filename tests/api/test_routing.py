"""What clients and Prometheus see of a pool."""

from collections import Counter
from types import SimpleNamespace
from unittest.mock import AsyncMock

import numpy as np
import pytest

from serfer.api.admission import Admission
from serfer.api.app import make_app
from serfer.api.observability.pool_metrics import PoolMetrics
from serfer.api.observability.telemetry import open_telemetry
from serfer.api.service import Service
from serfer.control.router import Reason
from serfer.control.scenario import Market
from serfer.core.errors import CeilingError, OverloadedError
from serfer.drivers.instance.client import FaultKind
from serfer.drivers.target import InstanceAnswer
from serfer.fleet.controller import Status, TypeStatus
from serfer.fleet.purchase import Purchase
from tests.support.served import PNG, asking, ended, png


@pytest.fixture
def target(service):
    service.pipelines["small"].target = SimpleNamespace(run=AsyncMock(), close=AsyncMock())
    return service.pipelines["small"].target


def classify(http, **parameters):
    return http.post("/v1/classify", params=parameters, content=png(), headers=PNG)


def test_an_answer_of_an_instance_says_so_and_is_explained(http, target):
    target.run.return_value = InstanceAnswer(np.arange(7, dtype=np.float32)[None], "i-1", 8, 3.5, 2e-6)
    body = classify(http, explain=True).json()
    assert (body["target"], body["stages"], body["cost_usd"], body["store"]["puts"]) == ("gpu", [], 2e-6, 0)
    assert body["images"][0]["predictions"][0]["index"] == 6
    assert body["timeline"]["tasks"] == []
    assert body["timeline"]["answered_ms"] > 0


@pytest.mark.parametrize(
    ("error", "kind", "wait"),
    [
        (CeilingError("the dollars are spent", retry_after_s=1234.5), "urn:serfer:problem:ceiling", "1235"),
        (OverloadedError("no room", retry_after_s=0.1), "urn:serfer:problem:overloaded", "1"),
    ],
)
def test_a_query_that_no_target_accepts_is_refused_with_retry_after(http, target, error, kind, wait):
    target.run.side_effect = error
    refused = classify(http)
    assert (refused.status_code, refused.json()["type"], refused.headers["Retry-After"]) == (429, kind, wait)


def test_a_refusal_counts_as_shed(target, service, settings):
    telemetry = open_telemetry(service.pipelines)
    target.run.side_effect = CeilingError("spent", retry_after_s=10)
    counting = Service(service.pipelines, Admission(4, 8), telemetry)
    with asking(make_app(counting, settings, None, telemetry)) as http:
        classify(http)
        metrics = http.get("/metrics").text
    assert 'serfer_queries_total{model="small",outcome="shed",target="none"} 1.0' in metrics


def test_metrics_cover_the_pool():
    counts = {reason: number for number, reason in enumerate(Reason)}
    pool = SimpleNamespace(router=SimpleNamespace(counts=counts), faults=dict.fromkeys(FaultKind, 2), serving=1)
    pool.serving_by_type = Counter({Purchase("g6.xlarge"): 1})
    types = {
        Purchase("g6.xlarge"): TypeStatus(wanted=1, on=1, serving=1, hour_usd=0.2),
        Purchase("g6.xlarge", Market.SPOT): TypeStatus(wanted=2, on=1, serving=0, hour_usd=0.05),
    }
    status = Status(leads=True, types=types, serverless_usd=0.5)
    troubles = {"store": 1, "provisioner": 0, "controller": 0, "functions": 2}
    controller = SimpleNamespace(
        status=status, changes={"started": 4, "stopped": 2, "interrupted": 1}, troubles=troubles
    )
    samples = {
        " ".join((sample.name.removeprefix("serfer_"), *sample.labels.values())): sample.value
        for family in PoolMetrics(SimpleNamespace(pool=pool, controller=controller)).collect()
        for sample in family.samples
    }
    spot = "g6.xlarge spot"
    assert samples == samples | {
        "pool_instances wanted": 3,
        "pool_instances on": 2,
        "pool_instances serving": 1,
        "pool_leading": 1,
        "pool_hour_usd serverless": 0.5,
        "pool_hour_usd gpu": 0.25,
        f"pool_type_hour_usd {spot}": 0.05,
        "pool_type_instances g6.xlarge on-demand serving": 1,
        **{f"pool_type_instances {spot} {state}": count for state, count in (("wanted", 2), ("on", 1), ("serving", 0))},
        "pool_changes_total interrupted": 1,
        "pool_changes_total started": 4,
        "pool_troubles_total store": 1,
        "pool_troubles_total functions": 2,
        "route_decisions_total no_instance": 1,
        "instance_faults_total hung": 2,
    }


def test_a_watched_query_that_an_instance_answers_ends(http, target):
    target.run.return_value = InstanceAnswer(np.zeros((1, 7), np.float32), "i-1", 1, 1.0, 0.0)
    state = ended(http, http.post("/v1/classify", content=png(), headers={**PNG, "Prefer": "respond-async"}))
    assert (state["status"], state["result"]["target"]) == ("done", "gpu")
