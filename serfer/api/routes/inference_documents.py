"""What /openapi.json says of the Open Inference Protocol's routes."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

BINARY: Final = "application/octet-stream"
_ERROR: Final = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
_WHY: Final = {
    400: "The request is not what the model takes; the error says why.",
    401: "An API key is missing, or unknown.",
    403: "It is for a host, or from a page, that this service without keys does not answer to.",
    404: "There is no such model, or no such version of it.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body has a coding that is not accepted.",
    429: "No room now, or over the key's quota: Retry-After says when to come again.",
    503: "Store or functions do not answer: Retry-After says when to come again.",
    504: "There was no answer by the deadline.",
}
_PARAMETERS: Final = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
_TENSOR: Final = {
    "type": "object",
    "required": ["name", "shape", "datatype"],
    "properties": {
        "name": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer"}},
        "datatype": {"type": "string", "enum": ["FP32", "UINT8", "BYTES"]},
        "parameters": _PARAMETERS,
        "data": {"type": "array", "description": "Flat or nested; left out where binary data follows the JSON."},
    },
}
_NAMED: Final = {
    "type": "object",
    "required": ["name"],
    "properties": {"name": {"type": "string", "enum": ["logits"]}, "parameters": _PARAMETERS},
}
_REQUEST: Final = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "id": {"type": "string"},
        "parameters": {**_PARAMETERS, "description": "deadline_ms, or timeout in microseconds; binary_data_output."},
        "inputs": {"type": "array", "minItems": 1, "maxItems": 1, "items": _TENSOR},
        "outputs": {"type": "array", "maxItems": 1, "items": _NAMED},
    },
}
_RESPONSE: Final = {
    "type": "object",
    "required": ["model_name", "model_version", "outputs"],
    "properties": {
        "model_name": {"type": "string"},
        "model_version": {"type": "string"},
        "id": {"type": "string"},
        "parameters": {
            "type": "object",
            "description": "Of an instance's answer: how many images ran together, and for how long.",
            "properties": {"batch": {"type": "integer"}, "computed_ms": {"type": "number"}},
        },
        "outputs": {"type": "array", "items": _TENSOR},
    },
}
_DESCRIBED: Final = {
    "type": "object",
    "required": ["name", "datatype", "shape"],
    "properties": {
        "name": {"type": "string"},
        "datatype": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer"}},
    },
}
_FLAG: Final = {"type": "boolean"}
_TEXT: Final = {"type": "string"}
_TEXTS: Final = {"type": "array", "items": _TEXT}


def _answers(description: str, schema: dict[str, Any], *statuses: int) -> dict[str, Any]:
    """Return what FastAPI should know of a route: its answer of status 200, and its errors."""
    found: dict[int, dict[str, Any]] = {200: {"description": description, "content": _json(schema)}}
    for status in statuses:
        found[status] = {"description": _WHY[status], "content": _json(_ERROR)}
        if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
            found[status]["headers"] = {
                "Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}
            }
    return {"response_model": None, "responses": found}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": properties}


def _at(names: Sequence[str], route: dict[str, Any], **extra: dict[str, Any]) -> dict[str, Any]:
    """Return a route's documentation with the parameters of its path."""
    parameters = [{"name": name, "in": "path", "required": True, "schema": _TEXT} for name in names]
    return {**route, "openapi_extra": {"parameters": parameters, **extra}}


_READINESS: Final = {503: {"description": "Not ready.", "content": _json({"type": "object"})}}
HEALTH: Final[dict[str, Any]] = _answers("It is.", {"type": "object", "properties": {"live": _FLAG, "ready": _FLAG}})
HEALTH["responses"] |= _READINESS
SERVER: Final = _answers("The server.", _object(name=_TEXT, version=_TEXT, extensions=_TEXTS), 401, 403)
INDEX: Final = _answers(
    "The models.", {"type": "array", "items": _object(name=_TEXT, state=_TEXT)}, 400, 401, 403, 408, 413
)
_METADATA: Final = _answers(
    "The model, with every form of its input.",
    _object(
        name=_TEXT,
        versions=_TEXTS,
        platform=_TEXT,
        inputs={"type": "array", "items": _DESCRIBED},
        outputs={"type": "array", "items": _DESCRIBED},
    ),
    *(401, 403, 404),
)
_READY: Final = _answers("The model is ready.", _object(name=_TEXT, ready=_FLAG), 401, 403, 404)
_READY["responses"] |= _READINESS
_INFER: Final = _answers(
    "The logits, or the highest of them.", _RESPONSE, 400, 401, 403, 404, 408, 413, 415, 429, 503, 504
)
_INFER["responses"][200]["content"][BINARY] = {"schema": {"type": "string", "format": "binary"}}


def metadata(names: Sequence[str]) -> dict[str, Any]:
    """Return the documentation of a model's metadata, at a path with the parameters `names`."""
    return _at(names, _METADATA)


def ready(names: Sequence[str]) -> dict[str, Any]:
    """Return the documentation of a model's readiness."""
    return _at(names, _READY)


def infer(names: Sequence[str]) -> dict[str, Any]:
    """Return the documentation of inference."""
    content = {**_json(_REQUEST), BINARY: {"schema": {"type": "string", "format": "binary"}}}
    return _at(names, _INFER, requestBody={"required": True, "content": content})
