"""A registry in a versioned bucket of S3, through botocore.

    PREFIX/registry.json                   says that there is a registry, whose server was found to honour conditions
    PREFIX/documents/applications/...      32 hex digits, which no other version has, a newline, and the content
    PREFIX/artefacts/9f86d08188...         an artefact; its latest version is as old as its last put

A document is written by PutObject with If-None-Match or If-Match, and deleted by DeleteObject with If-Match; the token
of a version is its entity tag. An artefact that is put again is copied onto itself, and garbage is deleted by version:
what was put after garbage was looked for is another version, and stays.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import get_session

from serfer.core.errors import InputError, UnavailableError, UsageError
from serfer.registry.s3_artefacts import S3Artefacts
from serfer.registry.store import (
    MAX_DOCUMENT_BYTES,
    MAX_DOCUMENTS,
    Document,
    DocumentVersion,
    bounded,
    check_name,
    check_prefix,
    check_size,
)
from serfer.s3 import MISSING, code_of, open_client

_NONCE_BYTES: Final = 16
_HEAD: Final = 2 * _NONCE_BYTES + 1
_FORMAT: Final = {"serfer registry": 1}
_NO_TAG: Final = f'"{"0" * 32}"'
_MAX_VERSIONS: Final = 1000
_UNMET: Final = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "412", *MISSING})
"""Codes of a conditional request whose condition does not hold, or could not be seen to hold."""


class S3Store(S3Artefacts):
    """A registry's backend in `bucket` below `prefix`, which is "" or ends with a slash; opening it sends requests.

    Raises UsageError where the bucket keeps no versions, the server ignores conditions, or something else lies there;
    UnavailableError where it cannot be reached, or is not there and `create` is false.
    """

    def __init__(self, bucket: str, prefix: str, unix: Callable[[], float] = time.time, *, create: bool = True) -> None:
        self._named = f"s3://{bucket}/{prefix}".rstrip("/")
        with self._errors():
            super().__init__(_client(), bucket, f"{prefix}artefacts/", self._named, unix)
            self._documents = f"{prefix}documents/"
            self._check_versioned()
            self._open(f"{prefix}registry.json", create=create)

    def __str__(self) -> str:
        return self._named

    def names(self, prefix: str) -> list[str]:
        """ListObjectsV2."""
        found: list[str] = []
        with self._errors():
            pages = self._client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._documents + check_prefix(prefix)):
                found += [entry["Key"].removeprefix(self._documents) for entry in page.get("Contents", ())]
                if len(found) > MAX_DOCUMENTS:
                    raise InputError(f"the registry {self} has more than {MAX_DOCUMENTS:,} documents")
        return sorted(found)

    def read(self, name: str, most_bytes: int = MAX_DOCUMENT_BYTES) -> Document | None:
        """GetObject."""
        found = self._get(name, most_bytes)
        return Document(found[0], found[1]) if found else None

    def compare_and_set(self, name: str, expected: str | None, data: bytes) -> str | None:
        """PutObject on condition; where no response came, a look says whether it was written."""
        key, nonce = self._document(name), secrets.token_hex(_NONCE_BYTES)
        body = f"{nonce}\n".encode() + check_size(name, data)
        condition = {"IfNoneMatch": "*"} if expected is None else {"IfMatch": f'"{expected}"'}
        with self._errors():
            try:
                return _tag(self._client.put_object(**self._object(key), Body=body, **condition))
            except ClientError as error:
                if code_of(error) not in _UNMET:
                    raise
                return self._own_version(key, nonce)  # by an attempt before, whose response was lost
            except BotoCoreError:
                if version := self._own_version(key, nonce):
                    return version
                raise

    def delete(self, name: str, expected: str) -> bool:
        """DeleteObject on condition: the bucket keeps the versions."""
        with self._errors():
            try:
                key = self._document(name)
                if self._head(key) is None:
                    return False
                self._client.delete_object(**self._object(key), IfMatch=f'"{expected}"')
            except ClientError as error:
                if code_of(error) not in _UNMET:
                    raise
                return False
        return True

    def versions(self, name: str) -> list[DocumentVersion]:
        """ListObjectVersions, the last thousand."""
        return [
            DocumentVersion(_tag(entry), max(0, entry["Size"] - _HEAD), entry["LastModified"].timestamp())
            for entry in self._entries(name)
        ]

    def read_version(self, name: str, version: str, most_bytes: int = MAX_DOCUMENT_BYTES) -> bytes | None:
        """GetObject of the version that has the entity tag."""
        for entry in self._entries(name):
            if _tag(entry) == version:
                found = self._get(name, most_bytes, VersionId=entry["VersionId"])
                return found[0] if found else None
        return None

    def _entries(self, name: str) -> list[dict[str, Any]]:
        key = self._document(name)
        with self._errors():
            answer = self._client.list_object_versions(Bucket=self._bucket, Prefix=key, MaxKeys=_MAX_VERSIONS)
        return [entry for entry in answer.get("Versions", ()) if entry["Key"] == key]

    def _get(self, name: str, most_bytes: int, **version: str) -> tuple[bytes, str] | None:
        with self._errors():
            try:
                answer = self._client.get_object(**self._object(self._document(name)), **version)
            except ClientError as error:
                if code_of(error) in MISSING:
                    return None
                raise
            body: bytes = answer["Body"].read(most_bytes + _HEAD + 1)
            answer["Body"].close()
        nonce, found, data = body.partition(b"\n")
        if not found or len(nonce) != 2 * _NONCE_BYTES:
            raise InputError(f"{name} of the registry {self} was not written by SerFer: restore an earlier version")
        return bounded(name, data, most_bytes), _tag(answer)

    def _own_version(self, key: str, nonce: str) -> str | None:
        """Return the version of an object that begins with `nonce`, None where another or none is there."""
        try:
            answer = self._client.get_object(**self._object(key), Range=f"bytes=0-{_HEAD - 2}")
        except ClientError as error:
            if code_of(error) in MISSING:
                return None
            raise
        return _tag(answer) if answer["Body"].read(_HEAD) == nonce.encode() else None

    def _document(self, name: str) -> str:
        return self._documents + check_name(name)

    def _check_versioned(self) -> None:
        """Raise UsageError for a bucket that keeps no versions, where this account may see that."""
        with suppress(ClientError):
            if self._client.get_bucket_versioning(Bucket=self._bucket).get("Status") != "Enabled":
                raise UsageError(
                    f"the registry {self}: its bucket keeps no versions: `aws s3api put-bucket-versioning "
                    f"--bucket {self._bucket} --versioning-configuration Status=Enabled`"
                )

    def _open(self, mark: str, *, create: bool) -> None:
        """See that there is a registry, or make one."""
        try:
            found = self._client.get_object(**self._object(mark))["Body"].read(4096)
        except ClientError as error:
            if code_of(error) not in MISSING:
                raise
            if not create:
                raise UnavailableError(f"there is no registry in {self}: serfer app register makes one") from None
            self._check_conditions(f"{mark}.{secrets.token_hex(8)}")
            self._client.put_object(**self._object(mark), Body=json.dumps(_FORMAT).encode())
            return
        try:
            right = json.loads(found) == _FORMAT
        except ValueError:
            right = False
        if not right:
            raise UsageError(f"{self} is not a registry that this version of SerFer reads: update SerFer")

    def _check_conditions(self, trial: str) -> None:
        """Raise UsageError where the server ignores conditions, by an object of its own: it would lose updates."""
        self._client.put_object(**self._object(trial), Body=b"", IfNoneMatch="*")
        refused = [
            self._refuses(self._client.put_object, trial, Body=b"", IfNoneMatch="*"),
            self._refuses(self._client.put_object, trial, Body=b"", IfMatch=_NO_TAG),
            self._refuses(self._client.delete_object, trial, IfMatch=_NO_TAG),
        ]
        self._client.delete_object(**self._object(trial))
        if not all(refused):
            raise self._lacking()

    def _refuses(self, request: Callable[..., Any], key: str, **parameters: Any) -> bool:  # noqa: ANN401 - botocore's
        try:
            request(**self._object(key), **parameters)
        except ClientError as error:
            if code_of(error) == "NotImplemented":
                raise self._lacking() from error
            return code_of(error) in _UNMET
        return False

    def _lacking(self) -> UsageError:
        return UsageError(
            f"the registry {self}: this server ignores If-None-Match or If-Match, so that updates would be lost: use "
            "another S3 server, or a directory"
        )


def _client() -> Any:  # noqa: ANN401 - a client of botocore's, untyped
    return open_client(get_session(), connect_s=3, read_s=20, tries=3)


def _tag(answer: dict[str, Any]) -> str:
    """Return an entity tag without its quotes."""
    tag: str = answer["ETag"].strip('"')
    if not tag:
        raise UnavailableError("S3 gave an object without an entity tag: this is not an S3 server")
    return tag
