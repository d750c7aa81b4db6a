"""Classes that users name or plug in, `MODULE:Class` or by entry points: policies, windows, selectors.

text ──load──> a class, our own or plugged in ──make──> an object with the settings of the text, in a Guard
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from serfer.core.dataclass_codec import structure
from serfer.core.errors import InputError, SerferError, UsageError
from serfer.plug_ins import defined, file_module, in_one_line, load_entry, plugged_in

Check = Callable[..., str | None]
"""Returns what is wrong with a method's answer, in words; it is called with the answer and the method's arguments."""
_HOW_TO: Final = "(docs/how-to/add-a-policy.md)"


def load_object(text: str) -> Any:  # noqa: ANN401 - checked by the caller
    """Return what `MODULE:NAME` names; MODULE is importable, or the path of a file that ends in .py.

    Raises UsageError in one line: it cannot be imported, fails while it is, or defines no such name.
    """
    module, _, name = text.rpartition(":")
    try:
        if not module.endswith(".py"):
            return defined(importlib.import_module(module), module, name)
        path = Path(module)
        with file_module(path, f"serfer_user_{path.stem}") as code:
            return defined(code, path.name, name)
    except (Exception, SystemExit) as error:  # the user's own code may raise anything
        raise UsageError(f"{text!r:.200} cannot be loaded: {in_one_line(error)}{_hint(module, error)}") from error


def _hint(module: str, error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name and module.startswith(error.name):
        return f": install it, or name its file, {module.replace('.', '/')}.py:NAME"
    return ""


@dataclass(frozen=True)
class PlugIn:
    """A class that a user's text names, `ours` or plugged in, and the settings behind the name, `KEY=VALUE,...`."""

    what: str
    name: str
    kind: type[Any]
    settings: str
    ours: bool

    def make(self, *arguments: object, checks: Mapping[str, Check]) -> Any:  # noqa: ANN401 - of the class that is named
        """Return an object of the class, in a Guard unless it is ours.

        A class with an attribute `options`, a frozen dataclass of its default settings, is made with the chosen ones
        last. Raises UsageError for a setting that is unknown or out of bounds, and where the constructor fails.
        """
        defaults = getattr(self.kind, "options", None)
        if defaults is not None:
            arguments = (*arguments, read_settings(self.name.partition(":")[0], self.settings, defaults))
        elif self.settings:
            raise UsageError(f"{self.what} {self.name:.80} has no settings")
        if self.ours:
            return self.kind(*arguments)
        try:
            made = self.kind(*arguments)
        except SerferError:  # has words for a user
            raise
        except (Exception, SystemExit) as error:  # the user's own code may raise anything
            raise UsageError(f"{self.what} {self.name} could not be made: {in_one_line(error)}") from error
        return Guard(f"{self.what} {self.name}", made, checks)


def load(
    what: str, group: str, name: str, methods: Sequence[str], own: Mapping[str, type[Any]], others: str = ""
) -> PlugIn:
    """Return the class that `NAME` or `NAME:KEY=VALUE,...` names: our own, or an entry point's of the group.

    Also `MODULE:Class`, and `MODULE:Class:KEY=VALUE,...`. Raises UsageError for an unknown name, what cannot be loaded,
    and what is not a class with these methods; `others` are words for what else may be named.
    """
    head, _, settings = name.partition(":")
    if (kind := own.get(head)) is not None:
        return PlugIn(what, name, kind, settings, ours=True)
    entries = plugged_in(group)
    if head in entries:
        kind = load_entry(entries[head])
    elif ":" in name:
        place, _, settings = name.partition(":")[2].partition(":")
        settings = settings if "=" in settings else ""
        kind = load_object(f"{head}:{place}" if settings else name)
    else:
        known = ", ".join(dict.fromkeys([*own, *entries]))
        verb = "are" if what.endswith("s") else "is"
        raise UsageError(f"there {verb} no {what} {name!r:.80}: there are {known}, {others}and MODULE:Class")
    if not isinstance(kind, type):
        raise UsageError(f"{what} {name}: {type(kind).__name__} is not a class {_HOW_TO}")
    if missing := [method for method in methods if not callable(getattr(kind, method, None))]:
        raise UsageError(f"{what} {name}: the class has no {' and no '.join(missing)} {_HOW_TO}")
    return PlugIn(what, name, kind, settings, ours=False)


class Guard:
    """An object of a user's class: errors of its methods name it, and what they return is checked."""

    def __init__(self, title: str, made: object, checks: Mapping[str, Check]) -> None:
        """Take over the methods that the class has of those in `checks`, which return what is wrong with an answer."""
        self.name = title.partition(" ")[2]
        self.guarded = made
        self._title = title
        for method, check in checks.items():
            if callable(getattr(made, method, None)):
                setattr(self, method, partial(self._call, method, check))

    def _call(self, method: str, check: Check, *given: object) -> Any:  # noqa: ANN401 - checked
        try:
            answer = getattr(self.guarded, method)(*given)
        except UsageError:  # of the query: an unknown variant or network
            raise
        except Exception as error:  # the user's own code may raise anything
            raise InputError(f"{self._title}: {method} failed: {in_one_line(error)}") from error
        if (wrong := check(answer, *given)) is not None:
            raise InputError(f"{self._title}: {method} returned {wrong} {_HOW_TO}")
        return answer


def unchecked(*_: object) -> None:
    """Find nothing wrong."""


def read_settings(name: str, text: str, defaults: Any) -> Any:  # noqa: ANN401 - a frozen dataclass
    """Return settings with what `KEY=VALUE,...` changes of their defaults; raises UsageError that names the key.

    The keys are the fields' names, or what their metadata have as "key"; those with "written" False cannot be given.
    """
    written = [field for field in fields(defaults) if field.metadata.get("written", True)]
    keys = {field.metadata.get("key", field.name): field.name for field in written}
    texts = {key for key in keys if isinstance(getattr(defaults, keys[key]), str)}
    given: dict[str, Any] = {}
    for part in text.split(",") if text else ():
        key, equals, value = part.partition("=")
        if key not in keys or not equals:
            raise UsageError(f"{name} has no parameter {key[:40]!r}: it has {', '.join(keys)}, each as KEY=VALUE")
        if key in given:
            raise UsageError(f"{name}: {key} is given twice")
        given[key] = value if key in texts else _value(value)
    known = structure(type(defaults), given, name, error=UsageError)
    return replace(defaults, **{keys[key]: getattr(known, keys[key]) for key in given})


def _value(text: str) -> Any:  # noqa: ANN401 - what is no number stays a text, which `structure` refuses
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
