"""Additions to /openapi.json beyond what FastAPI derives from the routes: bodies, headers, errors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import BaseModel

from serfer.api.http.inference_models import InferenceError
from serfer.api.http.problems import MEDIA_TYPE, ProblemDetails
from serfer.api.http.uploads import FORM, JSON, RAW, ImageRequest
from serfer.api.http.validation import QueryParameters

BINARY: Final = "application/octet-stream"
FILE: Final[dict[str, Any]] = {"type": "string", "format": "binary"}
Responses = dict[int | str, dict[str, Any]]
_WHY: Final = {
    400: "It cannot be decoded.",
    401: "An API key is missing, or unknown.",
    403: "It is for a host, or from a page, that this service without keys does not answer to.",
    404: "There is no such thing here.",
    408: "The body did not arrive in time.",
    409: "It is in use: try again later.",
    413: "Too large: in bytes, in pixels, or in images.",
    415: "Of a type that is not accepted.",
    422: "A value is not what it should be.",
    429: "No room now, or over the key's quota: Retry-After says when to come again.",
    503: "Store or functions do not answer: Retry-After says when to come again.",
    504: "There was no answer by the deadline.",
}
_RETRY_AFTER: Final = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}}
_FORM: Final = {
    "type": "object",
    "required": ["image"],
    "properties": {"image": {"type": "array", "minItems": 1, "items": FILE}},
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


def problems(*statuses: int) -> Responses:
    return _errors(statuses, {"content": {MEDIA_TYPE: {"schema": schema_of(ProblemDetails)}}})


def inference_errors(*statuses: int) -> Responses:
    return _errors(statuses, {"model": InferenceError})


def _errors(statuses: Iterable[int], body: Mapping[str, Any]) -> Responses:
    busy = (429, 503)
    return {
        status: {"description": _WHY[status], **body, **({"headers": _RETRY_AFTER} if status in busy else {})}
        for status in statuses
    }


def request_body(content: Mapping[str, type[BaseModel] | dict[str, Any]], *, required: bool = True) -> dict[str, Any]:
    schemas = {kind: schema if isinstance(schema, dict) else schema_of(schema) for kind, schema in content.items()}
    return {"required": required, "content": {kind: {"schema": schema} for kind, schema in schemas.items()}}


def path_parameters(path: str) -> list[dict[str, Any]]:
    names = re.findall(r"{(\w+)}", path)
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return a model's JSON schema with its definitions in their places: FastAPI has no components for such models."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})

    def inlined(value: Any) -> Any:  # noqa: ANN401 - any JSON value
        match value:
            case {"$ref": str(reference), **rest}:
                return {**inlined(definitions[reference.rpartition("/")[2]]), **rest}
            case dict():
                return {name: inlined(member) for name, member in value.items()}
            case list():
                return [inlined(member) for member in value]
        return value

    whole: dict[str, Any] = inlined(schema)
    return whole


def images_in(parameters: type[QueryParameters]) -> dict[str, Any]:
    content: dict[str, type[BaseModel] | dict[str, Any]] = {FORM: _FORM, **dict.fromkeys(RAW, FILE), JSON: ImageRequest}
    return {"requestBody": request_body(content), "parameters": [*parameters.described(), *_HEADERS]}
