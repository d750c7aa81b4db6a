"""The page at `/`, plain files of this package, and the routes at /docs and /openapi.json, with a strict policy."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from serfer.api.http.problems import Problem

_FILES = Path(__file__).parent / "page"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
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
    router = APIRouter(include_in_schema=False)
    files = {path.name: _File(path.read_bytes(), path.suffix) for path in _FILES.iterdir() if path.suffix in _TYPES}

    @router.api_route("/", methods=["GET", "HEAD"])
    async def index(request: Request) -> Response:
        return files["index.html"].response(request)

    @router.api_route("/docs", methods=["GET", "HEAD"])
    async def docs(request: Request) -> Response:
        if "docs" not in files:
            files["docs"] = _File(list_routes(request.app.openapi()).encode(), ".html")
        return files["docs"].response(request)

    @router.api_route("/openapi.json", methods=["GET", "HEAD"])
    async def openapi(request: Request) -> Response:
        if "openapi" not in files:  # open to everybody, so it is encoded once
            files["openapi"] = _File(JSONResponse(request.app.openapi()).body, ".json")
        return files["openapi"].response(request)

    @router.api_route("/page/{name}", methods=["GET", "HEAD"])
    async def part(request: Request, name: str) -> Response:
        if name not in files:
            raise Problem(404, "the page has no such file")
        return files[name].response(request)

    return router


def list_routes(schema: Mapping[str, Any]) -> str:
    """Return a page of an OpenAPI document's routes: what each is for, its parameters and its answers."""
    rows = "".join(_rows(schema))
    return f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>SerFer: API</title>
<link rel="icon" href="page/icon.svg" type="image/svg+xml"><link rel="stylesheet" href="page/style.css"></head>
<body><header class="top"><h1><img src="page/icon.svg" alt="" width="26" height="26">SerFer</h1>
<nav aria-label="Service"><a href=".">Page</a> <a href="openapi.json">openapi.json</a></nav></header>
<main><div class="panel routes" tabindex="0" role="region" aria-label="Routes">
<table><caption>Routes of this service</caption>
<thead><tr><th>Route</th><th>What it does</th><th>Parameters</th><th>Answers</th></tr></thead>
<tbody>{rows}</tbody></table></div></main></body></html>
"""


def _rows(schema: Mapping[str, Any]) -> Iterator[str]:
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            text = operation.get("description") or operation.get("summary", "")
            parameters = ", ".join(parameter["name"] for parameter in operation.get("parameters", ()))
            cells = (text, parameters, ", ".join(operation.get("responses", ())))
            head = f'<th scope="row">{method.upper()} <code>{escape(path)}</code></th>'
            yield f"<tr>{head}{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>\n"


class _File:
    def __init__(self, content: bytes | memoryview, suffix: str) -> None:
        self._content = content
        self._headers = {**_HEADERS, "ETag": f'"{hashlib.sha256(self._content).hexdigest()[:32]}"'}
        self._type = _TYPES[suffix]

    def response(self, request: Request) -> Response:
        known = request.headers.get("if-none-match", "")
        if self._headers["ETag"] in (tag.strip().removeprefix("W/") for tag in known.split(",")):
            return Response(status_code=304, headers=self._headers)
        return Response(self._content, headers=self._headers, media_type=self._type)
