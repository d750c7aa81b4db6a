"""ministack's application for one user, whose Step Functions sign their calls of Lambda; an ASGI server imports `app`.

It runs in ministack's virtual environment, which has none of our packages: they are found where this file lies, after
its own.
"""

from __future__ import annotations

import os
import sys
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[4]))

from ministack.app import app as ministack

from serfer.core.sigv4 import Access, sign
from serfer.local.lambda_.socket_owner import is_ours

_ACCESS = Access(os.environ["LOCAL_ACCESS_KEY_ID"], os.environ["LOCAL_SECRET_ACCESS_KEY"])


class _Signer(urllib.request.BaseHandler):
    """Signs requests to the local Lambda service, for urllib; ministack calls functions in no other way."""

    handler_order = 900  # after urllib's own, which set Host

    def http_request(self, request: urllib.request.Request) -> urllib.request.Request:
        """Sign a request of an Invoke."""
        if request.selector.startswith("/2015-03-31/functions/"):
            body = request.data
            assert isinstance(body, bytes)  # noqa: S101 - ministack's events are
            now, region = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ"), os.environ["MINISTACK_REGION"]
            headers = sign(_ACCESS, region, now, "POST", request.selector, {"host": request.host}, body)
            for name, value in headers.items():
                request.add_unredirected_header(name, value)
        return request


urllib.request.install_opener(urllib.request.build_opener(_Signer))


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:  # noqa: ANN401 - ASGI's
    """Serve a request of this user's, refuse others."""
    if scope["type"] != "http" or is_ours(tuple(scope["client"]), tuple(scope["server"])):
        await ministack(scope, receive, send)
        return
    await send({"type": "http.response.start", "status": 403, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})
