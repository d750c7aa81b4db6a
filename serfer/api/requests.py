"""What a classify request asks for, beside its images: parameters, headers, who sends it."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from serfer.api.problems import Problem

_KEY = re.compile(r"[!-~]{1,255}")
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Once:
    """An idempotency key of a client's, and the digest of what it asks for with it."""

    owner: str
    key: str
    digest: str

    @property
    def name(self) -> str:
        """Return 64 hex digits that are this key's alone, of which nobody learns the key."""
        return hashlib.sha256(f"{len(self.owner)}:{self.owner}:{self.key}".encode()).hexdigest()


def check_parameters(request: Request, known: Iterable[str]) -> None:
    """Refuse query parameters that are unknown or given twice, by name; raises Problem 422."""
    names = [name for name, _ in request.query_params.multi_items()]
    known = tuple(known)
    for name in names:
        if name not in known:
            shown = name[:40] if name.isprintable() else "a parameter"
            raise Problem(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                f"{shown!r} is no parameter here: there is {', '.join(known) or 'none'}",
            )
        if names.count(name) > 1:
            raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"{name} is given more than once")


def idempotency_key(request: Request) -> str | None:
    """Return the request's idempotency key, if it has one; raises Problem 422 for a malformed one."""
    values = request.headers.getlist("idempotency-key")
    if not values:
        return None
    if len(values) > 1 or not _KEY.fullmatch(values[0]):
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY, "Idempotency-Key should be 1 to 255 visible ASCII characters, once"
        )
    return values[0]


def wants_async(request: Request) -> bool:
    """Say whether the client would rather be told later (RFC 7240: Prefer: respond-async)."""
    words = ",".join(request.headers.getlist("prefer")).split(",")
    return any(word.partition(";")[0].strip().lower() == "respond-async" for word in words)


def digest_of(parts: Iterable[bytes]) -> str:
    """Return the SHA-256 of byte strings, none of which runs into the next."""
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "big"))
        found.update(part)
    return found.hexdigest()


async def unless_gone(request: Request, work: Coroutine[Any, Any, _Value]) -> _Value:
    """Do the work, or cancel it when the client goes away; raises ClientDisconnect then."""
    doing = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait((doing, gone), return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        raise ClientDisconnect
    finally:
        gone.cancel()
        if not doing.done():
            doing.cancel()
            await asyncio.wait((doing,))


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
