"""`make deploy`, update, rollback and destroy on ministack: SAM CLI deploys what `serfer package` wrote, unaltered.

The stack goes through its life in the order of the tests; each fixture makes one step and depends on the one before.
What ministack proves: names, references, order, layers, environments, API keys, the logic of updates, the code under
Lambda's Python. What it does not: IAM's decisions, quotas, validation by the services, networks, times.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import numpy as np
import pytest

import serfer
from sam import weights
from sam.build.package import package
from serfer.client.sync_client import Client
from serfer.core.errors import KeyRefusedError
from serfer.local.lambda_.function import ACCOUNT, REGION
from serfer.plan_directory import COLD_DIRECTORY, load_plan
from serfer.settings import load_settings
from splitter.split import split
from tests.api.conftest import png
from tests.e2e.dense import split_dense
from tests.e2e.small import batch, put_weights_in, split_small
from tests.sam.built import SAM
from tests.sam.conftest import OPTIONS
from tests.sam.ministack import Ministack

ROOT = Path(__file__).parents[2]
PHOTOGRAPH = ROOT / "examples" / "images" / "chelsea.png"
PATIENCE_S = 300.0  # several cold starts on a busy machine
GRIDS = ([(1, 2), (1, 1)], [(2, 1), (1, 1)])
MAPS = ("scores", "classes", "head/depth")
pytestmark = [pytest.mark.deploy, pytest.mark.skipif(not SAM.exists(), reason="make setup did not get SAM CLI")]


@dataclass(frozen=True)
class Deployed:
    """A stack in an account, by the BUILD directory and the environment that it comes from."""

    account: Ministack
    build: Path
    name: str

    @property
    def stack(self):
        return f"{self.name}-dev"

    @property
    def variables(self):
        kept = {name: os.environ[name] for name in ("PATH", "SERFER_CACHE_DIR") if name in os.environ}
        home = {"HOME": str(self.build.parent), "SERFER_CACHE_DIR": str(load_settings().cache_dir)}
        return {**home, **kept, **self.account.environment}

    def tried(self, *command):
        """Run a command as a user of this account."""
        return subprocess.run(command, cwd=ROOT, env=self.variables, capture_output=True, text=True, check=False)

    def run(self, *command):
        """Run a command that has to succeed; return what it printed."""
        done = self.tried(*command)
        assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout

    def target(self, name, *variables):
        """The command line of a target of the Makefile, which sets nothing up again."""
        return ("make", "--old-file=.venv/.set-up", name, f"BUILD={self.build}", "ENV=dev", *variables)

    def make(self, target, *variables):
        self.run(*self.target(target, *variables))

    def package(self, plan, *options):
        place = ("--out", self.build, "--name", self.name, "--store", "s3")
        self.run(sys.executable, "-m", "serfer", "package", plan, *place, *options)

    def classify(self, plan, image, *options):
        """Ask the stack's functions; where they start, it takes as long as it takes, unlike by the REST API."""
        patience = ("--deadline-ms", str(int(1000 * PATIENCE_S)))
        words = ("classify", image, "--plan", plan, "--stack", self.stack, "--json", *patience, *options)
        return json.loads(self.run(sys.executable, "-m", "serfer", *words))

    @property
    def outputs(self):
        (stack,) = self.account.client("cloudformation").describe_stacks(StackName=self.stack)["Stacks"]
        return {each["OutputKey"]: each["OutputValue"] for each in stack["Outputs"]}

    @property
    def url(self):
        return self.account.api(self.outputs["Url"])

    @property
    def key(self):
        described = self.account.client("apigateway").get_api_key(apiKey=self.outputs["ApiKeyId"], includeValue=True)
        return described["value"]

    @property
    def functions(self):
        listed = self.account.client("lambda").list_functions()["Functions"]
        return {each["FunctionName"] for each in listed if each["FunctionName"].startswith(f"{self.stack}-")}

    def code(self, plan):
        """What a plan's functions run: their packages' digests, and their layers."""
        client, loaded = self.account.client("lambda"), load_plan(plan)
        described = [
            client.get_function_configuration(FunctionName=loaded.deployed(self.stack, *part))
            for part in loaded.functions
        ]
        return [(each["CodeSha256"], [layer["Arn"] for layer in each["Layers"]]) for each in described]

    def named(self, *plans):
        """The names that plans' functions have, with the driver's."""
        parts = ((load_plan(plan), part) for plan in plans for part in load_plan(plan).functions)
        return {f"{self.stack}-driver", *(plan.deployed(self.stack, *part) for plan, part in parts)}


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    """Two plans of one network."""
    root = tmp_path_factory.mktemp("plans")
    return [split_small(root / str(number), grids=grids) for number, grids in enumerate(GRIDS)]


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    path = tmp_path_factory.mktemp("image") / "noise.png"
    path.write_bytes(png())
    return path


@pytest.fixture(scope="module")
def expected(plans, image):
    """The unsplit network's answer: label and score, best first."""
    with serfer.open(plans[0], workers="inprocess") as pipeline:
        (answer,) = pipeline.classify([image])
    return [(each.label, each.score) for each in answer.predictions]


@pytest.fixture(scope="module")
def created(account, plans, tmp_path_factory):
    stack = Deployed(account, tmp_path_factory.mktemp("created") / "build", "demo")
    stack.package(plans[0])
    stack.make("deploy")
    yield stack
    shutil.rmtree(stack.build)  # it is large, and pytest keeps what three runs wrote


@pytest.fixture(scope="module")
def elsewhere(created, plans, tmp_path_factory):
    """A BUILD directory made from scratch, as in a pipeline's checkout: it knows nothing of the first plan."""
    stack = replace(created, build=tmp_path_factory.mktemp("elsewhere") / "build")
    stack.package(plans[1])
    yield stack
    shutil.rmtree(stack.build)


@pytest.fixture(scope="module")
def updated(elsewhere, plans):
    elsewhere.package(plans[1], "--previous-of", elsewhere.stack)
    elsewhere.make("deploy")
    return elsewhere


@pytest.fixture(scope="module")
def rolled_back(updated):
    updated.make("rollback")
    return updated


def predictions(report):
    return [(each["label"], pytest.approx(each["score"], abs=1e-4)) for each in report["images"][0]["predictions"]]


def test_a_query_by_stack_is_answered_as_by_the_unsplit_network(created, plans, image, expected):
    report = created.classify(plans[0], image)
    assert predictions(report) == expected
    assert report["store"]["bytes_put"] > 0  # by way of the stack's bucket
    assert created.functions == created.named(plans[0])


def test_the_rest_api_wants_a_key_and_answers_with_one(created, plans, image, expected):
    url, headers = created.url, {"x-api-key": created.key}
    for path in ("/healthz", "/readyz", "/v1/models"):
        assert httpx.get(url + path, timeout=PATIENCE_S).status_code == httpx.codes.FORBIDDEN
        assert httpx.get(url + path, headers=headers, timeout=PATIENCE_S).status_code == httpx.codes.OK, path
    with Client(url, api_key="0" * 32, retries=0) as stranger, pytest.raises(KeyRefusedError):
        stranger.classify(image)
    with Client(url, api_key=created.key, timeout_s=PATIENCE_S) as client:
        report = client.classify(image)
    assert report.plan == load_plan(plans[0]).digest
    assert [(each.label, pytest.approx(each.score, abs=1e-4)) for each in report.images[0].predictions] == expected
    refused = httpx.post(f"{url}/v1/classify", content=b"no", headers={**headers, "content-type": "image/png"})
    assert refused.status_code == httpx.codes.UNSUPPORTED_MEDIA_TYPE, refused.text


def check_permissions(stack, roles):
    """Look whether every permission of a stack's roles is one on what belongs to the stack."""
    client = stack.account.client("iam")
    owned = (
        stack.outputs["Store"].rpartition("/")[0].replace("s3://", "arn:aws:s3:::"),
        f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{stack.stack}-",
        f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:/serfer/{stack.stack}/",
        f"arn:aws:states:{REGION}:{ACCOUNT}:stateMachine:{stack.stack}-",
        f"arn:aws:states:{REGION}:{ACCOUNT}:execution:{stack.stack}-",
    )
    made = stack.account.client("cloudformation").describe_stack_resources(StackName=stack.stack)["StackResources"]
    granted = {
        each["LogicalResourceId"]: each["PhysicalResourceId"] for each in made if each["ResourceType"].endswith("Role")
    }
    assert set(granted) == roles
    for role in granted.values():
        (policy,) = client.list_role_policies(RoleName=role)["PolicyNames"]
        for statement in client.get_role_policy(RoleName=role, PolicyName=policy)["PolicyDocument"]["Statement"]:
            named = statement["Resource"] if isinstance(statement["Resource"], list) else [statement["Resource"]]
            assert all(arn.startswith(owned) and "${" not in arn for arn in named), (role, named)


def test_every_permission_names_the_stacks_own_resources(created):
    check_permissions(created, {"DriverRole", "WorkerRole"})


def test_a_state_machine_takes_a_query_through_the_stack_it_came_with(
    account, plans, image, expected, tmp_path_factory
):
    stack = Deployed(account, tmp_path_factory.mktemp("steps") / "build", "steps")
    stack.package(plans[0], "--driver", "stepfunctions")
    stack.make("deploy")
    check_permissions(stack, {"DriverRole", "WorkerRole", "MachineRole"})
    report = stack.classify(plans[0], image, "--driver", "stepfunctions")
    assert predictions(report) == expected
    machines = account.client("stepfunctions")
    (run,) = machines.list_executions(stateMachineArn=stack.outputs["StateMachine"])["executions"]
    assert run["status"] == "SUCCEEDED"
    with Client(stack.url, api_key=stack.key, timeout_s=PATIENCE_S) as client:
        assert client.classify(image).images[0].predictions[0].label == expected[0][0]
    assert len(machines.list_executions(stateMachineArn=stack.outputs["StateMachine"])["executions"]) == 2
    stack.make("destroy")
    assert stack.functions == set()
    assert machines.list_state_machines()["stateMachines"] == []
    shutil.rmtree(stack.build)


def test_an_update_that_would_delete_the_plan_that_is_served_is_refused(elsewhere, plans):
    served = load_plan(plans[0]).digest[:12]
    done = elsewhere.tried(*elsewhere.target("deploy"))
    assert done.returncode != 0
    assert f"{elsewhere.stack} serves the plan {served}" in done.stderr
    assert elsewhere.functions == elsewhere.named(plans[0])


def test_an_update_serves_the_new_plan_and_keeps_the_one_before(created, plans, image, expected, request):
    before = created.code(plans[0])
    updated = request.getfixturevalue("updated")
    assert updated.code(plans[0]) == before  # fetched from the stack, they are what they were
    old, new = (load_plan(plan).digest for plan in plans)
    assert (updated.outputs["Plans"], updated.outputs["Serving"]) == (f"{new[:12]},{old[:12]}", new[:12])
    assert updated.functions == updated.named(*plans)
    for plan in plans:  # what is under way ends on the functions that it began on
        assert predictions(updated.classify(plan, image)) == expected
    with Client(updated.url, api_key=updated.key, timeout_s=PATIENCE_S) as client:
        assert client.classify(image).plan == new


def test_a_rollback_serves_the_plan_before(rolled_back, plans, image):
    old = load_plan(plans[0]).digest
    assert rolled_back.outputs["Serving"] == old[:12]
    assert rolled_back.functions == rolled_back.named(*plans)
    with Client(rolled_back.url, api_key=rolled_back.key, timeout_s=PATIENCE_S) as client:
        assert client.classify(image).plan == old
    again = rolled_back.tried(*rolled_back.target("rollback"))
    assert again.returncode != 0
    assert f"went back to {old[:12]} already" in again.stderr


def test_a_stack_whose_plan_cannot_be_kept_is_replaced_and_goes_back_by_its_earlier_directory(
    rolled_back, elsewhere, plans, image, expected, tmp_path_factory
):
    """As after a change of the plan's format: there and back, with functions of one plan at a time."""
    builds = [replace(elsewhere, build=tmp_path_factory.mktemp("alone") / "build") for _ in plans]
    for stack, plan in zip(builds, plans, strict=True):
        stack.package(plan, "--no-previous")
    for stack, plan in zip(builds[::-1], plans[::-1], strict=True):
        stack.make("deploy", "REPLACE=1")
        assert stack.functions == rolled_back.named(plan)
        with Client(stack.url, api_key=stack.key, timeout_s=PATIENCE_S) as client:
            report = client.classify(image)
        assert report.plan == load_plan(plan).digest
        assert [(each.label, pytest.approx(each.score, abs=1e-4)) for each in report.images[0].predictions] == expected
        shutil.rmtree(stack.build)


def test_destroy_leaves_nothing_that_bills(updated):
    store, logs = updated.account.client("s3"), updated.account.client("logs")
    (uploads,) = [each["Name"] for each in store.list_buckets()["Buckets"] if "samclisourcebucket" in each["Name"]]
    assert store.list_objects_v2(Bucket=uploads, Prefix=f"{updated.stack}/")["KeyCount"] > 0
    store.put_object(Bucket=updated.outputs["Store"].split("/")[2], Key="serfer/left", Body=b"by a query that died")
    updated.make("destroy")
    assert [each["Name"] for each in store.list_buckets()["Buckets"]] == [uploads]
    assert store.list_objects_v2(Bucket=uploads)["KeyCount"] == 0
    assert updated.functions == set()
    assert updated.account.client("lambda").list_layers()["Layers"] == []
    assert updated.account.client("iam").list_roles()["Roles"] == []
    assert updated.account.client("apigateway").get_rest_apis()["items"] == []
    assert [each["logGroupName"] for each in logs.describe_log_groups(logGroupNamePrefix="/serfer/")["logGroups"]] == []


@pytest.fixture(scope="module")
def fetching(account, tmp_path_factory):
    """A stack whose functions fetch their weights, in several pieces each, and its plan."""
    root = tmp_path_factory.mktemp("fetching")
    directory = put_weights_in(split_small(root, gang="never"), "fetched")
    stack = Deployed(account, root / "build", "fetching")
    settings, options = load_settings(), replace(OPTIONS, name="fetching", region=REGION)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(weights, "PIECE_BYTES", 1500)  # ministack has no least size of a part
        package(directory, stack.build, options, settings, progress=lambda _: None)
    stack.make("deploy")
    yield stack, directory
    shutil.rmtree(stack.build)


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


def test_a_stack_whose_functions_fetch_their_weights_leaves_nothing(fetching):
    stack, _ = fetching
    stack.make("destroy")
    assert stack.functions == set()
    assert not [each for each in stack.account.client("s3").list_buckets()["Buckets"] if "weights" in each["Name"]]


@pytest.fixture(scope="module")
def keeping(account, tmp_path_factory):
    """A stack that keeps results, of a network with maps, and that plan."""
    root = tmp_path_factory.mktemp("keeping")
    directory = split_dense(root, MAPS, grids=["2x2", "1x2"], cuts=["relu1"])
    stack = Deployed(account, root / "build", "keeping")
    stack.package(directory, "--results-days", "1")
    stack.make("deploy")
    yield stack, directory
    shutil.rmtree(stack.build)


def test_results_lie_in_the_stacks_bucket_and_are_read_by_links(keeping, tmp_path):
    stack, directory = keeping
    with serfer.open(directory, workers="inprocess") as pipeline:
        expected = pipeline.run(batch(2))
    bucket, _, prefix = stack.outputs["Results"].removeprefix("s3://").partition("/")
    store = stack.account.client("s3")
    with Client(stack.url, api_key=stack.key, timeout_s=PATIENCE_S) as client:
        result = client.infer(batch(2), model="dense", result="link", deadline_ms=28_000)
        for name, array in expected.items():
            assert np.allclose(np.load(result.download(name, tmp_path / "output.npy")), array, atol=1e-4)
        listed = store.list_objects_v2(Bucket=bucket)["Contents"]
        assert len(listed) == 3  # a part of each tile, and the manifest
        assert all(each["Key"].startswith(f"{prefix}/") for each in listed)
        place = f"{stack.url}/v2/results/{result.id}/parts/scores"
        parts = httpx.get(place, headers={"x-api-key": stack.key}, timeout=PATIENCE_S).json()["parts"]
        for part in parts:
            got = httpx.get(part["url"], headers={"Range": f"bytes={part['offset']}-{part['offset'] + 7}"})
            assert (got.status_code, len(got.content)) == (httpx.codes.PARTIAL_CONTENT, 8), got.text
        result.delete()
    assert store.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


def test_a_stack_that_keeps_results_leaves_nothing(keeping):
    stack, _ = keeping
    with Client(stack.url, api_key=stack.key, timeout_s=PATIENCE_S) as client:
        client.infer(batch(1), model="dense", result="link", deadline_ms=28_000)
    stack.make("destroy")
    assert stack.functions == set()
    assert not [each for each in stack.account.client("s3").list_buckets()["Buckets"] if "keeping" in each["Name"]]


@pytest.fixture(scope="module")
def recommended(account, tmp_path_factory):
    """A stack with the plan that `split` chooses for AlexNet: one function that fetches 233 MB of weights."""
    directory = tmp_path_factory.mktemp("recommended") / "plan"
    split("alexnet", out=directory, progress=lambda _: None)
    stack = Deployed(account, directory.parent / "build", "alexnet")
    stack.package(directory)
    stack.make("deploy")
    yield stack, directory
    shutil.rmtree(directory.parent)


def test_the_plan_that_split_recommends_for_a_network_that_no_zip_holds_answers_as_deployed(recommended):
    stack, directory = recommended
    plan = load_plan(directory)
    assert [stage.weights_in for stage in plan.stages] == ["fetched"]
    assert plan.stages[0].functions[0].weights.bytes > plan.limit.room
    with serfer.open(directory, workers="inprocess") as pipeline:
        (answer,) = pipeline.classify([PHOTOGRAPH])
    expected = [(each.label, each.score) for each in answer.predictions]
    assert predictions(stack.classify(directory, PHOTOGRAPH)) == expected
    assert check_answer(stack, directory, PHOTOGRAPH, expected).bytes_put == 0  # the driver fetches them, too
    stack.make("destroy")
    assert stack.functions == set()


@pytest.fixture(scope="module")
def alone(account, tmp_path_factory):
    """A stack whose driver function runs the plan itself, and that plan."""
    directory = split_small(tmp_path_factory.mktemp("alone"), grids=[(1, 1)])
    stack = Deployed(account, directory.parent / "build", "alone")
    stack.package(directory)
    stack.make("deploy")
    yield stack, directory
    shutil.rmtree(stack.build)


def check_answer(stack, plan, image, expected):
    """Ask by the REST API; return what the query did with the store."""
    with Client(stack.url, api_key=stack.key, timeout_s=PATIENCE_S) as client:
        report = client.classify(image)
    assert report.plan == load_plan(plan).digest
    assert [(each.label, pytest.approx(each.score, abs=1e-4)) for each in report.images[0].predictions] == expected
    return report.store


def test_a_driver_that_runs_its_plan_answers_by_the_rest_api_and_leaves_health_checks_to_another(
    alone, image, expected
):
    stack, directory = alone
    assert stack.functions == stack.named(directory) | {f"{stack.stack}-health"}
    driver = stack.account.client("lambda").get_function_configuration(FunctionName=f"{stack.stack}-driver")
    assert driver["Environment"]["Variables"]["SERFER_WORKERS"] == "inprocess"
    assert check_answer(stack, directory, image, expected).bytes_put == 0
    assert predictions(stack.classify(directory, image)) == expected  # its function is there, too
    for path, body in (("/healthz", {"live": True}), ("/readyz", {"ready": True})):
        assert httpx.get(stack.url + path, timeout=PATIENCE_S).status_code == httpx.codes.FORBIDDEN
        answer = httpx.get(stack.url + path, headers={"x-api-key": stack.key}, timeout=PATIENCE_S)
        assert (answer.status_code, answer.json()) == (httpx.codes.OK, body)
        assert "x-request-id" not in answer.headers  # which the driver gives
    check_permissions(stack, {"DriverRole", "WorkerRole", "HealthRole"})


def test_a_driver_that_ran_its_plan_invokes_the_functions_of_the_next(alone, plans, image, expected):
    stack, directory = alone
    stack.package(plans[0])
    stack.make("deploy")
    assert check_answer(stack, plans[0], image, expected).bytes_put > 0
    stack.make("rollback")
    assert check_answer(stack, directory, image, expected).bytes_put == 0
    stack.make("destroy")
    assert stack.functions == set()


@pytest.fixture(scope="module")
def pair(account, plans, tmp_path_factory):
    """A stack with a plan of one function, its cold plan of several and a schedule of pings; and the plan."""
    root = tmp_path_factory.mktemp("pair")
    directory = split_small(root, grids=[(1, 1)])
    shutil.copytree(plans[0], directory / COLD_DIRECTORY)
    stack = Deployed(account, root / "build", "pair")
    stack.package(directory, "--ping-every", "5")
    stack.make("deploy")
    yield stack, directory
    shutil.rmtree(stack.build)


def test_a_deployment_of_two_plans_answers_cold_queries_on_one_and_warm_ones_on_the_other(pair, plans, image, expected):
    stack, directory = pair
    whole, cold = load_plan(directory).digest, load_plan(plans[0]).digest
    assert stack.functions == stack.named(directory, plans[0])
    assert stack.outputs["Generations"] == f"{whole[:12]}:{cold[:12]}"
    for plan in (
        directory,
        plans[0],
    ):  # a laptop may ask each by itself, and the first one's driver has no environments
        assert predictions(stack.classify(plan, image)) == expected
    assert stack.classify(directory, image)["plan"] == cold
    with Client(stack.url, api_key=stack.key, timeout_s=PATIENCE_S) as client:
        first = client.classify(image)
        assert (first.plan, bool(first.plan_reason)) == (cold, True)
        assert [(each.label, pytest.approx(each.score, abs=1e-4)) for each in first.images[0].predictions] == expected


def test_a_ping_warms_the_functions_of_the_plan_so_that_queries_run_on_it(pair, image):
    stack, directory = pair
    [rule] = stack.account.client("events").list_rules(NamePrefix=stack.stack)["Rules"]
    [target] = stack.account.client("events").list_targets_by_rule(Rule=rule["Name"])["Targets"]
    functions = stack.account.client("lambda")
    assert target["Arn"] == functions.get_function(FunctionName=f"{stack.stack}-driver")["Configuration"]["FunctionArn"]
    called = functions.invoke(FunctionName=f"{stack.stack}-driver", Payload=target["Input"])
    [warmed] = json.loads(called["Payload"].read())["functions"]
    assert (warmed["asked"], warmed["warm"], warmed["problem"]) == (1, 1, None)
    with Client(stack.url, api_key=stack.key, timeout_s=PATIENCE_S) as client:
        assert client.classify(image).plan == load_plan(directory).digest


def test_a_stack_of_two_plans_leaves_nothing(pair):
    stack, _ = pair
    stack.make("destroy")
    assert stack.functions == set()
    assert stack.account.client("events").list_rules(NamePrefix=stack.stack)["Rules"] == []
