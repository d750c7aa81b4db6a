"""Stacks of other choices than the defaults on ministack: each is deployed, asked and destroyed."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest

import serfer
from serfer.local.lambda_.function import REGION
from serfer.plan_directory import COLD_DIRECTORY, load_plan
from serfer.sam import weights
from serfer.sam.build.package import package
from serfer.settings import load_settings
from serfer.splitter.split import split
from tests.e2e.dense import split_dense
from tests.e2e.small import batch, put_weights_in, split_small
from tests.sam.built import SAM
from tests.sam.conftest import OPTIONS
from tests.sam.deployed import PATIENCE_S, check_permissions, deployed, predictions

PHOTOGRAPH = Path(__file__).parents[2] / "examples" / "images" / "chelsea.png"
MAPS = ("scores", "classes", "head/depth")
pytestmark = [pytest.mark.deploy, pytest.mark.skipif(not SAM.exists(), reason="make setup did not get SAM CLI")]


@pytest.fixture(scope="module")
def fetching(account, tmp_path_factory):
    """A stack whose functions fetch their weights, in several pieces each, and its plan."""
    root = tmp_path_factory.mktemp("fetching")
    directory = put_weights_in(split_small(root, gang="never"), "fetched")

    def in_pieces(build):
        options = replace(OPTIONS, name="fetching", region=REGION)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(weights, "PIECE_BYTES", 1500)  # ministack has no least size of a part
            package(directory, build, options, load_settings(), progress=lambda _: None)

    with deployed(account, root, "fetching", directory, package=in_pieces) as stack:
        yield stack, directory


def stored(stack):
    """The objects of a stack's bucket of weights, by their keys."""
    bucket, _, prefix = stack.outputs["Weights"].removeprefix("s3://").partition("/")
    store = stack.account.client("s3")
    keys = [each["Key"] for each in store.list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", ())]
    return {key.rpartition("/")[2]: store.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys}


def test_functions_fetch_their_weights_from_the_bucket_that_the_deployment_filled(fetching, image):
    stack, directory = fetching
    wanted = weights.fetched([load_plan(directory)])
    assert {each.sha256: (directory / each.path).read_bytes() for each in wanted} == stored(stack)
    with serfer.open(directory, workers="inprocess") as pipeline:
        (answer,) = pipeline.classify([image])
    assert predictions(stack.classify(directory, image)) == [(each.label, each.score) for each in answer.predictions]
    uploaders = {name for name in stack.functions if f"{stack.stack}-weights-" in name}
    assert len(uploaders) > len(wanted)
    assert stack.functions - uploaders == stack.named(directory)


@pytest.fixture(scope="module")
def keeping(account, tmp_path_factory):
    """A stack that keeps results, of a network with maps, and that plan."""
    root = tmp_path_factory.mktemp("keeping")
    directory = split_dense(root, MAPS, grids=["2x2", "1x2"], cuts=["relu1"])
    with deployed(account, root, "keeping", directory, "--set", "results_days=1") as stack:
        yield stack, directory


@pytest.mark.weekly
def test_results_lie_in_the_stacks_bucket_and_are_read_by_links(keeping, tmp_path):
    stack, directory = keeping
    with serfer.open(directory, workers="inprocess") as pipeline:
        expected = pipeline.run(batch(2))
    bucket, _, prefix = stack.outputs["Results"].removeprefix("s3://").partition("/")
    store = stack.account.client("s3")
    with stack.client() as client:
        result = client.infer(batch(2), model="dense", result="link", deadline_ms=28_000)
        for name, array in expected.items():
            assert np.allclose(np.load(result.download(name, tmp_path / "output.npy")), array, atol=1e-4)
        listed = store.list_objects_v2(Bucket=bucket)["Contents"]
        assert len(listed) == 2 * len(expected) + 1  # a chunk of each output by each tile, and the manifest
        assert all(each["Key"].startswith(f"{prefix}/") for each in listed)
        place, asked = f"{stack.url}/v2/results/{result.id}/zarr", {"headers": {"x-api-key": stack.key}}
        redirect = httpx.get(f"{place}/0/c/0/0/0/0", **asked, timeout=PATIENCE_S)
        assert redirect.status_code == httpx.codes.TEMPORARY_REDIRECT, redirect.text
        [key] = [each["Key"] for each in listed if each["Key"].endswith("!0!c!0!0!0!0")]
        stored = store.get_object(Bucket=bucket, Key=key)["Body"].read()
        assert httpx.get(redirect.headers["location"], timeout=PATIENCE_S).content == stored  # nobody needs a key there
        result.delete()
        assert store.list_objects_v2(Bucket=bucket)["KeyCount"] == 0
        client.infer(batch(1), model="dense", result="link", deadline_ms=28_000)  # the stack goes with what it keeps


@pytest.fixture(scope="module")
def recommended(account, tmp_path_factory):
    """A stack with the plan that `split` chooses for AlexNet where no query is cold: one function, 233 MB fetched."""
    root = tmp_path_factory.mktemp("recommended")
    split("alexnet", out=root / "plan", cold_share=0, progress=lambda _: None)
    with deployed(account, root, "alexnet", root / "plan") as stack:
        yield stack, root / "plan"


@pytest.mark.weekly
def test_the_plan_that_split_recommends_for_a_network_that_no_zip_holds_answers_as_deployed(recommended):
    stack, directory = recommended
    plan = load_plan(directory)
    assert [stage.weights_in for stage in plan.stages] == ["fetched"]
    assert plan.stages[0].functions[0].weights.bytes > plan.limit.room
    with serfer.open(directory, workers="inprocess") as pipeline:
        (answer,) = pipeline.classify([PHOTOGRAPH])
    expected = [(each.label, each.score) for each in answer.predictions]
    assert stack.ask(directory, PHOTOGRAPH, expected).store.bytes_put == 0  # the driver fetches them itself


@pytest.fixture(scope="module")
def alone(account, tmp_path_factory):
    """A stack whose driver function runs the plan itself, and that plan."""
    root = tmp_path_factory.mktemp("alone")
    directory = split_small(root, grids=[(1, 1)])
    with deployed(account, root, "alone", directory) as stack:
        yield stack, directory


def test_a_driver_that_runs_its_plan_answers_by_the_rest_api_and_leaves_health_checks_to_another(
    alone, image, expected
):
    stack, directory = alone
    assert stack.functions == {f"{stack.stack}-driver", f"{stack.stack}-health"}
    driver = stack.account.client("lambda").get_function_configuration(FunctionName=f"{stack.stack}-driver")
    assert driver["Environment"]["Variables"]["SERFER_WORKERS"] == "inprocess"
    assert stack.ask(directory, image, expected).store.bytes_put == 0
    for path, body in (("/healthz", {"live": True}), ("/readyz", {"ready": True})):
        assert httpx.get(stack.url + path, timeout=PATIENCE_S).status_code == httpx.codes.FORBIDDEN
        answer = httpx.get(stack.url + path, headers={"x-api-key": stack.key}, timeout=PATIENCE_S)
        assert (answer.status_code, answer.json()) == (httpx.codes.OK, body)
        assert "x-request-id" not in answer.headers  # which the driver gives
    check_permissions(stack, {"DriverRole", "HealthRole"})


@pytest.mark.weekly
def test_a_driver_that_ran_its_plan_invokes_the_functions_of_the_next(alone, plans, image, expected):
    stack, directory = alone
    stack.package(plans[0])
    stack.make("apply")
    assert stack.ask(plans[0], image, expected).store.bytes_put > 0
    stack.make("rollback")
    assert stack.ask(directory, image, expected).store.bytes_put == 0


@pytest.fixture(scope="module")
def pair(account, plans, tmp_path_factory):
    """A stack with a plan of one function, its cold plan of several and a schedule of pings; and the plan."""
    root = tmp_path_factory.mktemp("pair")
    directory = split_small(root, grids=[(1, 1)])
    shutil.copytree(plans[0], directory / COLD_DIRECTORY)
    with deployed(account, root, "pair", directory, "--set", "ping_every=5") as stack:
        yield stack, directory


@pytest.mark.weekly
def test_a_deployment_of_two_plans_answers_cold_queries_on_one_and_warm_ones_on_the_other(pair, plans, image, expected):
    stack, directory = pair
    whole, cold = load_plan(directory).digest, load_plan(plans[0]).digest
    assert stack.functions == stack.named(directory, plans[0])
    assert stack.outputs["Generations"] == f"{whole[:12]}:{cold[:12]}"
    for plan in (directory, plans[0]):  # a laptop may ask each; the first one's driver has no environments
        assert predictions(stack.classify(plan, image)) == expected
    assert stack.classify(directory, image)["plan"] == cold
    assert stack.ask(plans[0], image, expected).plan_reason


@pytest.mark.weekly
def test_a_ping_warms_the_functions_of_the_plan_so_that_queries_run_on_it(pair, image, expected):
    stack, directory = pair
    [rule] = stack.account.client("events").list_rules(NamePrefix=stack.stack)["Rules"]
    [target] = stack.account.client("events").list_targets_by_rule(Rule=rule["Name"])["Targets"]
    functions = stack.account.client("lambda")
    assert target["Arn"] == functions.get_function(FunctionName=f"{stack.stack}-driver")["Configuration"]["FunctionArn"]
    called = functions.invoke(FunctionName=f"{stack.stack}-driver", Payload=target["Input"])
    [warmed] = json.loads(called["Payload"].read())["functions"]
    assert (warmed["asked"], warmed["warm"], warmed["problem"]) == (1, 1, None)
    stack.ask(directory, image, expected)
