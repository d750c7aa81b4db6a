"""An application that reads a request and computes nothing: how fast it is asked is the client's own limit."""

from __future__ import annotations

from typing import Any

_ANSWER = b'{"predictions": []}'
_HEADERS = [(b"content-type", b"application/json"), (b"content-length", str(len(_ANSWER)).encode())]


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:  # noqa: ANN401, ARG001 - ASGI's own
    """Answer one request."""
    while (await receive()).get("more_body", False):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
    await send({"type": "http.response.body", "body": _ANSWER})
