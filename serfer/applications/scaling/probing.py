"""Whether an instance is up: GET /v2/health/ready, over connections of its own."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from http import HTTPStatus

import aiohttp

from drivers.instance.client import open_http


@dataclass(frozen=True)
class InstanceProbe:
    """Asks one instance."""

    url: str
    probes: InstanceProbes

    async def ready(self, patience_s: float) -> bool:
        """Return whether the instance is up and takes queries."""
        try:
            async with asyncio.timeout(patience_s), self.probes.http.get(f"{self.url}/v2/health/ready") as reply:
                return reply.status == HTTPStatus.OK
        except (TimeoutError, aiohttp.ClientError):
            return False


class InstanceProbes:
    """Makes probes; `key` is the API key that instances want. On one event loop."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._http: aiohttp.ClientSession | None = None

    @property
    def http(self) -> aiohttp.ClientSession:
        """The connections of all probes."""
        if self._http is None:
            self._http = open_http(self._key)
        return self._http

    def __call__(self, url: str) -> InstanceProbe:
        """Return the probe of an instance."""
        return InstanceProbe(url.rstrip("/"), self)

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.close()
