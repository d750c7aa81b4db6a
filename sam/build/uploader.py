"""A Lambda function that writes one piece of weights into the deployment's bucket: a custom resource's handler.

Its package has this module and the piece, nothing else of ours. CloudFormation calls it when the piece's resource is
made, changed or deleted, and waits for the response. The resources of the pieces of one object:

    piece 1          begins a multipart upload, whose id the others are given
    piece 2, 3, ...  write a part of it each
    the last one     completes it, reads the object and compares its SHA-256: the object is there, whole, or this fails

Weights of one piece are written by one request. An object that is there already, with the right size and digest, is
left as it is. Deleting the last piece's resource deletes the object; deleting the first one's ends an upload that was
not completed, as in a deployment that is rolled back.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import urllib3
from botocore.exceptions import ClientError

PIECE = Path(__file__).with_name("piece.bin")
WHOLE = "whole"
"""The id of the upload, and the tag of a part, of an object that is there already."""
_MARGIN_S = 15.0  # for the response, of the time that the function has
_PAUSES_S = (2.0, 4.0, 8.0, 16.0, 30.0)  # IAM takes a while to know a new role
_AT_ONCE = 1 << 20
_MOST_REASON = 1000
_FORBIDDEN, _MISSING = 403, 404
_logger = logging.getLogger(__name__)


class UploadError(Exception):
    """The object of the bucket is not what it should be."""


@dataclass(frozen=True)
class Upload:
    """What CloudFormation wants: a piece of an object, by the properties of its resource."""

    bucket: str
    key: str
    sha256: str
    bytes: int
    number: int
    count: int
    upload_id: str
    tags: tuple[str, ...]

    @classmethod
    def of(cls, properties: Mapping[str, Any]) -> Upload:
        """Read the resource's properties, whose values are texts; raises KeyError or ValueError."""
        return cls(
            bucket=properties["Bucket"],
            key=properties["Key"],
            sha256=properties["Sha256"],
            bytes=int(properties["Bytes"]),
            number=int(properties["Piece"]),
            count=int(properties["Pieces"]),
            upload_id=properties.get("UploadId", ""),
            tags=tuple(properties.get("Tags", ())),
        )

    @property
    def where(self) -> dict[str, str]:
        return {"Bucket": self.bucket, "Key": self.key}

    @property
    def physical_id(self) -> str:
        """The name of the piece: another one, and CloudFormation would delete the piece of this name."""
        return f"{self.bucket}/{self.key}/{self.number}"

    def write(self, store: Any) -> dict[str, str]:  # noqa: ANN401 - boto3 has no types here
        """Write the piece; return the id of the upload and the tag of the part."""
        if self.upload_id == WHOLE or self._is_whole(store):
            return {"UploadId": WHOLE, "Tag": WHOLE}
        with PIECE.open("rb") as piece:
            if self.count == 1:
                store.put_object(**self.where, Body=piece)
                self._check(store)
                return {"UploadId": WHOLE, "Tag": WHOLE}
            upload = self.upload_id or store.create_multipart_upload(**self.where)["UploadId"]
            tag = store.upload_part(**self.where, UploadId=upload, PartNumber=self.number, Body=piece)["ETag"]
        if self.number == self.count:
            parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate([*self.tags, tag], 1)]
            store.complete_multipart_upload(**self.where, UploadId=upload, MultipartUpload={"Parts": parts})
            self._check(store)
        return {"UploadId": upload, "Tag": tag}

    def delete(self, store: Any) -> None:  # noqa: ANN401 - same
        """Delete the object, or end its upload; what is not there need not be deleted."""
        try:
            if self.number == 1:
                listed = store.list_multipart_uploads(Bucket=self.bucket, Prefix=self.key)
                for upload in listed.get("Uploads", ()):
                    store.abort_multipart_upload(**self.where, UploadId=upload["UploadId"])
            if self.number == self.count:
                store.delete_object(**self.where)
        except ClientError as error:
            if _status(error) != _MISSING:
                raise

    def _is_whole(self, store: Any) -> bool:  # noqa: ANN401 - same
        try:
            size = store.head_object(**self.where)["ContentLength"]
        except ClientError as error:
            if _status(error) == _MISSING:
                return False
            raise
        return size == self.bytes and self._digest(store) == self.sha256

    def _check(self, store: Any) -> None:  # noqa: ANN401 - same
        if (digest := self._digest(store)) != self.sha256:
            store.delete_object(**self.where)
            raise UploadError(f"{self.key} has the SHA-256 {digest} in {self.bucket}: it was deleted; deploy again")

    def _digest(self, store: Any) -> str:  # noqa: ANN401 - same
        digest = hashlib.sha256()
        for block in store.get_object(**self.where)["Body"].iter_chunks(_AT_ONCE):
            digest.update(block)
        return digest.hexdigest()


def handler(event: dict[str, Any], context: Any) -> None:  # noqa: ANN401 - Lambda's context
    """Do what the event wants, and tell CloudFormation how it ended: in any case, and before the time is up."""
    done: Future[dict[str, str]] = Future()
    threading.Thread(target=_work, args=(event, done), daemon=True).start()
    answer = {name: event[name] for name in ("RequestId", "StackId", "LogicalResourceId")}
    try:
        data = done.result(max(0.0, context.get_remaining_time_in_millis() / 1000 - _MARGIN_S))
    except TimeoutError:
        answer |= {"Status": "FAILED", "Reason": "the time of the function was up: S3 was too slow; deploy again"}
    except Exception as error:
        _logger.exception("upload failed")
        answer |= {"Status": "FAILED", "Reason": f"{type(error).__name__}: {error}"[:_MOST_REASON]}
    else:
        answer |= {"Status": "SUCCESS", "Data": data}
    _respond(event["ResponseURL"], {**answer, "PhysicalResourceId": _physical_id(event)})


def _work(event: dict[str, Any], done: Future[dict[str, str]]) -> None:
    try:
        done.set_result(_patiently(event))
    except BaseException as error:  # noqa: BLE001 - the handler reports whatever it is
        done.set_exception(error)


def _patiently(event: dict[str, Any]) -> dict[str, str]:
    """Do what the event wants; where S3 refuses, it is tried again, since the role may be seconds old."""
    store = boto3.client("s3")
    for pause_s in _PAUSES_S:
        try:
            return _done(event, store)
        except ClientError as error:
            if _status(error) != _FORBIDDEN:
                raise
            time.sleep(pause_s)
    return _done(event, store)


def _done(event: dict[str, Any], store: Any) -> dict[str, str]:  # noqa: ANN401 - same
    upload = Upload.of(event["ResourceProperties"])
    if event["RequestType"] != "Delete":
        return upload.write(store)
    upload.delete(store)
    return {}


def _physical_id(event: dict[str, Any]) -> str:
    """Return the name of the resource; one to be deleted keeps the name that CloudFormation knows it by."""
    if event["RequestType"] == "Delete":
        return str(event["PhysicalResourceId"])
    try:
        return Upload.of(event["ResourceProperties"]).physical_id
    except (KeyError, ValueError):
        return str(event.get("PhysicalResourceId", "none"))


def _status(error: ClientError) -> int:
    return int(error.response["ResponseMetadata"]["HTTPStatusCode"])


def _respond(url: str, answer: dict[str, Any]) -> None:
    retries = urllib3.Retry(5, backoff_factor=0.5, status_forcelist=range(500, 600), allowed_methods=None)
    with urllib3.PoolManager(retries=retries) as pool:
        pool.request("PUT", url, body=json.dumps(answer).encode(), headers={"Content-Type": ""}, timeout=10.0)
