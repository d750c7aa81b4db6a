"""Artefacts as objects of a versioned bucket, large ones sent in parts."""

from __future__ import annotations

import hashlib
import os
import secrets
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Final

from botocore.exceptions import ClientError

from serfer.core.errors import AlteredPieceError, InputError, MissingKeyError, UnavailableError
from serfer.registry.files import opened, sha256_of
from serfer.registry.store import ArtefactEntry, check_digest
from serfer.s3 import DENIED, MISSING, code_of, part_size, put_in_parts, s3_errors

PART_BYTES: Final = 16 << 20
_MAX_COPIED: Final = 5 << 30  # CopyObject takes no more
_BLOCK: Final = 1 << 20


class S3Artefacts:
    """The artefacts below `prefix` of a bucket; `where` names the registry in errors."""

    part_bytes = PART_BYTES

    def __init__(self, client: Any, bucket: str, prefix: str, where: str, unix: Callable[[], float]) -> None:  # noqa: ANN401 - a client of botocore's, untyped
        self._client = client
        self._bucket = bucket
        self._artefacts = prefix
        self._named = where
        self._unix = unix

    def put_artefact(self, path: Path) -> str:
        """PutObject, or a multipart upload; CopyObject onto itself where it is there."""
        with opened(path) as source:
            digest = sha256_of(source)
            os.lseek(source, 0, os.SEEK_SET)
            with self._errors():
                key, size = self._artefact(digest), os.fstat(source).st_size
                there = self._head(key)
                if there is None or not self._refreshed(key, there):
                    self._send(key, source, size, digest)
        return digest

    def fetch_artefact(self, digest: str, path: Path) -> None:
        """GetObject."""
        key = self._artefact(digest)
        part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
        with self._errors():
            try:
                body = self._client.get_object(**self._object(key))["Body"]
            except ClientError as error:
                if code_of(error) in MISSING:
                    raise MissingKeyError(f"the registry {self._named} has no artefact {digest}") from None
                raise
            found = hashlib.sha256()
            try:
                with part.open("xb") as file:
                    for block in body.iter_chunks(_BLOCK):
                        found.update(block)
                        file.write(block)
                if found.hexdigest() != digest:
                    raise AlteredPieceError(f"artefact {digest} of the registry {self._named} was altered")
                part.replace(path)
            except OSError as error:
                raise UnavailableError(f"{path} cannot be written: {error.strerror}") from error
            finally:
                body.close()
                part.unlink(missing_ok=True)

    def has_artefact(self, digest: str) -> bool:
        """HeadObject."""
        with self._errors():
            return self._head(self._artefact(digest)) is not None

    def artefacts(self) -> Iterator[ArtefactEntry]:
        """ListObjectVersions, of which the latest count."""
        with self._errors():
            pages = self._client.get_paginator("list_object_versions")
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._artefacts):
                for entry in page.get("Versions", ()):
                    with suppress(InputError):
                        digest = check_digest(entry["Key"].removeprefix(self._artefacts))
                        if entry["IsLatest"]:
                            age = self._unix() - entry["LastModified"].timestamp()
                            yield ArtefactEntry(digest, entry["Size"], age, entry["VersionId"])

    def delete_artefact(self, entry: ArtefactEntry) -> bool:
        """Delete the version that was seen, and those before it."""
        key = self._artefact(entry.digest)
        with self._errors():
            there = self._client.list_object_versions(Bucket=self._bucket, Prefix=key).get("Versions", ())
            versions = [each["VersionId"] for each in there if each["Key"] == key]
            if not versions or versions[0] != entry.version:
                return False
            for version in reversed(versions):
                self._client.delete_object(**self._object(key), VersionId=version)
        return True

    def _refreshed(self, key: str, there: dict[str, Any]) -> bool:
        """Copy an artefact onto itself, so that it counts as new; say whether that could be."""
        if there["ContentLength"] > _MAX_COPIED:
            return False
        try:
            self._client.copy_object(
                **self._object(key), CopySource={"Bucket": self._bucket, "Key": key}, MetadataDirective="REPLACE"
            )
        except ClientError as error:
            if code_of(error) in MISSING:  # it was garbage, and is gone by now
                return False
            raise
        if version := there.get("VersionId"):
            with suppress(ClientError):  # who may put need not be allowed to delete
                self._client.delete_object(**self._object(key), VersionId=version)
        return True

    def _send(self, key: str, source: int, size: int, digest: str) -> None:
        if size > self.part_bytes:
            blocks = _blocks(key, source, part_size(size, self.part_bytes), digest)
            put_in_parts(self._client, self._object(key), blocks)
            return
        body = os.pread(source, self.part_bytes + 1, 0)
        if hashlib.sha256(body).hexdigest() != digest:
            raise _changed(key)
        self._client.put_object(
            **self._object(key), Body=body, ChecksumSHA256=b64encode(bytes.fromhex(digest)).decode()
        )

    def _head(self, key: str) -> dict[str, Any] | None:
        try:
            answer: dict[str, Any] = self._client.head_object(**self._object(key))
        except ClientError as error:
            if code_of(error) in MISSING:
                return None
            raise
        return answer

    def _object(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": key}

    def _errors(self) -> AbstractContextManager[None]:
        return s3_errors(self._unavailable)

    def _unavailable(self, error: Exception) -> UnavailableError:
        words = str(error)
        if code_of(error) == "NoSuchBucket":
            words = "its bucket does not exist: create it"
        elif code_of(error) in DENIED:
            words = (
                f"S3 refused ({error}): allow s3:GetObject, GetObjectVersion, PutObject, DeleteObject, "
                "DeleteObjectVersion, ListBucket and ListBucketVersions"
            )
        return UnavailableError(f"the registry {self._named}: {words}")

    def _artefact(self, digest: str) -> str:
        return self._artefacts + check_digest(digest)


def _blocks(key: str, source: int, size: int, digest: str) -> Iterator[bytes]:
    """Yield a file's blocks of so many bytes; raises InputError at the end where it is another file by now."""
    found, start = hashlib.sha256(), 0
    while block := os.pread(source, size, start):
        found.update(block)
        start += size
        yield block
    if found.hexdigest() != digest:
        raise _changed(key)


def _changed(key: str) -> InputError:
    return InputError(f"a file changed while it was kept as {key}: try again")
