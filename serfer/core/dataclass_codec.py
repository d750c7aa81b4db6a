"""Frozen dataclasses to plain JSON or TOML values and back, with errors that say where a value is wrong.

A field's metadata may give the key that it has in a file, `field(metadata={"key": "lambda"})`, and its type the bounds
of a number, `Annotated[float, Bounds(0.0, 1e9)]`. A field of `field(default=..., metadata=LATER)` is left out where it
has its default, so that what was written before there was such a field reads and writes as ever.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from serfer.core.errors import PlanError, SerferError

T = TypeVar("T")
LATER = {"later": True}
_MOST_NAMED = 40
_MAX_INTEGER = 2**63  # whole numbers fit 64 bits: JSON's have thousands of digits, which no float holds
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


@dataclass(frozen=True)
class Bounds:
    """The smallest and the largest value that a number may have, the smallest itself not if `above`.

    NaN is outside of any bounds, and so are infinities.
    """

    min: float
    max: float = sys.float_info.max
    above: bool = False

    def __contains__(self, number: float) -> bool:
        return self.min <= number <= self.max and not (self.above and number == self.min)

    def __str__(self) -> str:
        if self.max == sys.float_info.max:
            return f"finite and above {self.min:g}" if self.above else f"finite and {self.min:g} or more"
        if self.above:
            return f"above {self.min:g} and at most {self.max:g}"
        return f"{self.min:g} to {self.max:g}"


def unstructure(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Turn dataclasses into dicts and tuples into lists, within lists and dicts too."""
    if type(value) in _KINDS:  # most values by far
        return value
    if is_dataclass(value) and not isinstance(value, type):
        items = [(key, name, getattr(value, name)) for key, (name, _) in _fields(type(value)).items()]
        later = _later(type(value))
        return {key: unstructure(item) for key, name, item in items if name not in later or item != later[name]}
    if isinstance(value, tuple | list):
        return [unstructure(item) for item in value]
    if isinstance(value, dict):
        return {key: unstructure(item) for key, item in value.items()}
    return value.value if isinstance(value, StrEnum) else value


def structure(
    kind: type[T],
    value: Any,  # noqa: ANN401 - any JSON value
    where: str,
    *,
    lenient: bool = False,
    error: type[SerferError] = PlanError,
) -> T:
    """Build a `kind` from plain JSON or TOML.

    It is a dataclass, a tuple, a mapping from strings, optional, a StrEnum, a literal's texts, or a scalar.

    Raises `error` that names the place, as in `stages[1].tiles[0].input.rows`. Fields that a dataclass does not have
    are refused, or passed over if `lenient`: a newer version may write more. Fields that have a default may be absent.
    """
    form: Any = kind
    try:
        built: T = _builder(form, lenient)(value)
    except _MismatchError as mismatch:
        raise error(f"{where}{mismatch.path} {mismatch.fault}") from None
    return built


class _MismatchError(Exception):
    """A value that is not of its kind; the path is put together on the way out, so that good values pay for none."""

    def __init__(self, fault: str) -> None:
        super().__init__(fault)
        self.fault, self.path = fault, ""


_Builder = Callable[[Any], Any]


@cache
def _builder(kind: Any, lenient: bool) -> _Builder:  # noqa: ANN401, FBT001 - a type form; a key of the cache
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _bounded(_builder(arguments[0], lenient), arguments[1])
    if origin in (Union, UnionType):
        (inner,) = (_builder(option, lenient) for option in arguments if option is not NoneType)
        return lambda value: None if value is None else inner(value)
    if origin is tuple and arguments[-1] is Ellipsis:
        item = _builder(arguments[0], lenient)
        return lambda value: tuple(
            [_at(index, item, entry) for index, entry in enumerate(_expect(value, list, "a list"))]
        )
    if origin is tuple:
        return _fixed_tuple([_builder(argument, lenient) for argument in arguments])
    if origin in (Mapping, dict):
        item = _builder(arguments[1], lenient)
        return lambda value: {name: _at(name, item, entry) for name, entry in _expect(value, dict, "an object").items()}
    return _dataclass(kind, lenient=lenient) if is_dataclass(kind) else _single(kind)


def _at(key: str | int, builder: _Builder, value: Any) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return builder(value)
    except _MismatchError as mismatch:
        mismatch.path = (f"[{key}]" if isinstance(key, int) else f".{key:.40}") + mismatch.path
        raise


def _expect(value: Any, kind: type[T], words: str) -> T:  # noqa: ANN401 - any JSON value
    if not isinstance(value, kind):
        raise _MismatchError(f"should be {words}, not {type(value).__name__}")
    return value


def _one_of(texts: tuple[str, ...]) -> _Builder:
    def build(value: Any) -> str:  # noqa: ANN401 - any JSON value
        if value not in texts:
            raise _MismatchError(f"should be {', '.join(texts)}, not {value!r:.40}")
        return texts[texts.index(value)]

    return build


def _single(kind: Any) -> _Builder:  # noqa: ANN401 - a type form
    if get_origin(kind) is Literal:
        return _one_of(get_args(kind))
    return _one_of(tuple(kind)) if issubclass(kind, StrEnum) else _scalar(kind)


def _scalar(kind: type) -> _Builder:
    def build(value: Any) -> Any:  # noqa: ANN401 - any JSON value
        if isinstance(value, int) and not -_MAX_INTEGER <= value < _MAX_INTEGER:
            raise _MismatchError("is a number that is too large")
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise _MismatchError(f"should be {_KINDS[kind]}, not {type(value).__name__}")
        return value

    return build


def _bounded(base: _Builder, bounds: Bounds) -> _Builder:
    def build(value: Any) -> Any:  # noqa: ANN401 - any JSON value
        number = base(value)
        if number not in bounds:
            raise _MismatchError(f"should be {bounds}, not {number:g}")
        return number

    return build


def _fixed_tuple(items: list[_Builder]) -> _Builder:
    def build(value: Any) -> tuple[Any, ...]:  # noqa: ANN401 - any JSON value
        if len(_expect(value, list, "a list")) != len(items):
            raise _MismatchError(f"should have {len(items)} items, not {len(value)}")
        return tuple([_at(index, item, entry) for index, (item, entry) in enumerate(zip(items, value, strict=True))])

    return build


def _dataclass(kind: Any, *, lenient: bool) -> _Builder:  # noqa: ANN401 - a dataclass
    known = _fields(kind)
    builders = [(key, name, _builder(hint, lenient)) for key, (name, hint) in known.items()]
    optional = {field.name for field in fields(kind) if (field.default, field.default_factory) != (MISSING, MISSING)}
    required = {key for key, name, _ in builders if name not in optional}

    def build(value: Any) -> Any:  # noqa: ANN401 - any JSON value
        given = _expect(value, dict, "an object").keys()
        if missing := required - given:
            raise _MismatchError(f"lacks {_join_keys(missing)}")
        if not lenient and (unknown := given - known.keys()):
            raise _MismatchError(f"has unknown {_join_keys(unknown)}; known are {', '.join(known)}")
        return kind(**{name: _at(key, builder, value[key]) for key, name, builder in builders if key in given})

    return build


def _join_keys(keys: set[str]) -> str:
    return ", ".join(f"{key!r:.40}" for key in sorted(keys)[:_MOST_NAMED])


@cache
def _fields(kind: type) -> dict[str, tuple[str, Any]]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.metadata.get("key", field.name): (field.name, hints[field.name]) for field in fields(kind)}


@cache
def _later(kind: type) -> dict[str, Any]:
    return {field.name: field.default for field in fields(kind) if field.metadata.get("later")}
