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

    def count(self, what: str = "") -> None:
        """Count a request; raises Problem 429, with when to come again, where the quota is used up."""
        wait = self.take(self.clock())
        if wait:
            raise Problem(
                429,
                f"the API key's quota of {self.per_minute} requests a minute{what} is used up",
                slug="quota",
                headers={"Retry-After": str(ceil(wait - _ROUNDING_S))},
            )


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
    if client is not None and application is not None and application in client.quotas:
        client.quotas[application].count(f" for {application}")


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
