"""The online load of a running service, as its GET /v1/load says it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Annotated, Protocol

from yarl import URL

from serfer.control.throttle import OnlineLoad
from serfer.core.dataclass_codec import Bounds, structure
from serfer.core.errors import InputError, UnavailableError, UsageError

_TIMEOUT_S = 2.0
_MOST_BYTES = 64 * 1024
_MOST_SHARE, _MOST_RATIO, _MOST_COUNT = 1e6, 1e9, 1e15
MOST_SOURCES = 16


class LoadSource(Protocol):
    """A place that says how much online queries it has."""

    def read(self) -> OnlineLoad: ...


@dataclass(frozen=True)
class _Reply:
    """What is read of a service's reply, which may have more fields."""

    utilisation: Annotated[float, Bounds(0.0, _MOST_SHARE)]
    throttled: Annotated[int, Bounds(0, _MOST_COUNT)]
    of_account: bool = False
    latency: Annotated[float, Bounds(0.0, _MOST_RATIO)] | None = None


@dataclass(frozen=True)
class ServiceLoad:
    """The load of one driver at a URL, which is asked with an API key where there is one."""

    url: URL
    key: str = field(default="", repr=False)

    @property
    def name(self) -> str:
        return self.url.authority

    def read(self) -> OnlineLoad:
        """Raises UsageError for a key that it does not take, InputError for no load, UnavailableError for no reply."""
        headers = {"Accept": "application/json", "User-Agent": "serfer"} | ({"X-API-Key": self.key} if self.key else {})
        status, body = _get(self.url / "v1" / "load", headers)
        if status == HTTPStatus.UNAUTHORIZED:
            raise UsageError(f"--yield-to {self.name}: it needs another API key: set SERFER_YIELD_KEY")
        if status == HTTPStatus.FORBIDDEN:
            raise UsageError(
                f"--yield-to {self.name} refuses: a service with keys needs one of the scope classify "
                "(SERFER_YIELD_KEY), one without keys the host's name (--set allow_host=NAME)"
            )
        if status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise UnavailableError(f"--yield-to {self.name} answers with {status}")
        if status != HTTPStatus.OK:
            raise UsageError(f"--yield-to {self.name} answers GET /v1/load with {status}: is it serfer serve?")
        return self._load(body)

    def _load(self, body: bytes) -> OnlineLoad:
        where = f"--yield-to {self.name}: the reply to GET /v1/load"
        try:
            fields = json.loads(body)
        except (ValueError, RecursionError):
            raise InputError(f"{where} is not JSON of a sensible size") from None
        read = structure(_Reply, fields, where, lenient=True, error=InputError)
        return OnlineLoad(self.name, read.utilisation, read.latency, read.throttled, of_account=read.of_account)


def service_loads(urls: Sequence[str], key: str) -> list[ServiceLoad]:
    if len(urls) > MOST_SOURCES:
        raise UsageError(f"--yield-to takes at most {MOST_SOURCES} services, not {len(urls)}")
    return [ServiceLoad(_checked_url(url), key) for url in urls]


def _checked_url(text: str) -> URL:
    """Raise UsageError that names no more of the URL than its host: paths and queries may be secrets."""
    try:
        url = URL(text)
    except ValueError:
        raise UsageError("--yield-to is not a URL") from None
    if url.scheme not in {"http", "https"} or not url.host:
        raise UsageError("--yield-to is a URL such as https://HOST/PATH")
    if url.user is not None or url.password is not None or url.fragment:
        raise UsageError(f"--yield-to for {url.host}: a URL with a user, a password or a fragment is not taken")
    return url


def _get(url: URL, headers: Mapping[str, str]) -> tuple[int, bytes]:
    import aiohttp  # noqa: PLC0415 - it takes 7 MB

    async def get() -> tuple[int, bytes]:
        async with (
            asyncio.timeout(_TIMEOUT_S),
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False) as session,
            session.get(url, headers=headers, allow_redirects=False) as response,
        ):
            body = bytearray()
            async for chunk in response.content.iter_chunked(_MOST_BYTES):
                body += chunk
                if len(body) >= _MOST_BYTES:
                    break
            return response.status, bytes(body[:_MOST_BYTES])

    try:
        return asyncio.run(get())
    except TimeoutError:
        raise UnavailableError(f"{url.host} did not answer within {_TIMEOUT_S:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:  # ValueError: a reply that is no HTTP
        raise UnavailableError(f"{url.host} cannot be reached: {type(error).__name__}") from None
