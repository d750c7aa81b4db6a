"""Notification by an HTTP POST that is signed (Standard Webhooks)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus

from yarl import URL

from serfer.core.errors import UnavailableError
from serfer.offline.http_exchange import exchange
from serfer.offline.notify.event import JobEvent
from serfer.offline.notify.signature import signed_headers
from serfer.offline.notify.target import Attempt

_MOST_REPLY_BYTES = 4096
_MOST_WAIT_S = 60.0
_AGAIN = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}


@dataclass(frozen=True)
class Webhook:
    """A URL that events are posted to; `clock` is the seconds since 1970 that signatures carry."""

    url: URL = field(repr=False)
    key: bytes = field(repr=False)
    clock: Callable[[], float] = time.time

    @property
    def name(self) -> str:
        """Scheme and host: the path may be the receiver's secret."""
        return f"{self.url.scheme}://{self.url.authority}/..."

    def send(self, event: JobEvent, timeout_s: float) -> Attempt:
        """Post an event. Any status of 2xx takes it; 408, 425, 429 and 5xx may be tried again, and nothing else.

        A redirect is refused: what a signature vouches for goes where the user said, and nowhere else.
        """
        body = event.body()
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "serfer",
            **signed_headers(self.key, event.id, int(self.clock()), body),
        }
        try:
            reply = exchange(
                "POST", self.url, headers=headers, body=body, timeout_s=timeout_s, most_bytes=_MOST_REPLY_BYTES
            )
        except UnavailableError as error:
            return Attempt(str(error), again=True)
        if HTTPStatus.OK <= reply.status < HTTPStatus.MULTIPLE_CHOICES:
            return Attempt()
        words = f"{self.url.host} answers with {reply.status}"
        if reply.status < HTTPStatus.BAD_REQUEST:
            return Attempt(f"{words}: redirects are not followed")
        again = reply.status in _AGAIN or reply.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        return Attempt(words, again, _wait_s(reply.headers.get("retry-after", "")))


def _wait_s(retry_after: str) -> float:
    """Return the seconds of a Retry-After header, within bounds; 0 for a date and for anything else."""
    return min(float(retry_after), _MOST_WAIT_S) if retry_after.isascii() and retry_after.isdigit() else 0.0
