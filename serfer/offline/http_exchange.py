"""One HTTP request to a URL of the user's own: in bounded time, of a bounded answer, and without redirects."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address

from yarl import URL

from serfer.core.errors import UnavailableError, UsageError


@dataclass(frozen=True)
class HttpReply:
    """What came back: the status, headers with names in lower case, the body or its beginning."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def checked_url(text: str, option: str, *, plain_http: bool) -> URL:
    """Return a URL that requests may go to; http only to this machine, unless `plain_http`.

    Raises UsageError that names the option, and no more of the URL than its host: paths and queries may be secrets.
    """
    try:
        url = URL(text)
    except ValueError:
        raise UsageError(f"{option} is not a URL") from None
    if url.scheme not in {"http", "https"} or not url.host:
        raise UsageError(f"{option} is a URL such as https://HOST/PATH")
    if url.user is not None or url.password is not None or url.fragment:
        raise UsageError(f"{option} for {url.host}: a URL with a user, a password or a fragment is not taken")
    if url.scheme == "http" and not plain_http and not is_loopback(url.host):
        raise UsageError(f"{option} for {url.host}: use https://, http:// is for this machine alone")
    return url


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, by its name or address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def exchange(
    method: str,
    url: URL,
    *,
    headers: Mapping[str, str],
    body: bytes | None = None,
    timeout_s: float,
    most_bytes: int,
) -> HttpReply:
    """Send a request and return the reply, whatever its status.

    Raises UnavailableError that names the host alone, where none comes within `timeout_s`. Not for an event loop's
    thread: it runs a loop of its own.
    """
    import aiohttp  # noqa: PLC0415 - few processes exchange anything, and it takes 7 MB

    try:
        return asyncio.run(_exchange(method, url, headers, body, timeout_s, most_bytes))
    except TimeoutError:
        raise UnavailableError(f"{url.host} did not answer within {timeout_s:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:  # ValueError: a reply that is no HTTP
        raise UnavailableError(f"{url.host} cannot be reached: {type(error).__name__}") from None


async def _exchange(
    method: str, url: URL, headers: Mapping[str, str], body: bytes | None, timeout_s: float, most_bytes: int
) -> HttpReply:
    import aiohttp  # noqa: PLC0415 - as above

    async with (
        asyncio.timeout(timeout_s),
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False) as session,
        session.request(method, url, data=body, headers=headers, allow_redirects=False) as response,
    ):
        text = bytearray()
        async for chunk in response.content.iter_chunked(most_bytes):
            text += chunk
            if len(text) >= most_bytes:
                break
        fields = {name.lower(): value for name, value in response.headers.items()}
        return HttpReply(response.status, fields, bytes(text[:most_bytes]))
