"""The least ASGI application: the body of a request is an image, the pass runs on the event loop.

uvicorn's guide to deployment (uvicorn.dev/deployment): several processes (`--workers`); uvloop and httptools, which
uvicorn[standard] brings.
"""

from __future__ import annotations

import json
from typing import Any

from serfer_bench.peers.apps.classifier import Classifier

_CLASSIFIER = Classifier.of_variables()
_HEADERS = [(b"content-type", b"application/json")]


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:  # noqa: ANN401, ARG001 - ASGI's own
    """Answer one request."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    answer = json.dumps(_CLASSIFIER.answer(body)).encode()
    headers = [*_HEADERS, (b"content-length", str(len(answer)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})
