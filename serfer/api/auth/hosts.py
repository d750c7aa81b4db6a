"""Host names that a service without API keys answers to, so that web pages cannot use it through a visitor's browser.

Two requests of browsers are refused: those of another site's page, which the Origin header names (another port of this
machine is another site), and those to a name whose owner has pointed it at this machine (DNS rebinding), which the Host
header names. An IP address as Host is no rebinding, so a service that listens at all addresses answers to each of them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from starlette.requests import Request

from serfer.api.http.problems import Problem

_EXEMPT = frozenset({"/healthz", "/readyz", "/metrics", "/v2/health/live", "/v2/health/ready"})  # for balancers
_ANY_ADDRESS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - to listen at, which is not done here
_PORTS = {"http": 80, "https": 443}
_SHOWN = 80
_KNOWN = 256  # names, which clients repeat
_LONGEST_URL = 512  # a host name has 253 characters at most (RFC 1035, 2.3.4)


class HostCheck:
    """Refuses with Problem 403 requests for other hosts, and of pages of other sites.

    Requests may be for `hosts`, host names and IP addresses, where 0.0.0.0 or :: stand for any IP address, and for this
    machine's own; pages are of the place that the request is for, or of `origins`, at any port or the one with a name.
    """

    def __init__(self, hosts: Iterable[str], origins: Iterable[str]) -> None:
        self._hosts, self._origins = {*(_entry(host)[0] for host in hosts), "localhost"}, {*map(_entry, origins)}
        self._passed = set[bytes]()

    async def __call__(self, request: Request) -> None:
        hosts, origins = b"", b""
        for name, value in request.scope["headers"]:
            if name == b"host":
                hosts += value + b"\n"
            elif name == b"origin":
                origins += value + b"\n"
        passed = hosts + b"\n" + origins
        if passed not in self._passed and request.scope["path"] not in _EXEMPT:
            self._check(str(hosts, "latin-1").split("\n")[:-1], str(origins, "latin-1").split("\n")[:-1])
            if len(self._passed) == _KNOWN:
                self._passed.clear()
            self._passed.add(passed)

    def _check(self, hosts: Sequence[str], origins: Sequence[str]) -> None:
        for host in filter(None, hosts):
            name, _ = _place(f"//{host}")
            address = _address(name)
            if name not in self._hosts and not (address and (address.is_loopback or self._hosts & _ANY_ADDRESS)):
                raise _refusal("Host", host, "a host that this service answers to")
        for origin in origins:
            place, scheme = _place(origin), origin.partition("//")[0]  # a proxy may have taken TLS off
            own = [_place(f"{scheme}//{host}") for host in hosts]
            if not place[0] or {place, (place[0], None)}.isdisjoint({*self._origins, *own}):
                raise _refusal("Origin", origin, "where this service's own page is, port included")


def _place(url: str) -> tuple[str, int | None]:
    try:
        parts = urlsplit(url if len(url) <= _LONGEST_URL else "")
        return _plain(parts.hostname or ""), parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return "", None


def _entry(text: str) -> tuple[str, int | None]:
    name, _, port = text.rpartition(":")
    has_port = port.isdecimal() and (":" not in name or name.endswith("]"))
    return (_plain(name), int(port)) if has_port else (_plain(text), None)


def _plain(host: str) -> str:
    return host.lower().removesuffix(".").strip("[]")


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _refusal(header: str, value: str, wanted: str) -> Problem:
    shown = value[:_SHOWN] if value.isprintable() and value.isascii() else "what it says"
    return Problem(
        403,
        f"{header}: {shown} is not {wanted}, and there are no API keys: start the service with "
        "--set allow_host=NAME (SERFER_ALLOW_HOSTS), or with --keys",
        slug="host",
    )
