"""The function that writes weights into a deployment's bucket, on a real S3 server, called as CloudFormation does."""

import hashlib
import json
import threading
from types import SimpleNamespace

import boto3
import pytest
from botocore.exceptions import ClientError

from serfer.core.plan import Artefact
from serfer.sam import weights as module
from serfer.sam.build import uploader
from serfer.sam.build.layers import piece_directory
from serfer.sam.options import Options
from serfer.sam.template.functions import upload
from serfer.sam.weights import pieces
from serfer_bench.core.s3_server import S3Server
from tests.support.http_stub import serving

PIECE = 5 * 1024**2  # the least that S3 takes for a part that is not the last
CONTENTS = bytes(range(256)) * (2 * PIECE // 256) + b"the end"
SHA256 = hashlib.sha256(CONTENTS).hexdigest()
KEY = f"weights/{SHA256}"
WEIGHTS = Artefact("stage-0/weights-0.bin", len(CONTENTS), SHA256)


@pytest.fixture(scope="module")
def s3():
    with S3Server() as server:
        yield server


@pytest.fixture
def bucket(s3, monkeypatch):
    """An empty bucket, as far as weights go, in reach of the function's own client."""
    for name, value in {**s3.environment, "AWS_ENDPOINT_URL_S3": s3.endpoint}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # it has read another test's variables
    monkeypatch.setattr(uploader, "_PAUSES_S", (0.0,))
    client = boto3.client("s3")
    client.delete_object(Bucket=s3.bucket, Key=KEY)
    return SimpleNamespace(name=s3.bucket, client=client)


@pytest.fixture(scope="module")
def cloud():
    """CloudFormation's end of the presigned URL: what was put there, and how often to fail before."""
    got, failing = [], []

    def answer(request):
        failed = bool(failing and failing.pop())
        if not failed:
            got.append((request.headers.get("content-type"), json.loads(request.body)))
        return 500 if failed else 200, {}, b""

    with serving() as server:
        server.answer = answer
        yield SimpleNamespace(url=f"{server.url}/", got=got, failing=failing)


@pytest.fixture
def stack(bucket, cloud, tmp_path, monkeypatch):
    """The custom resources of weights in three pieces, made and deleted in the order of CloudFormation."""
    monkeypatch.setattr(module, "PIECE_BYTES", PIECE)
    return Stack(bucket, cloud, tmp_path, monkeypatch)


class Stack:
    def __init__(self, bucket, cloud, directory, monkeypatch):
        self.pieces, self.bucket, self.cloud, self.data = pieces(WEIGHTS), bucket, cloud, {}
        self._directory, self._monkeypatch = directory, monkeypatch
        self._template = upload(WEIGHTS, Options("shop"))["Resources"]
        (directory / "weights.bin").write_bytes(CONTENTS)
        for piece in self.pieces:
            piece_directory(directory / piece.name, piece, directory / "weights.bin")

    def properties(self, piece):
        """What a resource is given, its references resolved and its values texts, as CloudFormation makes them."""

        def resolved(value):
            if isinstance(value, list):
                return [resolved(each) for each in value]
            if isinstance(value, dict) and "Fn::GetAtt" in value:
                return self.data.get(value["Fn::GetAtt"][0], {}).get(value["Fn::GetAtt"][1], "arn")
            return self.bucket.name if isinstance(value, dict) else str(value)

        given = self._template[piece.object_id]["Properties"]
        return {name: resolved(value) for name, value in given.items()}

    def call(self, kind, piece, left_s=900, **more):
        """Invoke a piece's function; return the response that CloudFormation got."""
        self._monkeypatch.setattr(uploader, "PIECE", self._directory / piece.name / "piece.bin")
        event = {
            "RequestType": kind,
            "ResponseURL": self.cloud.url,
            "StackId": "stack",
            "RequestId": "request",
            "LogicalResourceId": piece.object_id,
            "ResourceProperties": self.properties(piece),
            **more,
        }
        before = len(self.cloud.got)
        uploader.handler(event, SimpleNamespace(get_remaining_time_in_millis=lambda: 1000 * left_s))
        [(kind_of_content, answer)] = self.cloud.got[before:]
        assert kind_of_content == ""  # the URL is signed so
        assert {name: answer[name] for name in ("StackId", "RequestId", "LogicalResourceId")} == {
            "StackId": "stack",
            "RequestId": "request",
            "LogicalResourceId": piece.object_id,
        }
        self.data[piece.object_id] = answer.get("Data", {})
        return answer

    def create(self):
        return [self.call("Create", piece) for piece in self.pieces]

    def delete(self, made):
        return [
            self.call("Delete", piece, PhysicalResourceId=answer["PhysicalResourceId"])
            for piece, answer in reversed([*zip(self.pieces, made, strict=False)])
        ]

    @property
    def stored(self):
        listed = self.bucket.client.list_objects_v2(Bucket=self.bucket.name, Prefix=KEY).get("Contents")
        return listed and self.bucket.client.get_object(Bucket=self.bucket.name, Key=KEY)["Body"].read()

    @property
    def unfinished(self):
        return self.bucket.client.list_multipart_uploads(Bucket=self.bucket.name, Prefix=KEY).get("Uploads", [])


def statuses(answers):
    return [answer["Status"] for answer in answers]


def test_pieces_become_one_object_and_go_with_their_resources(stack):
    made = stack.create()
    assert statuses(made) == ["SUCCESS"] * 3, made
    assert stack.stored == CONTENTS
    assert len({answer["PhysicalResourceId"] for answer in made}) == 3
    assert statuses(stack.delete(made)) == ["SUCCESS"] * 3
    assert stack.stored is None
    assert statuses(stack.delete(made)) == ["SUCCESS"] * 3  # a request that came twice


def test_weights_of_one_piece_are_written_by_one_request(bucket, cloud, tmp_path, monkeypatch):
    whole = Stack(bucket, cloud, tmp_path, monkeypatch)
    made = whole.create()
    assert statuses(made) == ["SUCCESS"]
    assert whole.stored == CONTENTS
    assert statuses(whole.delete(made)) == ["SUCCESS"]
    assert whole.stored is None


def test_an_object_that_is_there_already_is_left_alone(stack):
    stack.bucket.client.put_object(Bucket=stack.bucket.name, Key=KEY, Body=CONTENTS)
    before = stack.bucket.client.head_object(Bucket=stack.bucket.name, Key=KEY)["LastModified"]
    made = stack.create()
    assert statuses(made) == ["SUCCESS"] * 3
    assert {answer["Data"]["UploadId"] for answer in made} == {uploader.WHOLE}
    again = stack.call("Update", stack.pieces[1], PhysicalResourceId=made[1]["PhysicalResourceId"])
    assert again["PhysicalResourceId"] == made[1]["PhysicalResourceId"]  # or CloudFormation would delete it
    assert stack.bucket.client.head_object(Bucket=stack.bucket.name, Key=KEY)["LastModified"] == before
    assert stack.unfinished == []


def test_an_object_that_was_altered_is_written_again(stack):
    stack.bucket.client.put_object(Bucket=stack.bucket.name, Key=KEY, Body=CONTENTS[:-1] + b"x")
    assert statuses(stack.create()) == ["SUCCESS"] * 3
    assert stack.stored == CONTENTS


def test_other_contents_are_refused_and_deleted(stack):
    piece = stack._directory / stack.pieces[2].name / "piece.bin"
    piece.write_bytes(b"x" * piece.stat().st_size)
    made = stack.create()
    assert statuses(made) == ["SUCCESS", "SUCCESS", "FAILED"]
    assert "SHA-256" in made[2]["Reason"]
    assert stack.stored is None


def test_a_rollback_leaves_no_part_of_an_upload(stack):
    made = [stack.call("Create", piece) for piece in stack.pieces[:2]]
    assert len(stack.unfinished) == 1
    assert statuses(stack.delete(made)) == ["SUCCESS"] * 2
    assert stack.unfinished == []


@pytest.mark.parametrize("kind", ["Create", "Delete"])
def test_a_bucket_that_is_gone_fails_an_upload_but_no_deletion(stack, kind):
    stack.bucket.name = "gone-since-then"
    answer = stack.call(kind, stack.pieces[0], PhysicalResourceId="me")
    assert answer["Status"] == ("FAILED" if kind == "Create" else "SUCCESS")
    assert kind == "Delete" or "NoSuchBucket" in answer["Reason"]


def test_a_refusal_of_a_role_that_is_seconds_old_is_retried(stack, monkeypatch):
    write, refused = uploader.Upload.write, []

    def refusing(each, store):
        if len(refused) < 1:
            refused.append(each)
            raise ClientError({"ResponseMetadata": {"HTTPStatusCode": 403}, "Error": {"Code": "403"}}, "HeadObject")
        return write(each, store)

    monkeypatch.setattr(uploader.Upload, "write", refusing)
    assert statuses(stack.create()) == ["SUCCESS"] * 3
    refused[:] = []
    monkeypatch.setattr(uploader, "_PAUSES_S", ())
    answer = stack.call("Create", stack.pieces[0])
    assert (answer["Status"], "403" in answer["Reason"]) == ("FAILED", True)


def test_the_response_is_sent_before_the_time_is_up(stack, monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(uploader.Upload, "write", lambda *_: released.wait(30) and {})
    answer = stack.call("Create", stack.pieces[0], left_s=uploader._MARGIN_S + 0.05)
    released.set()
    assert (answer["Status"], "time" in answer["Reason"]) == ("FAILED", True)


def test_an_unusable_resource_gets_a_response_too(stack):
    for properties in ({}, {**stack.properties(stack.pieces[0]), "Bytes": "many"}):
        answer = stack.call("Create", stack.pieces[0], ResourceProperties=properties)
        assert (answer["Status"], answer["PhysicalResourceId"]) == ("FAILED", "none")


def test_a_response_that_is_not_accepted_is_sent_again(stack):
    stack.cloud.failing[:] = [True]
    answer = stack.call("Delete", stack.pieces[0], PhysicalResourceId="me")
    assert (answer["Status"], answer["PhysicalResourceId"]) == ("SUCCESS", "me")
