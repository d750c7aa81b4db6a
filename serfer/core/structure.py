"""Frozen dataclasses to plain JSON or TOML values and back, with errors that say where a value is wrong.

A field's metadata may give the key that it has in a file, `field(metadata={"key": "lambda"})`, and its type the bounds
of a number, `Annotated[float, Bounds(0.0, 1e9)]`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from serfer.core.errors import PlanError, SerferError

T = TypeVar("T")
_MAX_INTEGER = 2**63  # whole numbers fit 64 bits: JSON's have thousands of digits, which no float holds
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


@dataclass(frozen=True)
class Bounds:
    """The smallest and the largest value that a number may have; NaN is outside of any bounds."""

    min: float
    max: float


def unstructure(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Turn dataclasses into dicts and tuples into lists, all the way down."""
    if is_dataclass(value) and not isinstance(value, type):
        return {key: unstructure(getattr(value, name)) for key, (name, _) in _fields(type(value)).items()}
    if isinstance(value, tuple | list):
        return [unstructure(item) for item in value]
    return value


def structure(
    kind: type[T],
    value: Any,  # noqa: ANN401 - any JSON value
    where: str,
    *,
    lenient: bool = False,
    error: type[SerferError] = PlanError,
) -> T:
    """Build a `kind` (dataclass, tuple, optional or scalar) from plain JSON or TOML values.

    Raises `error` that names the place, as in `stages[1].tiles[0].input.rows`. Fields that a dataclass does not have
    are refused, or passed over if `lenient`: a newer version may write more.
    """
    built: T = _Builder(error, lenient).build(kind, value, where)
    return built


@dataclass(frozen=True)
class _Builder:
    error: type[SerferError]
    lenient: bool

    def build(self, kind: Any, value: Any, where: str) -> Any:  # noqa: ANN401 - a type form, a JSON value
        origin = get_origin(kind)
        if origin is Annotated:
            return self._bounded(kind, value, where)
        if origin in (Union, UnionType):
            options = [option for option in get_args(kind) if option is not NoneType]
            return None if value is None else self.build(options[0], value, where)
        if origin is tuple:
            return self._tuple(get_args(kind), value, where)
        if isinstance(kind, type) and is_dataclass(kind):
            return self._dataclass(kind, value, where)
        if isinstance(value, int) and not -_MAX_INTEGER <= value < _MAX_INTEGER:
            raise self.error(f"{where} is a number that is too large")
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.error(f"{where} should be {_KINDS[kind]}, not {type(value).__name__}")
        return value

    def _bounded(self, kind: Any, value: Any, where: str) -> Any:  # noqa: ANN401 - a type form, a JSON value
        base, bounds = get_args(kind)
        number = self.build(base, value, where)
        if not bounds.min <= number <= bounds.max:
            raise self.error(f"{where} should be {bounds.min:g} to {bounds.max:g}, not {number:g}")
        return number

    def _tuple(self, items: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:  # noqa: ANN401 - same
        if not isinstance(value, list):
            raise self.error(f"{where} should be a list, not {type(value).__name__}")
        kinds = items[:1] * len(value) if items[-1] is Ellipsis else items
        if len(kinds) != len(value):
            raise self.error(f"{where} should have {len(kinds)} items, not {len(value)}")
        pairs = enumerate(zip(kinds, value, strict=True))
        return tuple(self.build(kind, item, f"{where}[{index}]") for index, (kind, item) in pairs)

    def _dataclass(self, kind: type, value: Any, where: str) -> Any:  # noqa: ANN401 - any JSON value
        if not isinstance(value, dict):
            raise self.error(f"{where} should be an object, not {type(value).__name__}")
        known = _fields(kind)
        if missing := known.keys() - value.keys():
            raise self.error(f"{where} lacks {_listed(missing)}")
        if not self.lenient and (unknown := value.keys() - known.keys()):
            raise self.error(f"{where} has unknown {_listed(unknown)}; known are {', '.join(known)}")
        return kind(**{name: self.build(hint, value[key], f"{where}.{key}") for key, (name, hint) in known.items()})


def _listed(keys: set[str]) -> str:
    return ", ".join(map(repr, sorted(keys)))


@cache
def _fields(kind: type) -> dict[str, tuple[str, Any]]:
    """Return the name and the type of each field, by its key."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.metadata.get("key", field.name): (field.name, hints[field.name]) for field in fields(kind)}
