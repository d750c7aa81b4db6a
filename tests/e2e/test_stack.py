"""Deployed functions, located by their stack: moto plays CloudFormation, the local Lambda service Lambda.

The functions lie as AWS has them: plan.json in the package, code and dependencies in one layer, weights in another.
"""

import asyncio
import json
import shutil
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import serfer
from serfer.api.entrypoints import serving
from serfer.api.entrypoints.function import Function, open_application
from serfer.applications.opening import ApplicationOptions
from serfer.core.sigv4 import Access
from serfer.core.variants import Canary, CanaryLimits
from serfer.local.lambda_.function import FunctionConfig
from serfer.local.lambda_.runtime import runtime_directory
from serfer.local.lambda_.service import LambdaService
from serfer.packaging.bundle import HANDLER, dependencies
from serfer.pipeline.event_loop import LoopThread
from serfer.plan_directory import load_plan
from serfer.registry import open_registry
from serfer.settings import DriverSettings, load_settings
from serfer.wiring import open_pipeline
from serfer.wiring.deployed import find_deployment
from serfer.wiring.options import Choices
from tests.api.test_function import rest
from tests.applications.worlds import NOW, register, variant, version
from tests.e2e.small import batch
from tests.moto_server import ACCESS, MotoServer
from tests.support.served import png

MOTO = Access(ACCESS["AWS_ACCESS_KEY_ID"], ACCESS["AWS_SECRET_ACCESS_KEY"])


@pytest.fixture(scope="module")
def plan(lean):
    """A plan of three workers instead of nine."""
    return lean


@pytest.fixture(scope="module")
def worker_layer(tmp_path_factory, cache):
    layer = tmp_path_factory.mktemp("worker")
    (layer / "python").symlink_to(dependencies(cache))
    return layer


@pytest.fixture(scope="module")
def functions(tmp_path_factory, plan, worker_layer, settings, _redis):
    """A Lambda service with the plan's functions as a stack called demo has them."""
    whole, root = load_plan(plan), tmp_path_factory.mktemp("deployed")
    configs = []
    for part in whole.functions:
        name = whole.deployed("demo", *part)
        package, weights = root / name, root / f"{name}-weights"
        package.mkdir()
        shutil.copy(plan / "plan.json", package)
        function = whole.stages[part[0]].functions[part[1]]
        for artefact in (function.weights, *function.graphs):
            target = weights / "python" / "serfer_plan" / artefact.path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(plan / artefact.path, target)
        variables = {"SERFER_STORE": _redis.url, "POWERTOOLS_LOG_LEVEL": "CRITICAL"}
        configs.append(
            FunctionConfig(name, package, HANDLER, timeout_s=60, environment=variables, layers=(worker_layer, weights))
        )
    runtime = runtime_directory(settings.cache_dir / "runtime")
    service, loop = LambdaService(configs, facts=settings.facts().functions, runtime=runtime, access=MOTO), LoopThread()
    loop.wait(service.start())
    yield service
    loop.wait(service.stop())
    loop.close()


@pytest.fixture(scope="module")
def moto(plan, _redis):
    digest = load_plan(plan).digest[:12]
    known = {"FunctionPrefix": "demo", "Plans": digest, "Serving": digest, "Engine": "push", "Url": "https://x/prod"}
    with MotoServer() as server:
        server.stack("demo", {**known, "Store": _redis.url})
        server.stack("live", {**known, "Store": _redis.url, "Alias": "live"})
        server.stack("away", {**known, "Store": "redis://127.0.0.1:9/0"})
        yield server


@pytest.fixture
def variables(moto, functions):
    return {**moto.variables(), "AWS_ENDPOINT_URL_LAMBDA": functions.url}


@pytest.fixture
def bare(plan, tmp_path):
    directory = tmp_path / "bare"
    directory.mkdir()
    shutil.copy(plan / "plan.json", directory)
    return directory


def answers(result):
    assert result.code == 0, result.err
    return [json.loads(line)["images"] for line in result.lines]


def named(images):
    return [[(one["label"], round(one["score"], 4)) for one in image["predictions"]] for image in images]


@pytest.mark.parametrize("stack", ["demo", "live"])
@pytest.mark.usefixtures("redis")
def test_classify_invokes_the_functions_of_a_stack(serfer_here, variables, examples, plan, bare, stack):
    image = examples / "chelsea.png"
    [here] = answers(serfer_here("classify", image, "--plan", plan, "--workers", "inprocess", "--json"))
    for workers in ([], ["--workers", "aws"]):
        command = ["classify", image, "--plan", bare, "--stack", stack, "--json", *workers]
        [deployed] = answers(serfer_here(*command, own_service=True, **variables))
        assert named(deployed) == named(here)


@pytest.mark.usefixtures("redis")
def test_warm_lists_functions_by_their_deployed_names(serfer_here, variables, plan, bare):
    result = serfer_here(
        "deploy", "warm", "--plan", bare, "--stack", "live", "--hold-s", "0.1", "--json", own_service=True, **variables
    )
    assert result.code == 0, result.err
    digest = load_plan(plan).digest[:12]
    assert [json.loads(line)["function"] for line in result.lines] == [f"demo-{digest}-{n}-0:live" for n in range(2)]


@pytest.fixture
def driver_function(variables, monkeypatch, bare, redis):
    """Open the application as a Lambda function, with the variables that its template gives it, and plan.json."""

    @contextmanager
    def open_with(**more):
        known = {"SERFER_STORE": redis, "SERFER_PLAN": bare.name, "LAMBDA_TASK_ROOT": str(bare.parent)}
        known |= {"SERFER_FUNCTION_PREFIX": "demo", "SERFER_FUNCTION_ALIAS": "live", "SERFER_WORKERS": "aws"}
        for name, value in {**variables, **known, **more}.items():
            monkeypatch.setenv(name, value)
        with ExitStack() as opened:
            function = Function(open_application(DriverSettings(), load_settings(), opened))
            opened.callback(function.close)
            yield function

    return open_with


def test_a_driver_in_aws_finds_functions_by_its_environment(driver_function):
    with driver_function() as function:
        answer = function(rest("POST", "/v1/classify", headers={"content-type": "image/png"}, body=png()), None)
        assert (answer["statusCode"], json.loads(answer["body"])["model"]) == (200, "small")
        assert function(rest("GET", "/readyz"), None)["statusCode"] == 200


@pytest.fixture
def registry(plan, tmp_path):
    """Application faces: one variant is deployed; another, which is cheaper and would be selected, is not."""
    found = open_registry(str(tmp_path / "registry"))
    there = variant("net.there", plan=load_plan(plan).digest, artefact=found.put_directory(plan))
    register(found, "faces", version("net", 1, there, variant("net.elsewhere", usd=1e-9)))
    return found


def test_a_driver_function_serves_the_applications_variants_that_are_deployed(
    driver_function, monkeypatch, bare, registry
):
    monkeypatch.setattr("serfer.applications.applications.STILL_S", 0.0)
    known = {"SERFER_REGISTRY": str(registry), "SERFER_APPLICATIONS": "faces", "SERFER_APPLICATION_PLANS": bare.name}
    with driver_function(**known) as function:

        def call(method, path, query=(), body=None):
            answer = function(rest(method, path, query, {"content-type": "image/png"}, body), None)
            return answer["statusCode"], json.loads(answer["body"])

        def selected():
            status, answer = call("POST", "/v1/classify", [("application", "faces")], png())
            assert status == 200, answer
            return answer["selected"]["variant"], answer["selected"]["release"]

        assert selected() == ("net.there", 1)
        second = replace(registry.known("faces").version("net", 1).variants[0], name="net.two")
        register(registry, "faces", version("net", 2, second))
        registry.update(
            "faces", lambda record: record.with_canary(Canary({"net": 2}, 1.0, NOW, "test", CanaryLimits()))
        )
        assert selected() == ("net.there", 1)  # nothing here could judge the canary
        assert call("GET", "/v1/applications/faces")[1]["canary"] is None
        status, problem = call("POST", "/v1/applications/faces/promote", body=b"{}")
        assert (status, "serfer app promote" in problem["detail"]) == (422, True)
        registry.update("faces", lambda record: record.promoted({"net": 2}, NOW, "test", ""))
        assert selected() == ("net.two", 2)
        Path(str(registry)).rename(tmp := Path(f"{registry}.away"))
        assert selected() == ("net.two", 2)
        tmp.rename(str(registry))


def test_cloudformation_is_asked_once_by_a_service_of_a_stacks_variants(variables, monkeypatch, bare, redis, registry):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    asked, served = [], []

    def counted(stack):
        asked.append(stack)
        return find_deployment(stack)

    for module in (serving, open_pipeline):
        monkeypatch.setattr(module, "find_deployment", counted)

    async def serve(app, listener, **_):
        listener.close()
        served.append(app)

    monkeypatch.setattr(serving, "serve", serve)
    choices = Choices(redis, "aws", "push", stack="demo")
    opening = serving.Opening(choices, applications=ApplicationOptions(str(registry), ("faces",)))
    address, settings = serving.Address("127.0.0.1", 0), load_settings()
    asyncio.run(
        serving.serve_models(
            {"small": bare}, opening, address, settings, on_started=lambda _: None, progress=lambda _: None
        )
    )
    assert (asked, len(served)) == (["demo"], 1)


class TestOpening:
    @pytest.fixture(autouse=True)
    def access(self, variables, monkeypatch):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    @pytest.mark.usefixtures("redis")
    def test_a_pipeline_over_a_stack_equals_local_workers(self, plan, bare, settings):
        with serfer.open(plan) as own:
            expected = own.run(batch())
        with serfer.open(bare, stack="demo", settings=settings) as pipeline:
            np.testing.assert_allclose(pipeline.run(batch()), expected, atol=1e-4)
            assert pipeline.health().ready

    def test_function_names_from_settings_work_without_a_stack(self, bare, settings, redis):
        prefixed = settings.model_copy(update={"function_prefix": "demo"})
        with serfer.open(bare, workers="aws", store=redis, settings=prefixed) as pipeline:
            assert pipeline.run(batch()).shape == (1, 7)
        astray = settings.model_copy(update={"function_prefix": "astray"})
        with serfer.open(bare, workers="aws", store=redis, settings=astray) as pipeline:
            assert "astray-" in pipeline.health().functions

    def test_a_given_store_takes_precedence_over_the_stacks(self, bare, settings, redis):
        with serfer.open(bare, stack="away", store=redis, settings=settings) as pipeline:
            assert pipeline.run(batch()).shape == (1, 7)
