"""Code that users name: a Python file, and what installed distributions plug in by entry points."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from serfer.core.errors import UsageError


@contextmanager
def file_module(path: Path, name: str) -> Iterator[ModuleType]:
    """Import a Python file as the module `name`; its neighbours can be imported meanwhile, as a script's can.

    Raises ImportError for what is not a Python file, and whatever the file's own code raises.
    """
    spec = importlib.util.spec_from_file_location(name, path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    code = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    sys.modules[spec.name] = code
    try:
        spec.loader.exec_module(code)
        yield code
    finally:
        sys.path.remove(folder)


def defined(code: ModuleType, place: str, name: str) -> Any:  # noqa: ANN401 - checked by the caller
    """Return what a module defines by a name; raises AttributeError that has the `place` the user named."""
    if not hasattr(code, name):  # Python's own error has the name that the module was given here
        raise AttributeError(f"{place} defines no {name!r}")
    return getattr(code, name)


def plugged_in(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name; of two with one name the first that is found."""
    entries = entry_points(group=group)
    return {name: entries[name] for name in sorted(entries.names)}


def load_entry(entry: EntryPoint) -> Any:  # noqa: ANN401 - checked by the caller
    try:
        return entry.load()
    except (Exception, SystemExit) as error:  # the code of a plug-in may raise anything
        text = f"{entry.name} ({entry.group}) cannot be loaded from {entry.value!r}"
        raise UsageError(f"{text}: {in_one_line(error)}") from error


def in_one_line(error: BaseException) -> str:
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
    return f"{type(error).__name__}: {text.partition(chr(10))[0]}"
