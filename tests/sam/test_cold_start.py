"""How soon a built function answers: process, imports, session and a first task, against a function with torch.

The one with torch imports it and answers with a number, no network loaded: less than any real one would do. Run with
-s to see the figures (docs/how-to/deploy.md).
"""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import serfer
from serfer.core.costs.aws import shipped_aws
from serfer.local.lambda_.function import REGION, FunctionConfig
from serfer.local.servers.redis import RedisServer
from serfer.plan_directory import load_plan
from serfer.sam.build.layers import function_directory, weights_layer
from tests.sam.built import client_of, lambda_service

PAIRS = 3
STACK = "cold"


def served(function, cache, runtimes):
    facts = replace(shipped_aws().functions, package_limit=1 << 40)  # torch would not fit
    return lambda_service([function], cache, runtimes, facts=facts)


def with_torch(function, cache, runtimes):
    """Return the seconds from a request to the answer of a new environment that imports torch."""
    with served(function, cache, runtimes) as service:
        client = client_of(service)
        started = time.perf_counter()
        answer = json.loads(client.invoke(FunctionName=function.name, Payload=b"{}")["Payload"].read())
        taken = time.perf_counter() - started
        client.close()
    assert answer == {"sum": 2.0}
    return taken


def as_built(function, cache, runtimes, plan, store, monkeypatch):
    """Return the seconds from a query to its answer by a new environment of the built function."""
    with served(function, cache, runtimes) as service:
        monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", service.url)
        with serfer.open(plan, workers="aws", store=store) as pipeline:
            values = np.random.default_rng(0).standard_normal((1, 3, 224, 224), dtype=np.float32)
            started = time.perf_counter()
            pipeline.run(values)
            taken = time.perf_counter() - started
            assert pipeline.last_report.stages[0].cold == 1
    return taken


@pytest.mark.deploy
@pytest.mark.weekly
def test_a_built_function_answers_in_a_third_of_the_time_of_one_with_torch(
    tmp_path, cache, worker, python313, runtime313, monkeypatch
):
    directory = whole_plan(tmp_path)
    plan = load_plan(directory)
    function_directory(tmp_path / "function", plan, directory, 0, 0)
    weights_layer(tmp_path / "weights", plan, directory, 0, 0)
    monkeypatch.setenv("SERFER_FUNCTION_PREFIX", STACK)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    heavy = tmp_path / "torch"
    heavy.mkdir()
    (heavy / "main.py").write_text(
        "import torch\n\n\ndef handler(event, context):\n    return {'sum': torch.ones(2).sum().item()}\n"
    )
    site = tmp_path / "site"
    site.mkdir()
    (site / "python").symlink_to(Path(np.__file__).parents[1])
    with RedisServer() as redis:
        built = FunctionConfig(
            plan.deployed(STACK, 0, 0),
            tmp_path / "function",
            "serfer.lambdas.bootstrap.handler",
            environment={"SERFER_STORE": redis.url},
            layers=(worker[0], tmp_path / "weights"),
            python=python313,
            memory_mb=1769,
        )
        torch = FunctionConfig("torch", heavy, "main.handler", layers=(site,), python=Path(sys.executable))
        runtimes = {python313: runtime313}
        pairs = []
        for number in range(PAIRS + 1):
            one = as_built(built, cache, runtimes, directory, redis.url, monkeypatch)
            other = with_torch(torch, cache, runtimes)
            if number:  # the first brings the files into memory
                pairs.append((one, other))
    built_s, torch_s = (min(each) for each in zip(*pairs, strict=True))  # whatever else runs here only adds
    ratios = [one / other for one, other in pairs]
    figures = f"built {built_s:.2f} s, torch {torch_s:.2f} s; pairs {min(ratios):.2f} to {max(ratios):.2f}"
    print(f"{figures}, fastest {built_s / torch_s:.2f}")  # noqa: T201 - for who runs it with -s
    assert built_s / torch_s <= 1 / 3


def whole_plan(tmp_path):
    """Return a plan of EfficientNet-Lite0 in one function."""
    serfer.split("efficientnet-lite0", out=tmp_path / "plan", grids=(1, 1), stages=1)
    return tmp_path / "plan"
