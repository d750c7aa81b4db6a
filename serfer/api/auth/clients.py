"""Clients by their keys: quotas, and what a key is good for, its scopes and the applications that it is limited to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil

from serfer.api.http.problems import Problem

_ROUNDING_S = 1e-6  # rounding must not refuse a request that waited as long as Retry-After requires


class Scope(StrEnum):
    """What a key may do."""

    CLASSIFY = "classify"
    """Ask for answers."""
    REGISTER = "register"
    """Register networks in an application."""
    PROMOTE = "promote"
    """Promote, try out and roll back network versions."""
    DELETE = "delete"
    """Retire network versions and delete applications."""
    OPERATE = "operate"
    """Load and unload an instance's networks, and set how they are batched."""


@dataclass
class Quota:
    """A bucket of `burst` requests that fills steadily: one every `interval_s` seconds.

    `full_at` is when it will be full again if nothing is taken out; times are in seconds of any clock.
    """

    interval_s: float
    burst: int
    full_at: float = float("-inf")

    def take(self, now: float) -> float:
        """Take one request out and return 0.0, or take none and return the seconds until there will be one."""
        full_at = max(self.full_at, now) + self.interval_s
        wait = full_at - now - self.burst * self.interval_s
        if wait > _ROUNDING_S:
            return wait
        self.full_at = full_at
        return 0.0


class Meters:
    """What a key has used of its quotas for applications, by a clock in seconds."""

    def __init__(self, clock: Callable[[], float], quotas: Mapping[str, Quota]) -> None:
        self._clock = clock
        self._quotas = quotas

    def take(self, application: str) -> float:
        """Count a request and return 0.0, or count none and return the seconds until there is one left."""
        quota = self._quotas.get(application)
        return quota.take(self._clock()) if quota else 0.0


@dataclass(frozen=True)
class Client:
    """The client of a request's key: its quota, its scopes and, where it is limited to some, its applications.

    `applications` have the requests a minute of each, None for no quota; `meters` count them.
    """

    name: str
    requests_per_minute: int | None = None
    burst: int | None = None
    scopes: frozenset[Scope] = frozenset({Scope.CLASSIFY})
    applications: tuple[tuple[str, int | None], ...] | None = None
    meters: Meters | None = field(default=None, compare=False, repr=False)


def rounded_up(wait_s: float) -> int:
    """Return the whole seconds of a Retry-After after which a request that has to wait is not refused again."""
    return ceil(wait_s - _ROUNDING_S)


def require_scope(client: Client | None, scope: Scope) -> None:
    """Raise Problem, 403, where a key lacks a scope; without keys (None), everything is allowed."""
    if client is not None and scope not in client.scopes:
        has = ", ".join(sorted(client.scopes))
        raise _forbidden(f"the API key {client.name!r} lacks the scope '{scope}': it has {has}")


def require(client: Client | None, scope: Scope, application: str | None) -> None:
    """Raise Problem where a key is not good for a request, and count the request.

    `application` is what it is about, None for none. 403 where the key lacks the scope, or is limited to other
    applications; 429 where its quota for the application is used up. Without keys (None), everything is allowed.
    """
    require_scope(client, scope)
    require_application(client, application)
    if client is None or client.applications is None or application is None:
        return
    limits = dict(client.applications)
    wait = client.meters.take(application) if client.meters else 0.0
    if wait:
        raise Problem(
            429,
            f"the API key's quota of {limits[application]} requests a minute for {application} is used up",
            slug="quota",
            headers={"Retry-After": str(rounded_up(wait))},
        )


def require_application(client: Client | None, application: str | None) -> None:
    """Raise Problem, 403, where a key is limited to other applications than the one that a request is about."""
    if client is None or client.applications is None:
        return
    limits = dict(client.applications)
    if application is None or application not in limits:
        known = ", ".join(sorted(limits))
        asked = "no application" if application is None else f"the application {application!r:.80}"
        raise _forbidden(f"the API key {client.name!r} is for {known} alone, and the request names {asked}")


def _forbidden(detail: str) -> Problem:
    return Problem(403, detail, slug="scope")
