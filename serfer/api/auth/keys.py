"""API keys: who may ask, and how often.

A key is `sf_` and 256 random bits, made here and shown once. The file holds SHA-256 digests: to guess 256 bits is
hopeless, so no slow hash and no salt is needed, as they would be for passwords. Only what looks like such a key is
looked up: the digest of a password that was written into the file by hand is of no use.

    {"keys": [{"name": "phone", "sha256": "9f86...", "requests_per_minute": 60, "burst": 10,
               "scopes": ["classify", "promote"], "applications": {"faces": 30, "pets": null},
               "created": "2026-01-31T12:00:00Z"}]}

`requests_per_minute` and `burst` may be left out: then there is no quota, or the burst is a minute's requests. A quota
is counted in each driver by itself. A key without `scopes` may classify, and nothing else; one without `applications`
may do so for all of them and for models, one with them for these alone, each with requests a minute of its own or null.
"""

from __future__ import annotations

import hmac
import json
import logging
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import sha256
from math import ceil
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from starlette.requests import Request

from serfer.api.http.problems import Problem
from serfer.core.errors import InputError, UsageError
from serfer.files import locked, write_whole

_log = logging.getLogger(__name__)
_WHAT = "the file of API keys"
_KEY = re.compile(r"sf_[A-Za-z0-9_-]{43}")
_KEY_BYTES = 32
_MOST_BYTES = 1024 * 1024
_MOST_KEYS = 1000
_LOOK_S = 1.0  # between two looks at the file
_PRIVATE = 0o600
_ROUNDING_S = 1e-6  # rounding must not refuse a request that waited as long as it was told to
_MOST_APPLICATIONS = 200
_PerMinute = Annotated[int, Field(gt=0, le=1_000_000)]
_Application = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class Scope(StrEnum):
    """What a key may do."""

    CLASSIFY = "classify"
    """Ask for answers."""
    PROMOTE = "promote"
    """Promote, try out and roll back network versions."""
    DELETE = "delete"
    """Retire network versions and delete applications."""
    OPERATE = "operate"
    """Load and unload an instance's networks, and set how they are batched."""


@dataclass
class Quota:
    """A bucket of `burst` requests that fills steadily, with `per_minute` a minute; `clock` is in seconds.

    `full_at` is when it will be full again if nothing is taken out.
    """

    per_minute: int
    burst: int
    clock: Callable[[], float]
    full_at: float = float("-inf")

    def take(self, now: float) -> float:
        """Take one request out and return 0.0, or take none and return the seconds until there will be one."""
        interval_s = 60 / self.per_minute
        full_at = max(self.full_at, now) + interval_s
        wait = full_at - now - self.burst * interval_s
        if wait > _ROUNDING_S:
            return wait
        self.full_at = full_at
        return 0.0


@dataclass(frozen=True)
class Client:
    """The client of a request's key: its quota, its scopes and, where it is limited to some, its applications.

    `applications` have the requests a minute of each, None for no quota; `quotas` count them.
    """

    name: str
    requests_per_minute: int | None = None
    burst: int | None = None
    scopes: frozenset[Scope] = frozenset({Scope.CLASSIFY})
    applications: tuple[tuple[str, int | None], ...] | None = None
    quotas: Mapping[str, Quota] = field(default_factory=dict, compare=False, repr=False)


def _count(quota: Quota, what: str = "") -> None:
    if wait := quota.take(quota.clock()):
        raise Problem(
            429,
            f"the API key's quota of {quota.per_minute} requests a minute{what} is used up",
            slug="quota",
            headers={"Retry-After": str(ceil(wait - _ROUNDING_S))},
        )


def require_scope(client: Client | None, scope: Scope) -> None:
    """Raise Problem, 403, where a key lacks a scope; without keys (None), it is the route that refuses."""
    if client is not None and scope not in client.scopes:
        has = ", ".join(sorted(client.scopes))
        raise _forbidden(f"the API key {client.name!r} lacks the scope '{scope}': it has {has}")


def require(client: Client | None, scope: Scope, application: str | None) -> None:
    """Raise Problem where a key is not good for a request, and count the request.

    `application` is what it is about, None for none. 403 where the key lacks the scope, or is limited to other
    applications; 429 where its quota for the application is used up; without keys (None), as `require_scope`.
    """
    require_scope(client, scope)
    require_application(client, application)
    if client is not None and application is not None and application in client.quotas:
        _count(client.quotas[application], f" for {application}")


def require_application(client: Client | None, application: str | None) -> None:
    """Raise Problem, 403, where a key is limited to other applications than the one that a request is about."""
    if client is None or client.applications is None:
        return
    limits = dict(client.applications)
    if application is None or application not in limits:
        known = ", ".join(sorted(limits))
        asked = "no application" if application is None else f"the application {application!r:.80}"
        raise _forbidden(f"the API key {client.name!r} is for {known} alone, and the request names {asked}")


def may_use(request: Request, application: str | None) -> bool:
    """Return whether lists for a request's key have an application, or models (None)."""
    client: Client | None = getattr(request.state, "client", None)
    return client is None or client.applications is None or application in dict(client.applications)


def _forbidden(detail: str) -> Problem:
    return Problem(403, detail, slug="scope")


class Entry(BaseModel):
    """One key as the file has it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", repr=False)
    requests_per_minute: int | None = Field(default=None, gt=0, le=1_000_000)
    burst: int | None = Field(default=None, gt=0, le=1_000_000)
    scopes: tuple[Scope, ...] | None = Field(default=None, min_length=1, max_length=len(Scope))
    applications: dict[_Application, _PerMinute | None] | None = Field(
        default=None, min_length=1, max_length=_MOST_APPLICATIONS
    )
    created: datetime | None = None


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: list[Entry] = Field(max_length=_MOST_KEYS)

    @model_validator(mode="after")
    def _all_different(self) -> _File:
        for values in ([entry.name for entry in self.keys], [entry.sha256 for entry in self.keys]):
            if len(set(values)) < len(values):
                raise ValueError("two keys have one name or one digest")
        return self


@dataclass(frozen=True)
class _KeyEntry:
    client: Client
    digest: bytes = field(repr=False)
    quota: Quota | None


class KeyRing:
    """The keys of a file, read again when it changes; for the event loop's thread alone.

    A file that has become unreadable changes nothing: the keys read last still hold, and the log says so once. Raises
    UsageError where there is no file to begin with, InputError where it is broken.
    """

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._path = path
        self._clock = clock
        self._known: tuple[_KeyEntry, ...] = ()
        self._looked = clock()
        self._stamp = _stamp(path)
        if self._stamp is None:
            raise UsageError(f"{_WHAT} {path} does not exist: make a key with `serfer keys add NAME --file {path}`")
        self._take(read_keys(path))

    def check(self, presented: str) -> Client:
        """Return whose key it is, and count the request; raises Problem, 401 for no known key, 429 over its quota."""
        now = self._clock()
        if now - self._looked >= _LOOK_S:
            self._looked = now
            self._refresh()
        known = self._find(presented)
        if known is None:
            raise _unknown("the API key is not known")
        if known.quota is not None:
            _count(known.quota)
        return known.client

    def _find(self, presented: str) -> _KeyEntry | None:
        """Compare with every key, in constant time: the time does not show how much of a digest was right."""
        if not _KEY.fullmatch(presented):
            return None
        digest = sha256(presented.encode()).digest()
        match = None
        for known in self._known:
            if hmac.compare_digest(known.digest, digest):
                match = known
        return match

    def _refresh(self) -> None:
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp  # of what is read now, or a broken file would be logged every second
        try:
            self._take(read_keys(self._path))
        except InputError as error:
            _log.warning("%s; the keys read before still hold", error)

    def _take(self, entries: list[Entry]) -> None:
        before = {(known.digest, known.client): known for known in self._known}
        known = []
        for entry in entries:
            applications = tuple(sorted(entry.applications.items())) if entry.applications else None
            scopes, digest = frozenset(entry.scopes or (Scope.CLASSIFY,)), bytes.fromhex(entry.sha256)
            client = Client(entry.name, entry.requests_per_minute, entry.burst, scopes, applications)
            known.append(before.get((digest, client)) or self._new(client, digest))
        self._known = tuple(known)

    def _new(self, client: Client, digest: bytes) -> _KeyEntry:
        quotas = {name: Quota(rate, rate, self._clock) for name, rate in client.applications or () if rate}
        rate = client.requests_per_minute
        own = None if rate is None else Quota(rate, client.burst or rate, self._clock)
        return _KeyEntry(replace(client, quotas=quotas), digest, own)


def authorise(request: Request, ring: KeyRing) -> Client:
    """Return whose key a request brings, `Authorization: Bearer KEY` or `X-API-Key: KEY`; raises Problem as `check`."""
    presented = {value.strip() for value in request.headers.getlist("x-api-key")}
    for value in request.headers.getlist("authorization"):
        scheme, _, key = value.strip().partition(" ")
        if scheme.lower() == "bearer":
            presented.add(key.strip())
    if not presented:
        raise _unknown("an API key is needed: send Authorization: Bearer KEY, or X-API-Key: KEY")
    if len(presented) > 1:
        raise _unknown("the request has two different API keys: send one")
    return ring.check(presented.pop())


def read_keys(path: Path) -> list[Entry]:
    """Read a file of keys; raises InputError that names the file, never a key nor a digest."""
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise InputError(f"{_WHAT} {path} has more than {_MOST_BYTES:,} bytes")
        return _File.model_validate_json(data).keys
    except ValidationError as error:
        raise InputError(f"{_WHAT} {path} is not one: {_first(error)}") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise InputError(f"{_WHAT} {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def add_key(
    path: Path,
    name: str,
    requests_per_minute: int | None,
    *,
    burst: int | None = None,
    scopes: Sequence[Scope] = (),
    applications: Mapping[str, int | None] | None = None,
    now: datetime | None = None,
) -> str:
    """Make a key, keep its digest in the file, which is created where there is none, and return the key.

    Without `scopes` it may classify, without `applications` for all of them. Raises UsageError for a name that is
    taken, InputError for a name that cannot be one or a file that cannot be used.
    """
    key = "sf_" + secrets.token_urlsafe(_KEY_BYTES)
    try:
        entry = Entry(
            name=name,
            sha256=sha256(key.encode()).hexdigest(),
            requests_per_minute=requests_per_minute,
            burst=burst,
            scopes=tuple(dict.fromkeys(scopes)) or None,
            applications=dict(applications) if applications else None,
            created=(now or datetime.now(UTC)).replace(microsecond=0),
        )
    except ValidationError as error:
        raise InputError(f"no key can be made: {_first(error)}") from None
    with _alone(path):
        entries = read_keys(path) if path.exists() else []
        if name in [entry.name for entry in entries]:
            raise UsageError(f"a key named {name!r} is there already: remove it first, or choose another name")
        if len(entries) == _MOST_KEYS:
            raise UsageError(f"{path} has {_MOST_KEYS:,} keys already: remove one first")
        _write(path, [*entries, entry])
    return key


def remove_key(path: Path, name: str) -> None:
    """Take a key out of the file; drivers that run refuse it within seconds. Raises UsageError where there is none."""
    if not path.exists():
        read_keys(path)  # which says what is wrong, before a lock is made beside nothing
    with _alone(path):
        entries = read_keys(path)
        left = [entry for entry in entries if entry.name != name]
        if len(left) == len(entries):
            raise UsageError(f"{path} has no key named {name!r}")
        _write(path, left)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep other commands from changing a file of keys between its reading and its writing; raises InputError.

    The lock is a file beside it, as each change puts another file in its place.
    """
    with ExitStack() as held:
        try:
            held.enter_context(locked(path.with_name(f".{path.name}.lock")))
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"{_WHAT} {path} cannot be changed: {reason}") from None
        yield


def _write(path: Path, entries: list[Entry]) -> None:
    fields = _File(keys=entries).model_dump(mode="json", exclude_defaults=True)
    write_whole(path, json.dumps(fields, indent=2).encode() + b"\n", mode=_PRIVATE)


def _first(error: ValidationError) -> str:
    first = error.errors(include_input=False, include_context=False, include_url=False)[0]
    return ": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")]))


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def _unknown(detail: str) -> Problem:
    return Problem(401, detail, headers={"WWW-Authenticate": "Bearer"})
