"""Objects of S3 as images and results, through botocore: its credentials, region and endpoint count for GDAL too."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from serfer.core.errors import InputError, SerferError, UnavailableError
from serfer.core.units import MIB
from serfer.files import read_text
from serfer.raster.durable import write_durably
from serfer.raster.place import S3Place
from serfer.s3 import DENIED, MISSING, code_of, open_client, s3_errors

_PART_BYTES, _PARTS_AT_ONCE = 16 * MIB, 4
_MOST_RECORD_BYTES = 16 * 1024


@dataclass(frozen=True)
class Head:
    """What S3 says of an object."""

    bytes: int
    etag: str


class Bucket:
    """The requests for one place in S3."""

    def __init__(self, place: S3Place) -> None:
        self.place = place

    @cached_property
    def _session(self) -> Any:  # noqa: ANN401 - botocore's
        from botocore.session import get_session  # noqa: PLC0415 - most images are files

        return get_session()

    @cached_property
    def _client(self) -> Any:  # noqa: ANN401 - botocore's
        with self._errors("opened"):
            region = self.place.region or self._session.get_config_variable("region") or "us-east-1"
            return open_client(self._session, 5, 60, region_name=region, endpoint_url=self.place.endpoint)

    def head(self) -> Head | None:
        try:
            with self._errors("read"):
                said = self._client.head_object(Bucket=self.place.bucket, Key=self.place.key)
        except _MissingError:
            return None
        return Head(int(said["ContentLength"]), str(said["ETag"]).strip('"'))

    def listed(self) -> Iterator[str]:
        with self._errors("listed"):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self.place.bucket, Prefix=self.place.key
            )
            for page in pages:
                yield from (str(entry["Key"]) for entry in page.get("Contents", ()))

    def check_bucket(self) -> None:
        with suppress(_DeniedError):
            try:
                with self._errors("written"):
                    self._client.head_bucket(Bucket=self.place.bucket)
            except _MissingError:
                raise InputError(f"{self.place} cannot be written: the bucket does not exist") from None

    def first_bytes(self, count: int) -> bytes:
        return self.bytes_at(0, count)

    def bytes_at(self, start: int, count: int) -> bytes:
        with self._errors("read"):
            part = f"bytes={start}-{start + count - 1}"
            said = self._client.get_object(Bucket=self.place.bucket, Key=self.place.key, Range=part)
            return bytes(said["Body"].read(count))

    def gdal_options(self) -> dict[str, str]:
        url = urlsplit(self._client.meta.endpoint_url)
        given = {"AWS_REGION": self._client.meta.region_name, "AWS_S3_ENDPOINT": url.netloc}
        given["AWS_HTTPS"] = "YES" if url.scheme == "https" else "NO"
        if not (url.hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn")):
            given["AWS_VIRTUAL_HOSTING"] = "FALSE"
        if bundle := self._session.get_config_variable("ca_bundle"):
            given["CURL_CA_BUNDLE"] = bundle
        with self._errors("opened"):
            found = self._session.get_credentials()
            frozen = found and found.get_frozen_credentials()
        if not frozen:
            raise _no_credentials(self.place)
        given |= {"AWS_ACCESS_KEY_ID": frozen.access_key, "AWS_SECRET_ACCESS_KEY": frozen.secret_key}
        return given | ({"AWS_SESSION_TOKEN": frozen.token} if frozen.token else {})

    def upload(self, file: Path, record: Path) -> None:
        """Put a file as the object; `record` remembers an upload in parts, which another call deletes after a kill."""
        from boto3.s3.transfer import TransferConfig, create_transfer_manager  # noqa: PLC0415 - most results are files

        self._forget(record)
        where = {"Bucket": self.place.bucket, "Key": self.place.key}

        def remember(parsed: Mapping[str, Any], **_: object) -> None:
            with suppress(KeyError, OSError):  # refused; or the disk is full
                write_durably(record, json.dumps({**where, "UploadId": parsed["UploadId"]}).encode())

        config = TransferConfig(_PART_BYTES, _PARTS_AT_ONCE, _PART_BYTES, preferred_transfer_client="classic")
        begun = "after-call.s3.CreateMultipartUpload"
        self._client.meta.events.register(begun, remember)
        try:
            with self._errors("written"), create_transfer_manager(self._client, config) as manager:
                manager.upload(str(file), self.place.bucket, self.place.key).result()
        finally:
            self._client.meta.events.unregister(begun, remember)  # a client's later upload has a record of its own
            record.unlink(missing_ok=True)

    def _forget(self, record: Path) -> None:
        if not record.exists():
            return
        try:
            where = json.loads(read_text(record, _MOST_RECORD_BYTES))
            mine = where["Bucket"] == self.place.bucket and where["Key"] == self.place.key
        except (ValueError, KeyError, TypeError):
            mine = False
        if mine:
            with suppress(_MissingError), self._errors("written"):
                self._client.abort_multipart_upload(**where)
        record.unlink(missing_ok=True)

    def _errors(self, done: str) -> AbstractContextManager[None]:
        return s3_errors(lambda error: _explained(self.place, done, error))


class _MissingError(InputError):
    """S3 says that there is no such object."""


class _DeniedError(InputError):
    """S3 says that the credentials do not allow it."""


def _explained(place: S3Place, done: str, error: Exception) -> SerferError:
    code, response = code_of(error), getattr(error, "response", None)
    failed = f"{place} cannot be {done}: "
    if type(error).__name__ == "NoCredentialsError":
        return _no_credentials(place)
    if response is None:
        return UnavailableError(f"{failed}{str(error).rstrip('.')}; check AWS_ENDPOINT_URL_S3 and the network")
    if code == "NoSuchBucket":
        return InputError(f"{failed}the bucket does not exist")
    if code in MISSING:
        return _MissingError(f"{place} does not exist")
    if code in DENIED:
        return _DeniedError(
            f"{failed}access is denied to these credentials (S3 also says so of a missing object to those who may not "
            "list the bucket)"
        )
    passes = response["ResponseMetadata"]["HTTPStatusCode"] >= 500 or code in {"SlowDown", "Throttling"}  # noqa: PLR2004 - HTTP
    return (UnavailableError if passes else InputError)(f"{failed}{error}")


def _no_credentials(place: S3Place) -> UnavailableError:
    return UnavailableError(f"{place}: no AWS credentials: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and its secret")
