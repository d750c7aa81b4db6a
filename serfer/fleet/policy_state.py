"""What a policy has learnt, kept from one run of a service to the next: a file in a directory, or an object of S3.

{"format": "serfer policy state", "version": 1, "model": NAME, "policy": NAME, "scenario": DIGEST, "saved": UNIX
 SECONDS, "bytes": N, "sha256": HEX}
the snapshot, N bytes of JSON
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import urlsplit

from serfer.control.policy import Learner
from serfer.control.snapshots import MAX_SNAPSHOT_BYTES, Snapshot, read_json, write_json
from serfer.core.dataclass_codec import structure, unstructure
from serfer.core.errors import InputError, SerferError, UnavailableError, UsageError
from serfer.files import lies_inside, write_whole
from serfer.fleet.background import Background
from serfer.fleet.log_events import log_event
from serfer.s3 import is_bucket, open_client, s3_errors

SAVE_EVERY_S: Final = 300.0
FORMAT: Final = "serfer policy state"
VERSION: Final = 1
_MAX_HEADER_BYTES: Final = 4096
MAX_STATE_BYTES: Final = MAX_SNAPSHOT_BYTES + _MAX_HEADER_BYTES
_TROUBLE: Final = "state"
_SCHEME: Final = "s3://"
_MODE: Final = 0o600
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class NamedPolicy(Protocol):
    """A policy of any kind; what it has learnt is kept where it is a Learner."""

    name: str


_Kept = TypeVar("_Kept", bound=NamedPolicy)


class StateKeeper:
    """Restores and saves one policy's state; what fails is logged, and counted in `troubles`."""

    def __init__(self, place: StatePlace, owner: StateOwner, unix: Callable[[], float] = time.time) -> None:
        self.troubles: Counter[str] = Counter()
        self._place = place
        self._owner = owner
        self._unix = unix
        self._refused = False
        self._latest: Snapshot = {}
        self._last_trouble: str | None = None
        self._writer = Background("policy state", 1)

    def restored(self, make: Callable[[], _Kept]) -> _Kept | None:
        """Return a policy that goes on from what is kept, None where nothing is, or nothing that can be taken."""
        policy = make()
        if not isinstance(policy, Learner):
            self._say(
                logging.WARNING,
                f"{policy.name} keeps nothing: it has no snapshot and restore, so it starts with nothing learnt",
            )
            return None
        try:
            data = self._place.read(MAX_STATE_BYTES)
            if data is None:
                self._say(logging.INFO, "nothing is kept yet")
                return None
            policy.restore(decode_state(data, self._owner))
        except Exception as error:  # noqa: BLE001 - a policy of someone's own may raise anything, and the service starts
            self.troubles[_TROUBLE] += 1
            self._refused = True
            words = str(error) if isinstance(error, SerferError) else f"{type(error).__name__}: {error}"
            self._say(logging.WARNING, f"refused, so the policy starts with nothing learnt: {words}")
            return None
        self._say(logging.INFO, f"restored, {len(data):,} bytes")
        return policy

    def offer(self, policy: NamedPolicy) -> None:
        """Have the policy's snapshot of now saved, in place of an earlier one that still waits for that."""
        if not isinstance(policy, Learner):
            return
        try:
            self._latest = policy.snapshot()
        except Exception as error:  # noqa: BLE001 - same
            self._failed(error)
            return
        self._writer.put(self._save)  # one that waits already takes the latest

    def close(self, patience_s: float) -> None:
        """Wait until what was offered is saved."""
        if not self._writer.close(patience_s):
            self._failed(TimeoutError(f"it was not written within {patience_s:g} s"))

    def _save(self) -> None:
        snapshot = self._latest
        try:
            data = encode_state(self._owner, self._unix(), snapshot)
            if self._refused:
                self._place.set_aside()
                self._refused = False
            self._place.write(data)
        except Exception as error:  # noqa: BLE001 - the next one is tried
            self._failed(error)
        else:
            self._last_trouble = None

    def _failed(self, error: Exception) -> None:
        self.troubles[_TROUBLE] += 1
        words = f"not saved: {error if isinstance(error, SerferError) else f'{type(error).__name__}: {error}'}"
        if words != self._last_trouble:
            self._last_trouble = words
            self._say(logging.WARNING, words)

    def _say(self, level: int, message: str) -> None:
        log_event(level, "policy state", place=str(self._place), message=message.partition("\n")[0])


@dataclass(frozen=True)
class StateOwner:
    """Whose knowledge it is: the policy's, about the load of a model, with the prices and speeds of a scenario."""

    model: str
    policy: str
    scenario: str


@dataclass(frozen=True)
class _Header:
    format: str
    version: int
    model: str
    policy: str
    scenario: str
    saved: float
    bytes: int
    sha256: str


def encode_state(owner: StateOwner, saved_s: float, snapshot: Snapshot) -> bytes:
    """Return what is kept, as of `saved_s` in Unix time; raises ValueError for what is too large or no JSON."""
    body = write_json(snapshot)
    if len(body) > MAX_SNAPSHOT_BYTES:
        raise ValueError(f"a state of {len(body):,} bytes is larger than {MAX_SNAPSHOT_BYTES:,}")
    digest = hashlib.sha256(body).hexdigest()
    header = _Header(FORMAT, VERSION, owner.model, owner.policy, owner.scenario, saved_s, len(body), digest)
    return write_json(unstructure(header)) + b"\n" + body


def decode_state(data: bytes, owner: StateOwner) -> Snapshot:
    """Return the snapshot; raises InputError that says why it cannot be taken: damaged, newer, or another owner's."""
    first, found, body = data[:_MAX_HEADER_BYTES].partition(b"\n")
    fields = read_json(first, "its first line") if found else None
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise InputError("it is not a policy's state")
    version = fields.get("version")
    if version != VERSION:
        age = "a newer" if isinstance(version, int) and version > VERSION else "another"
        raise InputError(f"it is of {age} version, {version!r:.20}: this SerFer reads {VERSION}")
    header = structure(_Header, fields, "its first line", error=InputError)
    body = data[len(first) + 1 :]
    if len(body) != header.bytes:
        raise InputError(f"it is torn: {len(body):,} bytes of {header.bytes:,} are there")
    if hashlib.sha256(body).hexdigest() != header.sha256:
        raise InputError("it is damaged: its SHA-256 is not that of its first line")
    _check_owner(StateOwner(header.model, header.policy, header.scenario), owner)
    snapshot = read_json(body, "the snapshot")
    if not isinstance(snapshot, dict):
        raise InputError("the snapshot should be an object")
    return snapshot


def _check_owner(found: StateOwner, owner: StateOwner) -> None:
    if found.model != owner.model:
        raise InputError(f"it is about the load of {found.model!r:.80}, not of {owner.model!r:.80}")
    if found.policy != owner.policy:
        raise InputError(f"it is of the policy {found.policy!r:.80}, not of {owner.policy!r:.80}")
    if found.scenario != owner.scenario:
        raise InputError("it was learnt with other prices or speeds than the scenario has")


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
        from botocore.session import get_session  # noqa: PLC0415 - only states in S3 need botocore

        return open_client(get_session(), connect_s=3, read_s=10, tries=2)

    def read(self, most_bytes: int) -> bytes | None:
        """Return the object's latest version; says in the log where the bucket keeps no others."""
        with s3_errors(_unavailable):
            self._look_for_versions()
            try:
                body = self._client.get_object(**self._where)["Body"]
            except self._client.exceptions.NoSuchKey:
                return None
            return _bounded(body.read(most_bytes + 1), most_bytes)

    def write(self, data: bytes) -> None:
        """Put a new version."""
        with s3_errors(_unavailable):
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
    if not where.startswith(_SCHEME) or not is_bucket(url.netloc) or url.query or url.fragment:
        raise UsageError(f"--policy-state is a directory, or s3://BUCKET/PREFIX, not {where[:80]!r}")
    prefix = url.path.strip("/")
    return StateObject(url.netloc, f"{prefix}/{name}" if prefix else name)


def open_keeper(where: str, store: str, owner: StateOwner) -> StateKeeper:
    """Return what keeps an owner's state at a place outside the store of activations; raises UsageError."""
    check_apart(where, store)
    return StateKeeper(open_place(where, owner.model, owner.policy), owner)


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


def _unavailable(error: Exception) -> UnavailableError:
    return UnavailableError(f"S3: {error}")
