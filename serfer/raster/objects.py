"""Objects of S3 as images and results, through boto3: its credentials, region and endpoint count for GDAL too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from serfer.core.errors import InputError, SerferError, UnavailableError
from serfer.extras import named_extras
from serfer.files import read_text
from serfer.raster.durable import write_durably
from serfer.raster.limits import MIB
from serfer.raster.place import S3Place

_MISSING = {"404", "NoSuchKey", "NotFound", "NoSuchUpload"}
_FORBIDDEN = {"403", "AccessDenied", "Forbidden"}
_MOST_PARTS = 10_000  # of one upload, by S3's own limit
_PART_BYTES = 16 * MIB
_SENDERS = 4
_MOST_RECORD_BYTES = 16 * 1024


@dataclass(frozen=True)
class Head:
    """What S3 says of an object."""

    bytes: int
    etag: str


class Bucket:
    """The requests for one place in S3; `unsigned` sends no credentials, as public buckets allow."""

    def __init__(self, place: S3Place, *, unsigned: bool = False) -> None:
        self.place = place
        self._unsigned = unsigned

    @cached_property
    def _session(self) -> Any:  # noqa: ANN401 - boto3's
        with named_extras(), _s3_errors(self.place, "opened"):
            from boto3 import Session  # noqa: PLC0415 - of an extra

            return Session(region_name=self.place.region)

    @cached_property
    def _client(self) -> Any:  # noqa: ANN401 - boto3's
        from botocore import UNSIGNED  # noqa: PLC0415 - most images are files
        from botocore.config import Config  # noqa: PLC0415 - same

        given: dict[str, Any] = {"connect_timeout": 5, "read_timeout": 60, "retries": {"mode": "standard"}}
        if self._unsigned:
            given["signature_version"] = UNSIGNED
        region = self._session.region_name or "us-east-1"
        with _s3_errors(self.place, "opened"):
            return self._session.client(
                "s3", region_name=region, endpoint_url=self.place.endpoint, config=Config(**given)
            )

    def head(self) -> Head | None:
        """Return what S3 says of the object, None where there is none; raises InputError, UnavailableError."""
        try:
            with _s3_errors(self.place, "read"):
                said = self._client.head_object(Bucket=self.place.bucket, Key=self.place.key)
        except _MissingError:
            return None
        return Head(int(said["ContentLength"]), str(said["ETag"]).strip('"'))

    def listed(self) -> Iterator[str]:
        """Yield the keys that begin with the place's own, in their order; raises InputError, UnavailableError."""
        with _s3_errors(self.place, "listed"):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self.place.bucket, Prefix=self.place.key
            )
            for page in pages:
                yield from (str(entry["Key"]) for entry in page.get("Contents", ()))

    def check_bucket(self) -> None:
        """Raise InputError where there is no such bucket; one that may not be listed may still be written to."""
        with suppress(_DeniedError):
            try:
                with _s3_errors(self.place, "written"):
                    self._client.head_bucket(Bucket=self.place.bucket)
            except _MissingError:
                raise InputError(f"{self.place} cannot be written: the bucket does not exist") from None

    def first_bytes(self, count: int) -> bytes:
        """Return the first bytes of an object that is not empty."""
        return self.bytes_at(0, count)

    def bytes_at(self, start: int, count: int) -> bytes:
        """Return bytes of an object from a position within it on."""
        with _s3_errors(self.place, "read"):
            part = f"bytes={start}-{start + count - 1}"
            said = self._client.get_object(Bucket=self.place.bucket, Key=self.place.key, Range=part)
            return bytes(said["Body"].read(count))

    def gdal_options(self) -> dict[str, str]:
        """Return the options by which GDAL sends its requests where boto3 sends them, with credentials of now."""
        url = urlsplit(self._client.meta.endpoint_url)
        given = {
            "AWS_REGION": self._client.meta.region_name,
            "AWS_HTTPS": "YES" if url.scheme == "https" else "NO",
            "AWS_S3_ENDPOINT": url.netloc,
        }
        if not (url.hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn")):
            given["AWS_VIRTUAL_HOSTING"] = "FALSE"
        if bundle := self._session._session.get_config_variable("ca_bundle"):  # noqa: SLF001 - botocore's session
            given["CURL_CA_BUNDLE"] = bundle
        return given | ({"AWS_NO_SIGN_REQUEST": "YES"} if self._unsigned else self._credentials())

    def _credentials(self) -> dict[str, str]:
        with _s3_errors(self.place, "opened"):
            found = self._session.get_credentials()
            frozen = found and found.get_frozen_credentials()
        if not frozen:
            raise UnavailableError(
                f"{self.place}: no AWS credentials: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and its secret"
            )
        keys = {"AWS_ACCESS_KEY_ID": frozen.access_key, "AWS_SECRET_ACCESS_KEY": frozen.secret_key}
        return keys | ({"AWS_SESSION_TOKEN": frozen.token} if frozen.token else {})

    def upload(self, file: Path, record: Path) -> None:
        """Put a file as the object: in one request, or in parts, which a failure deletes.

        `record` remembers an upload in parts; what a killed process began is deleted when it is called again.
        """
        self._forget(record)
        if file.stat().st_size <= _PART_BYTES:
            with _s3_errors(self.place, "written"), file.open("rb") as body:
                self._client.put_object(Bucket=self.place.bucket, Key=self.place.key, Body=body)
            return
        where = {"Bucket": self.place.bucket, "Key": self.place.key}
        with _s3_errors(self.place, "written"):
            where["UploadId"] = self._client.create_multipart_upload(**where)["UploadId"]
            try:
                write_durably(record, json.dumps(where).encode())
                parts = self._send(file, where)
                self._client.complete_multipart_upload(**where, MultipartUpload={"Parts": parts})
            except BaseException:
                with suppress(Exception):  # what went wrong first is what the caller should know
                    self._client.abort_multipart_upload(**where)
                raise
            finally:
                record.unlink(missing_ok=True)

    def _send(self, file: Path, where: dict[str, str]) -> list[dict[str, Any]]:
        size = file.stat().st_size
        step = max(_PART_BYTES, -(-size // _MOST_PARTS))

        def one(number: int) -> dict[str, Any]:
            with file.open("rb") as source:
                source.seek((number - 1) * step)
                said = self._client.upload_part(**where, PartNumber=number, Body=source.read(step))
            return {"PartNumber": number, "ETag": said["ETag"]}

        with ThreadPoolExecutor(_SENDERS) as senders:
            return [*senders.map(one, range(1, -(-size // step) + 1))]

    def _forget(self, record: Path) -> None:
        """Delete the parts of an upload that an earlier process began and did not end."""
        if not record.exists():
            return
        try:
            where = json.loads(read_text(record, _MOST_RECORD_BYTES))
            mine = where["Bucket"] == self.place.bucket and where["Key"] == self.place.key
        except (ValueError, KeyError, TypeError):
            mine = False
        if mine:
            with suppress(_MissingError), _s3_errors(self.place, "written"):
                self._client.abort_multipart_upload(**where)
        record.unlink(missing_ok=True)


class _MissingError(InputError):
    """S3 says that there is no such object."""


class _DeniedError(InputError):
    """S3 says that the credentials do not allow it."""


@contextmanager
def _s3_errors(place: S3Place, done: str) -> Iterator[None]:
    """Turn botocore's errors into ours, which name the object and what to check."""
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError  # noqa: PLC0415 - most are files

    try:
        yield
    except ClientError as error:
        raise _refused(place, done, error.response) from error
    except NoCredentialsError as error:
        raise UnavailableError(
            f"{place}: no AWS credentials: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and its secret"
        ) from error
    except BotoCoreError as error:
        reason = str(error).rstrip(".")
        raise UnavailableError(
            f"{place} cannot be {done}: {reason}; check AWS_ENDPOINT_URL_S3 and the network"
        ) from error


def _refused(place: S3Place, done: str, said: Any) -> SerferError:  # noqa: ANN401 - botocore's dict
    code = str(said.get("Error", {}).get("Code", ""))
    message = str(said.get("Error", {}).get("Message", "")).rstrip(".")
    status = said.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code == "NoSuchBucket":
        return InputError(f"{place} cannot be {done}: the bucket does not exist")
    if code in _MISSING:
        return _MissingError(f"{place} does not exist")
    if code in _FORBIDDEN:
        return _DeniedError(
            f"{place} cannot be {done}: access is denied to these credentials (S3 also says so of a missing object to "
            "those who may not list the bucket)"
        )
    kind = UnavailableError if status >= 500 or code in {"SlowDown", "Throttling"} else InputError  # noqa: PLR2004 - HTTP
    return kind(f"{place} cannot be {done}: {code} {message}".rstrip())
