"""Frozen dataclasses to plain JSON values and back, with errors that say where a value is wrong."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from serfer.core.errors import PlanError

T = TypeVar("T")
_MOST = 2**63  # whole numbers fit 64 bits: JSON's have thousands of digits, which no float holds


def unstructure(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Turn dataclasses into dicts and tuples into lists, all the way down."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: unstructure(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple | list):
        return [unstructure(item) for item in value]
    return value


def structure(kind: type[T], value: Any, where: str, *, lenient: bool = False) -> T:  # noqa: ANN401 - any JSON value
    """Build a `kind` (dataclass, tuple, optional or scalar) from plain JSON values.

    Raises PlanError that names the place, as in `stages[1].tiles[0].input.rows`. Fields that a dataclass does not have
    are refused, or passed over if `lenient`: what is newer than we are may say more.
    """
    built: T = _structure(kind, value, where, lenient=lenient)
    return built


def _structure(kind: Any, value: Any, where: str, *, lenient: bool) -> Any:  # noqa: ANN401 - a type form, a JSON value
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        options = [option for option in get_args(kind) if option is not NoneType]
        return None if value is None else _structure(options[0], value, where, lenient=lenient)
    if origin is tuple:
        return _structure_tuple(get_args(kind), value, where, lenient=lenient)
    if isinstance(kind, type) and is_dataclass(kind):
        return _structure_dataclass(kind, value, where, lenient=lenient)
    if isinstance(value, int) and not -_MOST <= value < _MOST:
        raise PlanError(f"{where} is a number that is too large")
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise PlanError(f"{where} should be {kind.__name__}, not {type(value).__name__}")
    return value


def _structure_tuple(
    items: tuple[Any, ...],
    value: Any,  # noqa: ANN401 - any JSON value
    where: str,
    *,
    lenient: bool,
) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise PlanError(f"{where} should be a list, not {type(value).__name__}")
    kinds = items[:1] * len(value) if items[-1] is Ellipsis else items
    if len(kinds) != len(value):
        raise PlanError(f"{where} should have {len(kinds)} items, not {len(value)}")
    return tuple(
        _structure(kind, item, f"{where}[{index}]", lenient=lenient)
        for index, (kind, item) in enumerate(zip(kinds, value, strict=True))
    )


def _structure_dataclass(kind: type, value: Any, where: str, *, lenient: bool) -> Any:  # noqa: ANN401 - any JSON value
    if not isinstance(value, dict):
        raise PlanError(f"{where} should be an object, not {type(value).__name__}")
    hints = _hints(kind)
    unknown = set() if lenient else value.keys() - hints.keys()
    for fault, names in (("lacks", hints.keys() - value.keys()), ("has unknown", unknown)):
        if names:
            raise PlanError(f"{where} {fault} {', '.join(map(repr, sorted(names)))}")
    return kind(
        **{name: _structure(hint, value[name], f"{where}.{name}", lenient=lenient) for name, hint in hints.items()}
    )


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
