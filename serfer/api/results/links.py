"""Signed links: who has one reads one output of one result until it expires, without an API key.

    /v2/results/ID/outputs/NAME?owner=OWNER&expires=1790000000&signature=...

The signature is HMAC-SHA-256 (RFC 2104) over what the link grants: the owner's name, the result, the output and the
end, in seconds since 1970. A link ends with its result, and all end when the key changes.
"""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from serfer.api.http.problems import Problem

PARAMETERS = ("owner", "expires", "signature")
_SECONDS = re.compile(r"[0-9]{1,12}")
_SIGNATURE = re.compile(r"[A-Za-z0-9_-]{43}")
_PURPOSE = "serfer result link 1"


@dataclass(frozen=True)
class Grant:
    """The reading of one output of one result of an owner, until `expires`, in whole seconds since 1970."""

    owner: str
    result: str
    output: str
    expires: int

    def text(self) -> bytes:
        """Return what is signed; no two grants have the same text."""
        parts = (_PURPOSE, self.owner, self.result, self.output, str(self.expires))
        return "".join(f"{len(part)}:{part}" for part in parts).encode(errors="surrogatepass")


@dataclass(frozen=True)
class LinkSigner:
    """Signs links and checks them, with a key that all drivers share; `clock` gives seconds since 1970."""

    key: bytes = field(repr=False)
    clock: Callable[[], float]

    def query(self, grant: Grant) -> str:
        """Return the query of a link."""
        return urlencode({"owner": grant.owner, "expires": grant.expires, "signature": self._signature(grant)})

    def check(self, query: QueryParams, result: str, output: str) -> Grant:
        """Return what a link grants; raises Problem 403 for one that is malformed, altered or over."""
        given = {name: query.get(name, "") for name in PARAMETERS}
        if len(query.multi_items()) != len(PARAMETERS) or not _SECONDS.fullmatch(given["expires"]):
            raise _refused()
        grant = Grant(given["owner"], result, output, int(given["expires"]))
        if not _SIGNATURE.fullmatch(given["signature"]):
            raise _refused()
        if not hmac.compare_digest(self._signature(grant), given["signature"]) or grant.expires <= self.clock():
            raise _refused()
        return grant

    def _signature(self, grant: Grant) -> str:
        digest = hmac.digest(self.key, grant.text(), "sha256")
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _refused() -> Problem:
    return Problem(HTTPStatus.FORBIDDEN, "the link is not one of this service's, or its time is over: ask for another")
