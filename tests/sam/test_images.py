"""Functions that are container images: their template, the directory that each is built of, and that directory at work.

No image is built here, since that takes a container engine: what the Dockerfile copies is put together, and runs under
Lambda's Python and its runtime client.
"""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

import serfer
from serfer.core.costs.aws import shipped_aws
from serfer.core.errors import UsageError
from serfer.doctor.aws import Build
from serfer.local.lambda_.function import REGION, FunctionConfig
from serfer.local.servers.redis import RedisServer
from serfer.plan_directory import load_plan
from serfer.sam.build.fetch import fetch_plan
from serfer.sam.build.layers import DOCKERFILE, image_directory
from serfer.sam.build.sbom import dump_sbom
from serfer.sam.cost.bill import price_build
from serfer.sam.deployer import Target, statements
from serfer.sam.deployment import load_deployment, load_template
from serfer.sam.options import HANDLER, GpuPool, digest12, function_id, images_of
from serfer.sam.quotas import check_deployable
from serfer.sam.stacks import DeployedStack, companion_stack, repositories
from serfer.sam.template.template import make_template
from tests.e2e.small import batch, put_weights_in, split_small
from tests.sam.builds import files
from tests.sam.built import SAM, lambda_service
from tests.sam.conftest import OPTIONS
from tests.sam.offered import options, placed, plans

FACTS = shipped_aws()
STACK = "images"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A plan of which the first stages are images, and the last one is not."""
    return put_weights_in(split_small(tmp_path_factory.mktemp("plan"), gang="never"), "image", "image", "zip")


@pytest.fixture
def build(packed, directory, tmp_path):
    def build(**more):
        packed(directory, replace(OPTIONS, **more))
        return tmp_path / "build"

    return build


def assembled(context, target):
    """Put together what a Dockerfile copies into the function's directory."""
    for source in re.findall(
        r"^COPY (\w+)/ \$\{LAMBDA_TASK_ROOT\}/$", (context / DOCKERFILE).read_text(), re.MULTILINE
    ):
        shutil.copytree(context / source, target, dirs_exist_ok=True)
    return target


def test_a_function_that_is_an_image_has_neither_layers_nor_a_runtime():
    plan = placed(plans()[0], "image", "fetched", "zip", "image")
    source = make_template(options(), [plan])
    digest = digest12(plan)
    for stage, number in plan.functions:
        function = source["Resources"][function_id(digest, stage, number)]
        properties = function["Properties"]
        if stage not in {0, 3}:
            assert "PackageType" not in properties
            continue
        assert not {"Layers", "Runtime", "Handler", "CodeUri"} & properties.keys()
        assert (properties["PackageType"], properties["Architectures"]) == ("Image", ["x86_64"])
        assert properties["ImageConfig"] == {"Command": [HANDLER]} == {"Command": ["serfer.lambdas.bootstrap.handler"]}
        assert function["Metadata"] == {
            "DockerContext": f"plans/{digest}/images/{stage}-{number}",
            "Dockerfile": "Dockerfile",
            "DockerTag": f"{digest}-{stage}-{number}",
        }
    assert f"Weights{digest}S0N0" not in source["Resources"]
    assert f"Weights{digest}S2N0" in source["Resources"]
    assert images_of(plan) == [f"{digest}-{stage}-{part}" for stage, part in plan.functions if stage in {0, 3}]


def test_the_context_of_an_image_has_what_the_packages_of_a_function_have(build, directory):
    place, plan = build(), load_plan(directory)
    digest = digest12(plan)
    for number in (0, 1):
        context = place / "plans" / digest / "images" / f"{number}-0"
        wanted = {"serfer/code.py", "plan.json", *(file.path for file in plan.packaged(number, 0))}
        assert files(assembled(context, place.parent / f"task-{number}")) == wanted
        weights = plan.stages[number].functions[0].weights
        assert (context / "function" / weights.path).read_bytes() == (directory / weights.path).read_bytes()
    lines = (context / DOCKERFILE).read_text().splitlines()
    assert lines[:2] == ["ARG BASE_IMAGE=public.ecr.aws/lambda/python:3.13", "FROM ${BASE_IMAGE}"]
    present = files(place)
    assert not [name for name in present if name.startswith(f"plans/{digest}/weights/0-")]
    assert f"plans/{digest}/functions/2-0/plan.json" in present
    assert (place / "driver" / "plans" / digest / "plan.json").read_bytes() == (directory / "plan.json").read_bytes()


def test_another_base_image_is_in_the_dockerfile(build, directory):
    place = build(base_image="registry.example/lambda-python@sha256:" + "0" * 64)
    context = place / "plans" / digest12(load_plan(directory)) / "images" / "0-0"
    assert f"ARG BASE_IMAGE=registry.example/lambda-python@sha256:{'0' * 64}\n" in (context / DOCKERFILE).read_text()
    assert load_deployment(place).options.base_image.startswith("registry.example")
    with pytest.raises(UsageError, match="base_image"):
        build(base_image="two words")


def test_the_record_names_images_and_sam_is_told_to_make_repositories(build, directory):
    place = build()
    deployment, digest = load_deployment(place), digest12(load_plan(directory))
    assert deployment.images == (f"{digest}-0-0", f"{digest}-1-0")
    assert (place / "samconfig.toml").read_text().count("resolve_image_repos = true") == 2
    template = load_template(place)["Resources"]
    assert template[function_id(digest, 0, 0)]["Properties"]["PackageType"] == "Image"
    priced = price_build(place, FACTS, burst=1)
    [line] = [line for line in priced.idle if line.item.startswith("images in ECR")]
    assert line.quantity == sum(deployment.bytes[name] for name in ("0-0", "1-0")) / 1e9
    assert "AWS::ECR::Repository" in Build.load(place).types


def test_a_packaged_plan_of_images_becomes_the_previous_one(build, packed, tmp_path):
    place = build()
    before = files(place / "plans")
    packed(split_small(tmp_path / "other", gang="never", grids=[(1, 1)]))
    assert before <= files(place / "plans")
    assert (place / "samconfig.toml").read_text().count("resolve_image_repos = true") == 2  # it is deployed again
    assert len(load_deployment(place).images) == 2


def test_images_do_not_go_with_a_gpu_pool(directory):
    plan = load_plan(directory)
    pool = replace(OPTIONS, drivers="fleet", architecture="x86_64", gpu=GpuPool("g6.xlarge", 2))
    with pytest.raises(UsageError, match=r"--gpu-instance-type: stage-0 .* container image"):
        make_template(pool, [plan])


def test_an_image_has_a_limit_of_its_own(directory):
    plan = load_plan(directory)
    weights = replace(plan.stages[0].functions[0].weights, bytes=300_000_000)
    large = replace(plan.stages[0], functions=(replace(plan.stages[0].functions[0], weights=weights),))
    check_deployable(replace(plan, stages=(large, *plan.stages[1:])), OPTIONS, FACTS)
    in_zip = replace(large, weights_in="zip")
    with pytest.raises(UsageError, match="a function may have"):
        check_deployable(replace(plan, stages=(in_zip, *plan.stages[1:])), OPTIONS, FACTS)
    small = replace(FACTS, functions=replace(FACTS.functions, image_limit=200_000_000))
    with pytest.raises(UsageError, match="a container image may have"):
        check_deployable(replace(plan, stages=(large, *plan.stages[1:])), OPTIONS, small)


def test_an_image_cannot_be_downloaded_as_the_previous_plan(tmp_path):
    class Session:
        def client(self, _):
            return self

        def get_function(self, **_):
            return {"Code": {"ImageUri": "1.dkr.ecr/x:y"}}

    stack = DeployedStack("shop-dev", "id", "ok", True, "shop-dev", ("a" * 12,), "a" * 12, "s3", ())  # noqa: FBT003
    with pytest.raises(UsageError, match="container images"):
        fetch_plan(stack, "a" * 12, Session(), tmp_path, lambda _: None)


def test_a_deployer_of_images_may_fill_the_stacks_own_repositories_and_no_others():
    types, target = {"AWS::Serverless::Function", "AWS::ECR::Repository"}, Target(["shop-dev"], [REGION], "1" * 12)
    allowed = {one["Sid"]: one for one in statements(types, target)}
    assert allowed["Ecr"]["Resource"] == [f"arn:aws:ecr:{REGION}:{'1' * 12}:repository/{repositories('shop-dev')}*"]
    assert "ecr:PutImage" in allowed["Ecr"]["Action"]
    assert "ecr:GetAuthorizationToken" in allowed["Unnamed"]["Action"]
    companion = f"stack/{companion_stack('shop-dev')}/x"
    named = [arn.rpartition(":")[2] for arn in allowed["Cloudformation"]["Resource"]]
    assert any(re.fullmatch(name.replace("*", ".*"), companion) for name in named)
    without = {one["Sid"]: one for one in statements(types - {"AWS::ECR::Repository"}, target)}
    assert not [arn for arn in without["Cloudformation"]["Resource"] if "Companion" in arn]


@pytest.mark.skipif(not SAM.exists(), reason="make setup did not get SAM CLI")
def test_sam_clis_own_names_are_those_that_are_deleted():
    code = SAM.parents[1].glob("lib/*/site-packages/samcli/lib/bootstrap/companion_stack/data_types.py")
    text = next(code).read_text()
    assert 'f"{self._parent_stack_name[:104]}-{self._parent_stack_hash[:8]}-CompanionStack"' in text
    assert 'r"[^a-z0-9]", "", self._parent_stack_name.lower()' in text


@pytest.mark.deploy
def test_the_bill_of_materials_names_the_base_image(directory, cache):
    document = json.loads(dump_sbom(OPTIONS, [load_plan(directory)], cache))
    containers = [each["name"] for each in document["components"] if each["type"] == "container"]
    assert containers == ["public.ecr.aws/lambda/python:3.13"]


@pytest.mark.deploy
def test_what_an_image_is_built_of_answers_under_lambdas_python(
    directory, worker, python313, runtime313, cache, tmp_path, monkeypatch
):
    directory = put_weights_in(shutil.copytree(directory, tmp_path / "plan"), "image")
    plan = load_plan(directory)
    with RedisServer() as redis:
        functions = []
        for stage, number in plan.functions:
            context = tmp_path / f"context-{stage}"
            image_directory(context, plan, directory, stage, number, worker[0], OPTIONS.builds_on)
            functions.append(
                FunctionConfig(
                    name=plan.deployed(STACK, stage, number),
                    directory=assembled(context, tmp_path / f"task-{stage}"),
                    handler=HANDLER,
                    environment={"SERFER_STORE": redis.url},
                    python=python313,
                )
            )
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "x")
        monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
        monkeypatch.setenv("SERFER_FUNCTION_PREFIX", STACK)
        with lambda_service(functions, cache, {python313: runtime313}) as service:
            monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", service.url)
            with serfer.open(directory, workers="aws", store=redis.url) as pipeline:
                given = pipeline.run(batch(2))
    with serfer.open(directory, workers="inprocess") as pipeline:
        expected = pipeline.run(batch(2))
    assert np.abs(given - expected).max() <= 1e-4 * np.ptp(expected)
    shutil.rmtree(tmp_path)  # it is large, and pytest keeps what three runs wrote
