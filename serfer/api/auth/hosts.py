"""Host names that a service without API keys answers to, so that web pages cannot use it through a visitor's browser.

Two requests of browsers are refused: those of another site's page, which the Origin header names, and those to a name
whose owner has pointed it at this machine (DNS rebinding), which the Host header names. An IP address as Host is no
rebinding, so a service that listens at all addresses answers to each of them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from serfer.api.http.problems import Problem

_EXEMPT = frozenset({"/healthz", "/readyz", "/metrics", "/v2/health/live", "/v2/health/ready"})  # for balancers
_ANY_ADDRESS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - to listen at, which is not done here
_SHOWN = 80
_KNOWN = 256  # names, which clients repeat
_LONGEST_URL = 512  # a host name has 253 characters at most (RFC 1035, 2.3.4)


class HostCheck:
    """A middleware that refuses other hosts and origins than `allowed` and this machine's own with Problem 403.

    `allowed` are host names and IP addresses, among them the one to listen at; 0.0.0.0 or :: stand for any IP address.
    """

    def __init__(self, app: ASGIApp, allowed: Iterable[str]) -> None:
        self._app = app
        self._allowed = {*map(_plain, allowed), "localhost"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in _EXEMPT:
            self._check(scope)
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        hosts, origins = (
            [value.decode("latin-1") for name, value in scope["headers"] if name == wanted]
            for wanted in (b"host", b"origin")
        )
        names = [_name(f"//{host}") for host in hosts if host]
        for name, host in zip(names, filter(None, hosts), strict=True):
            if not (self._knows(name) or (self._allowed & _ANY_ADDRESS and _address(name))):
                raise _refusal("Host", host)
        for origin in origins:
            name = _name(origin)
            if not (self._knows(name) or name in names):
                raise _refusal("Origin", origin)

    def _knows(self, name: str) -> bool:
        address = _address(name)
        return name in self._allowed or (address is not None and address.is_loopback)


def _name(url: str) -> str:
    return _host(url) if len(url) <= _LONGEST_URL else ""  # strangers' headers are not kept


@lru_cache(_KNOWN)
def _host(url: str) -> str:
    try:
        return _plain(urlsplit(url).hostname or "")
    except ValueError:
        return ""


def _plain(host: str) -> str:
    return host.lower().removesuffix(".").strip("[]")


@lru_cache(_KNOWN)
def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _refusal(header: str, value: str) -> Problem:
    shown = value[:_SHOWN] if value.isprintable() and value.isascii() else "what it says"
    return Problem(
        403,
        f"{header}: {shown} is not a host that this service answers to, which has no API keys: start it with "
        "--set allow_host=NAME (SERFER_ALLOW_HOSTS), or with --keys",
        slug="host",
    )
