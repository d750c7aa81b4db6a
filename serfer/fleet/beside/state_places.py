"""Places where a policy's state is kept: a file in a directory, or an object in a bucket of S3."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from serfer.core.errors import InputError, UnavailableError, UsageError
from serfer.files import lies_inside, write_whole
from serfer.fleet.log_events import log_event

_SCHEME: Final = "s3://"
_MODE: Final = 0o600
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_CONNECT_S, _READ_S, _TRIES = 3, 10, 2


class StatePlace(Protocol):
    """Keeps one state; methods take as long as a disk or a network does, and raise InputError and UnavailableError."""

    def read(self, most_bytes: int) -> bytes | None:
        """Return what is kept, None where nothing is; InputError for more than `most_bytes`."""
        ...

    def write(self, data: bytes) -> None:
        """Keep something in place of what was kept: afterwards either is there, whole."""
        ...

    def set_aside(self) -> None:
        """Save what is kept from the next write."""
        ...


class StateFile:
    """A file in a directory, readable for its owner alone."""

    def __init__(self, directory: Path, name: str) -> None:
        self._path = directory / name

    def __str__(self) -> str:
        return str(self._path)

    def read(self, most_bytes: int) -> bytes | None:
        """Return the file's content."""
        try:
            with self._path.open("rb") as file:
                data = file.read(most_bytes + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InputError(f"it cannot be read: {error.strerror}") from error
        return _bounded(data, most_bytes)

    def write(self, data: bytes) -> None:
        """Write the file, and its directory where there is none."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"its directory cannot be made: {error.strerror}") from error
        write_whole(self._path, data, _MODE)

    def set_aside(self) -> None:
        """Give the file another name, in place of what had that."""
        with suppress(OSError):
            self._path.replace(self._path.with_suffix(f".refused{self._path.suffix}"))


class StateObject:
    """An object of S3, whose bucket should keep earlier versions, through botocore."""

    def __init__(self, bucket: str, key: str) -> None:
        self._where = {"Bucket": bucket, "Key": key}

    def __str__(self) -> str:
        return f"{_SCHEME}{self._where['Bucket']}/{self._where['Key']}"

    @cached_property
    def _client(self) -> Any:  # noqa: ANN401 - a client of botocore's, untyped
        from botocore.config import Config  # noqa: PLC0415 - only states in S3 need botocore
        from botocore.session import get_session  # noqa: PLC0415 - same

        config = Config(
            connect_timeout=_CONNECT_S,
            read_timeout=_READ_S,
            retries={"mode": "standard", "total_max_attempts": _TRIES},
        )
        return get_session().create_client("s3", config=config)

    def read(self, most_bytes: int) -> bytes | None:
        """Return the object's latest version; says in the log where the bucket keeps no others."""
        with _s3_errors():
            self._look_for_versions()
            try:
                body = self._client.get_object(**self._where)["Body"]
            except self._client.exceptions.NoSuchKey:
                return None
            return _bounded(body.read(most_bytes + 1), most_bytes)

    def write(self, data: bytes) -> None:
        """Put a new version."""
        with _s3_errors():
            self._client.put_object(**self._where, Body=data)

    def set_aside(self) -> None:
        """Do nothing: the bucket keeps versions."""

    def _look_for_versions(self) -> None:
        from botocore.exceptions import ClientError  # noqa: PLC0415 - only states in S3 need botocore

        with suppress(ClientError):  # who may read objects need not be allowed to see that
            bucket = self._where["Bucket"]
            if self._client.get_bucket_versioning(Bucket=bucket).get("Status") != "Enabled":
                message = f"the bucket {bucket} keeps no versions: what a new state replaces is lost"
                log_event(logging.WARNING, "policy state", message=message)


def open_place(where: str, model: str, policy: str) -> StateFile | StateObject:
    """Return the place of a policy's state below a directory or an `s3://` prefix; raises UsageError."""
    name = f"{_file_name(model)}.{_file_name(policy)}.json"
    if "://" not in where:
        if not where or "\0" in where:
            raise UsageError(f"--policy-state is a directory, or s3://BUCKET/PREFIX, not {where!r:.80}")
        return StateFile(Path(where).expanduser().absolute(), name)
    url = urlsplit(where)
    if not where.startswith(_SCHEME) or not _BUCKET.fullmatch(url.netloc) or url.query or url.fragment:
        raise UsageError(f"--policy-state is a directory, or s3://BUCKET/PREFIX, not {where[:80]!r}")
    prefix = url.path.strip("/")
    return StateObject(url.netloc, f"{prefix}/{name}" if prefix else name)


def check_apart(where: str, store: str) -> None:
    """Raise UsageError for a place inside the store of activations, where everything expires."""
    if lies_inside(where, store):
        raise UsageError(
            f"--policy-state {where[:80]} is inside the store of activations, where all expires: give another"
        )


def _file_name(name: str) -> str:
    return name if _NAME.fullmatch(name) else hashlib.sha256(name.encode()).hexdigest()[:16]


def _bounded(data: bytes, most_bytes: int) -> bytes:
    if len(data) > most_bytes:
        raise InputError(f"it has more than {most_bytes:,} bytes")
    return data


@contextmanager
def _s3_errors() -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - only states in S3 need botocore

    try:
        yield
    except (BotoCoreError, ClientError, ValueError) as error:  # ValueError: an invalid AWS_ENDPOINT_URL
        raise UnavailableError(f"S3: {error}") from error
