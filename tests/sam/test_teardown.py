"""`serfer deploy destroy`: a stack goes with all that it holds, and with what SAM CLI uploaded for it."""

import json

import pytest
from botocore.stub import Stubber

from serfer.core.errors import UnavailableError, UsageError
from serfer.sam import teardown
from serfer.sam.options import Options
from serfer.sam.samconfig import samconfig
from serfer.sam.stacks import companion_stack, repositories
from tests.sam.deployed import called

STACK = "demo-dev"


def template(**buckets):
    resources = {name: {"Type": "AWS::S3::Bucket", "Properties": given} for name, given in buckets.items()}
    outputs = {"SourceBucket": {"Value": {"Ref": next(iter(buckets))}}}
    return json.dumps({"Resources": resources, "Outputs": outputs})


def made(session, name, tag="serfer:stack", **buckets):
    formation = session.client("cloudformation")
    formation.create_stack(StackName=name, TemplateBody=template(**buckets), Tags=[{"Key": tag, "Value": name}])
    made = formation.describe_stack_resources(StackName=name)["StackResources"]
    return {each["LogicalResourceId"]: each["PhysicalResourceId"] for each in made}


def filled(session, bucket, *keys):
    store = session.client("s3")
    for key in keys:
        store.put_object(Bucket=bucket, Key=key, Body=b"x")
    return store


def listed(store, bucket):
    return [each["Key"] for each in store.list_objects_v2(Bucket=bucket).get("Contents", ())]


def test_a_stack_with_full_buckets_is_deleted(aws):
    versioned = {"VersioningConfiguration": {"Status": "Enabled"}}
    buckets = made(aws, STACK, Store={}, Logs=versioned)
    store = filled(aws, buckets["Store"], "serfer/a", "serfer/b")
    filled(aws, buckets["Logs"], "x", "x", "x")
    store.delete_object(Bucket=buckets["Logs"], Key="x")
    store.create_multipart_upload(Bucket=buckets["Store"], Key="half")
    lines = []
    teardown.tear_down(STACK, aws, lines.append)
    assert store.list_buckets()["Buckets"] == []
    assert len([line for line in lines if line.startswith("emptying")]) == 2


def test_the_repositories_of_a_stacks_images_go_with_it(aws):
    made(aws, STACK, Store={})
    formation, registry = aws.client("cloudformation"), aws.client("ecr")
    names = [f"{repositories(STACK)}function{number}repo" for number in range(2)]
    resources = {
        f"Repo{number}": {"Type": "AWS::ECR::Repository", "Properties": {"RepositoryName": name}}
        for number, name in enumerate(names)
    }
    formation.create_stack(StackName=companion_stack(STACK), TemplateBody=json.dumps({"Resources": resources}))
    kind = "application/vnd.docker.distribution.manifest.v2+json"
    manifest = json.dumps({"schemaVersion": 2, "mediaType": kind, "config": {"digest": "sha256:0"}, "layers": []})
    registry.put_image(repositoryName=names[0], imageManifest=manifest, imageTag="x")
    registry.create_repository(repositoryName="of-another-stack")
    lines = []
    teardown.tear_down(STACK, aws, lines.append)
    assert [each["repositoryName"] for each in registry.describe_repositories()["repositories"]] == ["of-another-stack"]
    live = [each for each in formation.list_stacks()["StackSummaries"] if each["StackStatus"] != "DELETE_COMPLETE"]
    assert live == []
    assert [line for line in lines if "repo" in line] == [f"emptying {name}" for name in names]


def test_unfinished_uploads_are_aborted(aws):
    """A bucket with more uploads than one page of S3's list could not be deleted at first."""
    store = filled(aws, made(aws, STACK, Store={})["Store"])
    bucket = store.list_buckets()["Buckets"][0]["Name"]
    more = {"IsTruncated": True, "NextKeyMarker": "a", "NextUploadIdMarker": "1"}
    with Stubber(store) as stubber:
        stubber.add_response("list_object_versions", {})
        for key, number, marks in (("a", "1", more), ("b", "2", {"IsTruncated": False})):
            listing = {"Uploads": [{"Key": key, "UploadId": number}], **marks}
            asked = {} if key == "a" else {"KeyMarker": "a", "UploadIdMarker": "1"}
            stubber.add_response("list_multipart_uploads", listing, {"Bucket": bucket, "Prefix": "", **asked})
            stubber.add_response("abort_multipart_upload", {}, {"Bucket": bucket, "Key": key, "UploadId": number})
        teardown._empty(store, bucket)
        stubber.assert_no_pending_responses()


def test_only_this_stacks_sam_uploads_are_deleted(aws):
    bucket = made(aws, "aws-sam-cli-managed-default", SamCliSourceBucket={})["SamCliSourceBucket"]
    store = filled(aws, bucket, f"{STACK}/code", f"{STACK}/template", "demo-dev2/code", "other")
    made(aws, STACK, Store={})
    teardown.tear_down(STACK, aws, lambda _: None)
    assert listed(store, bucket) == ["demo-dev2/code", "other"]


def test_the_command_deletes_the_stack_of_samconfig(aws, tmp_path, capsys):
    (tmp_path / "samconfig.toml").write_bytes(samconfig(Options("demo")))
    made(aws, STACK, Store={})
    assert called("destroy", str(tmp_path), "dev") == 0
    assert aws.client("s3").list_buckets()["Buckets"] == []
    assert called("destroy", str(tmp_path), "prod") == 2
    assert "no stack demo-prod in us-east-1" in capsys.readouterr().err
    assert called("destroy", str(tmp_path), "elsewhere") == 3
    assert "'elsewhere'" in capsys.readouterr().err


def test_a_stack_of_others_is_left_alone_and_one_that_is_not_there_is_named(aws):
    bucket = made(aws, STACK, tag="theirs", Store={})["Store"]
    store = filled(aws, bucket, "precious")
    with pytest.raises(UsageError, match=f"{STACK} is not a stack of serfer deploy package"):
        teardown.tear_down(STACK, aws, lambda _: None)
    assert listed(store, bucket) == ["precious"]
    with pytest.raises(UsageError, match="no stack nowhere in us-east-1"):
        teardown.tear_down("nowhere", aws, lambda _: None)


def test_undeletable_resources_are_named_after_three_tries(aws, monkeypatch):
    made(aws, STACK, Store={})
    left = []
    monkeypatch.setattr(teardown, "_left", lambda *_: left.append(1) or ["Store"])
    with pytest.raises(UnavailableError, match="Store could not be deleted"):
        teardown.tear_down(STACK, aws, lambda _: None)
    assert len(left) == 3
