"""`serfer deploy apply`, updates, rollback and destroy on ministack: SAM CLI deploys what was packaged, unaltered.

The stack goes through its life in the order of the tests; each fixture makes one step and depends on the one before.
What ministack proves: names, references, order, layers, environments, API keys, the logic of updates, the code under
Lambda's Python. What it does not: IAM's decisions, quotas, validation by the services, networks, times.
"""

import shutil
from dataclasses import replace

import httpx
import pytest

from serfer.client.sync_client import Client
from serfer.core.errors import KeyRefusedError
from serfer.plan_directory import load_plan
from tests.sam.built import SAM
from tests.sam.deployed import PATIENCE_S, Deployed, check_permissions, deployed, predictions

pytestmark = [pytest.mark.deploy, pytest.mark.skipif(not SAM.exists(), reason="make setup did not get SAM CLI")]


@pytest.fixture(scope="module")
def created(account, plans, tmp_path_factory):
    stack = Deployed(account, tmp_path_factory.mktemp("created") / "build", "demo")
    stack.package(plans[0])
    stack.make("apply")
    yield stack
    shutil.rmtree(stack.build)  # it is large, and pytest keeps what three runs wrote


@pytest.fixture(scope="module")
def updated(created, plans, tmp_path_factory):
    """Updated from a BUILD directory made from scratch, as in a pipeline: it knows nothing of the first plan."""
    stack = replace(created, build=tmp_path_factory.mktemp("elsewhere") / "build")
    stack.package(plans[1], "--previous-of", stack.stack)
    stack.make("apply")
    yield stack
    shutil.rmtree(stack.build)


@pytest.fixture(scope="module")
def rolled_back(updated):
    updated.make("rollback")
    return updated


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
    created.ask(plans[0], image, expected)
    refused = httpx.post(f"{url}/v1/classify", content=b"no", headers={**headers, "content-type": "image/png"})
    assert refused.status_code == httpx.codes.UNSUPPORTED_MEDIA_TYPE, refused.text


@pytest.mark.who_may
def test_every_permission_names_the_stacks_own_resources(created):
    check_permissions(created, {"DriverRole", "WorkerRole"})


@pytest.mark.weekly
def test_a_state_machine_takes_a_query_through_the_stack_it_came_with(
    account, plans, image, expected, tmp_path_factory
):
    root, machines = tmp_path_factory.mktemp("steps"), account.client("stepfunctions")
    with deployed(account, root, "steps", plans[0], "--engine", "stepfunctions") as stack:
        check_permissions(stack, {"DriverRole", "WorkerRole", "MachineRole"})
        report = stack.classify(plans[0], image, "--set", "engine=stepfunctions")
        assert predictions(report) == expected
        machine = stack.outputs["StateMachine"]
        (run,) = machines.list_executions(stateMachineArn=machine)["executions"]
        assert run["status"] == "SUCCEEDED"
        stack.ask(plans[0], image, expected)
        assert len(machines.list_executions(stateMachineArn=machine)["executions"]) == 2
    assert machines.list_state_machines()["stateMachines"] == []


def test_an_update_serves_the_new_plan_and_keeps_the_one_before(created, plans, image, expected, request):
    before = created.code(plans[0])
    updated = request.getfixturevalue("updated")
    assert updated.code(plans[0]) == before  # fetched from the stack, they are what they were
    old, new = (load_plan(plan).digest for plan in plans)
    assert (updated.outputs["Plans"], updated.outputs["Serving"]) == (f"{new[:12]},{old[:12]}", new[:12])
    assert updated.functions == updated.named(*plans)
    for plan in plans:  # what is under way ends on the functions that it began on
        assert predictions(updated.classify(plan, image)) == expected
    updated.ask(plans[1], image, expected)


def test_a_rollback_serves_the_plan_before(rolled_back, plans, image, expected):
    old = load_plan(plans[0]).digest
    assert rolled_back.outputs["Serving"] == old[:12]
    assert rolled_back.functions == rolled_back.named(*plans)
    rolled_back.ask(plans[0], image, expected)
    again = rolled_back.tried(*rolled_back.target("rollback"))
    assert again.returncode != 0
    assert f"went back to {old[:12]} already" in again.stderr


@pytest.mark.weekly
def test_a_stack_whose_plan_cannot_be_kept_is_replaced_and_goes_back_by_its_earlier_directory(
    rolled_back, plans, image, expected, tmp_path_factory
):
    """As after a change of the plan's format: there and back, with functions of one plan at a time."""
    builds = [replace(rolled_back, build=tmp_path_factory.mktemp("alone") / "build") for _ in plans]
    for stack, plan in zip(builds, plans, strict=True):
        stack.package(plan, "--no-previous")
    for stack, plan in zip(builds[::-1], plans[::-1], strict=True):
        stack.make("apply", "--replace")
        assert stack.functions == rolled_back.named(plan)
        stack.ask(plan, image, expected)
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
