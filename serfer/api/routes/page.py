"""The page at `/` and the one at /docs: plain files of this package, served with a strict content policy."""

from __future__ import annotations

import hashlib
from http import HTTPStatus
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import Response

from serfer.api.http.problems import Problem

_FILES = Path(__file__).parent / "page"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY: Final = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' blob:",  # the chosen picture, as the browser has it
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}
_HEADERS: Final = {
    "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in _POLICY.items()),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # ask each time; the tag makes the answer short
}


def page_router() -> APIRouter:
    """Return the routes of the pages; their files are read now, once."""
    router = APIRouter(include_in_schema=False)
    files = {path.name: _File(path) for path in sorted(_FILES.iterdir()) if path.suffix in _TYPES}

    @router.api_route("/", methods=["GET", "HEAD"])
    async def index(request: Request) -> Response:
        return files["index.html"].response(request)

    @router.api_route("/docs", methods=["GET", "HEAD"])
    async def docs(request: Request) -> Response:
        return files["docs.html"].response(request)

    @router.api_route("/page/{name}", methods=["GET", "HEAD"])
    async def part(request: Request, name: str) -> Response:
        if name not in files:
            raise Problem(HTTPStatus.NOT_FOUND, "the page has no such file")
        return files[name].response(request)

    return router


class _File:
    def __init__(self, path: Path) -> None:
        self._content = path.read_bytes()
        self._headers = {**_HEADERS, "ETag": f'"{hashlib.sha256(self._content).hexdigest()[:32]}"'}
        self._type = _TYPES[path.suffix]

    def response(self, request: Request) -> Response:
        """Return the file, or that it has not changed."""
        known = request.headers.get("if-none-match", "")
        if self._headers["ETag"] in (tag.strip().removeprefix("W/") for tag in known.split(",")):
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=self._headers)
        return Response(self._content, headers=self._headers, media_type=self._type)
