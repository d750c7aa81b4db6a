import inspect
import re

from sam import teardown
from sam.deployer import actions, policy
from tests.sam.offered import every_template, of_type, template, translated

MOST_INLINE_CHARACTERS = 10_240
CALLED = {  # what teardown.py calls, and what it takes
    "delete_objects": {"s3:DeleteObject", "s3:DeleteObjectVersion"},
    "list_object_versions": {"s3:ListBucketVersions"},
    "list_objects_v2": {"s3:ListBucket"},
    "list_multipart_uploads": {"s3:ListBucketMultipartUploads"},
    "abort_multipart_upload": {"s3:AbortMultipartUpload"},
    "describe_stacks": {"cloudformation:DescribeStacks"},
    "delete_stack": {"cloudformation:DeleteStack"},
    "list_stack_resources": {"cloudformation:ListStackResources"},
}


def types(source):
    return [resource["Type"] for resource in source["Resources"].values()]


def test_whoever_deploys_may_delete_as_well():
    allowed = set(actions(types(template())))
    text = inspect.getsource(teardown)
    for call, needed in CALLED.items():
        assert re.search(rf"\b{call}\b", text), call
        assert needed <= allowed
    assert "s3express:CreateSession" in actions(types(template(store="s3express")))


def test_whoever_deploys_may_do_what_sam_makes_of_a_function(monkeypatch):
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    source = template(snapstart=True)
    made = translated(source)
    allowed = set(actions(types(source)))
    assert of_type(made, "AWS::Lambda::EventInvokeConfig")
    assert {f"lambda:{verb}FunctionEventInvokeConfig" for verb in ("Put", "Update", "Delete")} <= allowed
    assert of_type(made, "AWS::Lambda::Version")
    assert {"lambda:PublishVersion", "lambda:CreateAlias", "lambda:UpdateAlias"} <= allowed


def test_sams_own_bucket_can_be_made():
    (statement,) = (
        one
        for one in policy(types(template()), "shop", "us-east-1", "123456789012")["Statement"]
        if one["Sid"] == "Cloudformation"
    )
    assert any(f":stack/{teardown._ARTEFACTS}/" in name for name in statement["Resource"])


def test_a_deployers_policy_fits_a_role():
    stack = "s" * 35
    for chosen, source in every_template():
        document = policy(types(source), stack, "ap-southeast-2", "123456789012")
        assert len("".join(str(document).split())) <= MOST_INLINE_CHARACTERS, chosen
