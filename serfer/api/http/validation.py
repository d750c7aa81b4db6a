"""Bodies and query strings of requests as pydantic models, and what is wrong with one as a line for its client.

A request may hold millions of values, and pydantic reports every one that is wrong, so models here stop at the first
unknown member, and lists at their first wrong item (`fail_fast`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError
from starlette.datastructures import QueryParams

from serfer.api.http.problems import Problem
from serfer.pipeline.pipeline import MAX_DEADLINE_S

MAX_DEADLINE_MS = int(MAX_DEADLINE_S * 1000)
_MAX_SHOWN = 40  # characters of what a client sent


class Body(BaseModel):
    """An object in JSON with no other members than its fields."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, value: object) -> object:
        if not isinstance(value, dict):
            raise PydanticCustomError("object", "Input should be an object")
        for name in value:
            if name not in cls.model_fields:
                known = {"name": shown(name), "known": ", ".join(cls.model_fields)}
                if name == "url":
                    raise PydanticCustomError("url", "unknown member 'url': nothing is fetched, send the data itself")
                raise PydanticCustomError("unknown", "unknown member {name}: there is {known}", known)
        return value


def fault(location: Sequence[int | str], message: str) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return f"{path.removeprefix('.') or 'the body'}: {message}"


def first_fault(error: ValidationError) -> str:
    """Return the line of the first of a body's errors; no input of the client's is in it, but for unknown names."""
    first: dict[str, Any] = {**error.errors(include_url=False, include_context=False, include_input=False)[0]}
    return fault(first["loc"], first["msg"])


def shown(text: str) -> str:
    """Return what a client sent, short, quoted and in one line."""
    return repr("".join(filter(str.isprintable, text[:_MAX_SHOWN])))


_KEPT = 64  # query strings, of as many bytes as a request's head may have


class QueryParameters(BaseModel):
    """The parameters of a route's query string: its fields, each once, and no others."""

    model_config = ConfigDict(frozen=True)

    @classmethod
    @lru_cache(_KEPT)
    def of(cls, query: bytes) -> Self:
        """Return those of a query string; raises Problem 422 that names the first wrong one."""
        given = QueryParams(query)
        check_names(given, [field.alias or name for name, field in cls.model_fields.items()])
        try:
            return cls.model_validate({**given})
        except ValidationError as error:
            raise Problem(422, first_fault(error)) from None

    @classmethod
    def described(cls) -> list[dict[str, Any]]:
        properties: dict[str, dict[str, Any]] = cls.model_json_schema()["properties"]
        return [
            {
                "name": name,
                "in": "query",
                "required": False,
                "schema": schema,
                **({"description": schema["description"]} if "description" in schema else {}),
            }
            for name, schema in properties.items()
        ]


def check_names(given: QueryParams, known: Sequence[str]) -> None:
    """Refuse parameters that are unknown or given twice, by name; raises Problem 422."""
    names = [name for name, _ in given.multi_items()]
    for name in names:
        if name not in known:
            shown = name[:40] if name.isprintable() else "a parameter"
            raise Problem(422, f"{shown!r} is not a parameter here: there is {', '.join(known) or 'none'}")
        if names.count(name) > 1:
            raise Problem(422, f"{name} is given more than once")
