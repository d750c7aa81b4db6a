"""Options as fields of frozen dataclasses, from which command line, keys, Python API and reference are made.

A command's class names the fields that its line has (`line`). All of them are keys of the command's table in
serfer.toml and variables, SERFER_COMMAND_NAME, and in Python values by name.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from inspect import get_annotations
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints

from serfer.core.errors import UsageError

_METADATA = "option"
_MOST_INTEGER = 2**63 - 1
_ITEMS = {tuple[int, ...]: " of whole numbers"}
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True)
class Option:
    """What a field's value means, and how it is given.

    `flag` is its name on a command's line, by default the field's; `least` and `most` bound a number; `read` makes a
    value of a text; `setting` is the setting that has its value where it is not given, of which `own_default` says that
    the command itself asks the settings; `shown` is the default in words.
    """

    help: str
    flag: str = ""
    is_argument: bool = False
    metavar: str | None = None
    least: float | None = None
    most: float | None = None
    read: Callable[[str], Any] | None = None
    setting: str | None = None
    own_default: bool = False
    shown: str | None = None


def option(default: Any, help: str, flag: str = "", **how: Any) -> Any:  # noqa: A002, ANN401 - a field of any type
    """Return the field of an option; its `flag` is --name-of-the-field unless given."""
    return _field(default, Option(help, flag, **how))


def argument(default: Any, help: str, metavar: str, **how: Any) -> Any:  # noqa: A002, ANN401 - same
    return _field(default, Option(help, metavar=metavar, is_argument=True, **how))


REQUIRED: Any = MISSING
"""The default of an option that has none."""


def _field(default: Any, described: Option) -> Any:  # noqa: ANN401 - same
    metadata = {_METADATA: described}
    return field(metadata=metadata) if default is MISSING else field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The base of a command's options: values are within their bounds, in Python, too."""

    command: ClassVar[str] = ""
    """The words of the command, such as `app register`; its table's name has hyphens between them."""
    line: ClassVar[str] = ""
    """The names of the fields that the command's line has as options."""

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for item, described in options_of(type(self)):
            name, value, hint = _name_of(type(self), item, described), getattr(self, item.name), hints[item.name]
            if described.read and isinstance(value, str):
                object.__setattr__(self, item.name, _read(described.read, value, name))
            elif not (described.read or value is None or any(_is_of(choice, value) for choice in _choices(hint))):
                raise UsageError(f"{name} is {in_words(hint)}{_ITEMS.get(hint, '')}, not {_shown(value)}")
            check_bounds(name, described, value)


def options_of(kind: type) -> Iterator[tuple[Field[Any], Option]]:
    order = {name: (number, index) for number, name, index in _declared(kind)}
    described = [item for item in fields(kind) if _METADATA in item.metadata]
    for item in sorted(described, key=lambda item: order[item.name]):
        yield item, item.metadata[_METADATA]


def _declared(kind: type) -> Iterator[tuple[int, str, int]]:
    for number, base in reversed([*enumerate(kind.__mro__)]):
        for index, name in enumerate(get_annotations(base)):
            yield number, name, index


_Some = TypeVar("_Some", bound=Options)


def with_values(kind: type[_Some], options: _Some | None, values: Mapping[str, Any]) -> _Some:
    """Return options of a class, by default its own, with other values of some fields; raises UsageError."""
    options = kind() if options is None else options
    if not isinstance(options, kind):
        raise UsageError(f"options are a {kind.__name__}, not a {type(options).__name__}")
    known: dict[str, Option | None] = {item.name: item.metadata.get(_METADATA) for item in fields(options)}
    if unknown := sorted(values.keys() - known):
        raise UsageError(f"{type(options).__name__} has no {', '.join(unknown)}: it has {', '.join(sorted(known))}")
    changed = {
        name: tuple(value) if isinstance(value, list) and not getattr(known[name], "read", None) else value
        for name, value in values.items()
    }
    return replace(options, **changed)


def changed(options: Options, unsaid: Options) -> list[str]:
    """Return the flags and keys of options with other values than `unsaid`, which is of a base of their class."""
    return [
        _name_of(type(options), item, described)
        for item, described in options_of(type(unsaid))
        if getattr(options, item.name) != getattr(unsaid, item.name)
    ]


def flag_of(item: Field[Any], described: Option) -> str:
    if described.is_argument:
        return item.name
    return described.flag or f"--{item.name.replace('_', '-')}"


def _name_of(kind: type[Options], item: Field[Any], described: Option) -> str:
    return flag_of(item, described) if is_on_line(kind, item) else item.name


def is_on_line(kind: type[Options], item: Field[Any]) -> bool:
    return item.metadata[_METADATA].is_argument or item.name in kind.line.split()


def check_bounds(name: str, described: Option, value: object) -> None:
    """Refuse a number, or one of a list, beyond an option's bounds; raises UsageError with its `name`."""
    if isinstance(value, tuple):
        for item in value:
            check_bounds(name, described, item)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    least, most = described.least, described.most
    if (least is None or value >= least) and (most is None or value <= most):
        return
    if most is None:
        raise UsageError(f"{name} is at least {_shown(least)}, not {_shown(value)}")
    raise UsageError(f"{name} is from {_shown(least or 0)} to {_shown(most)}, not {_shown(value)}")


def value_of(kind: type, item: Field[Any], raw: object, name: str) -> Any:  # noqa: ANN401 - of the field's type
    """Return a field's value from a text, or from what TOML has; raises UsageError with its `name`."""
    described: Option = item.metadata[_METADATA]
    hint = get_type_hints(kind)[item.name]
    if isinstance(raw, str) and described.read:
        return _read(described.read, raw, name)
    for choice in _choices(hint):
        try:
            value = _converted(choice, raw)
        except (ValueError, TypeError, OverflowError):
            continue
        check_bounds(name, described, value)
        return value
    if described.read and (text := _as_text(raw)):  # the numbers and lists of TOML
        return _read(described.read, text, name)
    raise UsageError(f"{name} is {in_words(hint)}{_ITEMS.get(hint, '')}, not {_shown(raw)}")


def _read(read: Callable[[str], Any], text: str, name: str) -> Any:  # noqa: ANN401 - of a field's type
    try:
        return read(text)
    except UsageError as error:
        raise UsageError(str(error) if name in str(error) else f"{name}: {error}") from error


def _as_text(raw: object) -> str:
    items = raw if isinstance(raw, list) else [raw]
    can = all(isinstance(item, str | int | float) and not isinstance(item, bool) for item in items)
    return ",".join(item if isinstance(item, str) else _shown(item) for item in items) if can else ""


def _shown(value: object) -> str:
    if isinstance(value, int) and abs(value) > _MOST_INTEGER:
        return "one of so many digits"
    if isinstance(value, float) and abs(value) <= _MOST_INTEGER and value.is_integer():
        return str(int(value))
    if isinstance(value, list | tuple):
        value = ",".join(item if isinstance(item, str) else _shown(item) for item in value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_number else f"{str(value)!r:.80}"


def is_list(hint: Any) -> bool:  # noqa: ANN401 - a type
    return any(get_origin(choice) in (tuple, Sequence) for choice in _choices(hint))


def in_words(hint: Any) -> str:  # noqa: ANN401 - a type
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", Path: "a path"}
    parts = []
    for choice in _choices(hint):
        if get_origin(choice) is Literal:
            parts += [str(value) for value in get_args(choice)]
        elif get_origin(choice) in (tuple, Sequence):
            parts.append("a list")
        elif choice in names:
            parts.append(names[choice])
    *others, last = parts or ["a text"]
    return f"{', '.join(others)} or {last}" if others else last


def _choices(hint: Any) -> list[Any]:  # noqa: ANN401 - a type
    if get_origin(hint) is types.UnionType or str(get_origin(hint)) == "typing.Union":
        return [choice for part in get_args(hint) if part is not types.NoneType for choice in _choices(part)]
    return [hint]


def _is_of(kind: Any, value: object) -> bool:  # noqa: ANN401 - same
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) in (tuple, Sequence):
        return isinstance(value, Sequence) and not isinstance(value, str)
    wanted = {int: Integral, float: Real, Path: str | PathLike}.get(kind, kind)
    return isinstance(value, wanted) and (kind is bool or not isinstance(value, bool))


def _converted(kind: Any, raw: Any) -> Any:  # noqa: ANN401 - same; raises ValueError or TypeError
    if get_origin(kind) is Literal:
        if raw not in get_args(kind):
            raise ValueError
        return raw
    if get_origin(kind) in (tuple, Sequence):
        items = [item.strip() for item in raw.split(",")] if isinstance(raw, str) else raw
        if not isinstance(items, list | tuple):
            raise TypeError
        return tuple(_converted(get_args(kind)[0], item) for item in items)
    if kind is bool:
        text = str(raw).lower()
        if text not in (*_TRUE, *_FALSE):
            raise ValueError
        return text in _TRUE
    if kind in (int, float) and (isinstance(raw, bool) or (kind is int and isinstance(raw, float))):
        raise TypeError
    if kind not in (int, float, str, Path) or (kind in (str, Path) and not isinstance(raw, str | Path)):
        raise TypeError
    value = kind(raw)
    if kind is int and abs(value) > _MOST_INTEGER:
        raise ValueError
    return value
