"""What /openapi.json says of the routes beyond what FastAPI reads off them: bodies, headers, problems."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from serfer.api.http.problems import MEDIA_TYPE
from serfer.api.http.uploads import RAW
from serfer.core.served import JobStatus, ServedReport

_PROBLEM: Final = {
    "type": "object",
    "required": ["title", "status", "detail", "request_id"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "request_id": {"type": "string"},
    },
}
_WHY: Final = {
    400: "It cannot be decoded.",
    401: "An API key is missing, or unknown.",
    403: "It is for a host, or from a page, that this service without keys does not answer to.",
    404: "There is no such thing here.",
    408: "The body did not arrive in time.",
    413: "Too large: in bytes, in pixels, or in images.",
    415: "Of a type that is not accepted.",
    422: "A value is not what it should be.",
    429: "No room now, or over the key's quota: Retry-After says when to come again.",
    503: "Store or functions do not answer: Retry-After says when to come again.",
    504: "There was no answer by the deadline.",
}
_FILE: Final = {"type": "string", "format": "binary"}
_RETRY_AFTER: Final = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the documentation of responses that are problems."""
    found: dict[int | str, dict[str, Any]] = {}
    for status in statuses:
        found[status] = {"description": _WHY[status], "content": {MEDIA_TYPE: {"schema": _PROBLEM}}}
        if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
            found[status]["headers"] = _RETRY_AFTER
    return found


_IMAGES: Final = {
    "type": "object",
    "required": ["images"],
    "additionalProperties": False,
    "properties": {
        "images": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["data"],
                "additionalProperties": False,
                "properties": {
                    "data": {"type": "string", "contentEncoding": "base64", "minLength": 1},
                    "name": {"type": "string"},
                },
            },
        }
    },
}
_FORM: Final = {
    "type": "object",
    "required": ["image"],
    "properties": {"image": {"type": "array", "minItems": 1, "items": _FILE}},
}
_HEADERS: Final = [
    {
        "name": "Idempotency-Key",
        "in": "header",
        "description": "The same key with every retry of a request gets the first answer again.",
        "schema": {"type": "string", "pattern": "^[!-~]{1,255}$"},
    },
    {
        "name": "Prefer",
        "in": "header",
        "description": "respond-async: answer 202 at once, with the place of the result to come.",
        "schema": {"type": "string", "pattern": "^respond-async$"},
    },
]

CLASSIFY: Final[dict[str, Any]] = {
    "response_model": None,
    "responses": {
        200: {"model": ServedReport, "description": "The best classes of each image, and what the query took."},
        202: {"model": JobStatus, "description": "It was begun: Location says where its result will be."},
        **problems(400, 401, 403, 404, 408, 413, 415, 422, 429, 503, 504),
    },
    "openapi_extra": {
        "requestBody": {
            "required": True,
            "content": {
                "multipart/form-data": {"schema": _FORM},
                **{kind: {"schema": _FILE} for kind in RAW},
                "application/json": {"schema": _IMAGES},
            },
        },
        "parameters": _HEADERS,
    },
}
RESULT: Final[dict[str, Any]] = {
    "response_model": None,
    "responses": {
        200: {"model": JobStatus, "description": "How far it is, stage by stage, and its result."},
        **problems(401, 403, 404, 422, 503),
    },
}
DELETED: Final[dict[str, Any]] = {"response_model": None, "responses": problems(401, 403, 404, 422, 503)}
