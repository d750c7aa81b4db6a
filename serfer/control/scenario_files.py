"""Files that describe a scenario; those of examples/ are known by name."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from serfer.control.scenario import Scenario, parse_scenario
from serfer.core.errors import InputError
from serfer.files import read_text

_MAX_SCENARIO_BYTES = 64 * 1024
_HERE: Final = Path(__file__).parent
_FILES: Final = ("prices/*.toml", "scenarios/*.toml", "cluster.toml")  # links into examples/
SHIPPED: Final = {path.stem: path for files in _FILES for path in sorted(_HERE.glob(files))}
"""The scenarios that come with SerFer, by name."""
CLUSTER: Final = "servers"
"""The table that a cluster's scenario has, and no other."""
DEFAULT_SCENARIO: Final = Path("aws")
T = TypeVar("T")


def scenario_file(path: Path) -> Path:
    """Return a scenario's file: the path, or what comes with SerFer where that is a name and no file.

    A folder of that name does not stand in its way. Raises InputError for another word.
    """
    if path.suffix or len(path.parts) != 1 or path.is_file():
        return path
    if path.name not in SHIPPED:
        raise InputError(f"{path.name[:80]!r} is neither a file nor a scenario by name: those are {', '.join(SHIPPED)}")
    return SHIPPED[path.name]


def read_scenario(path: Path) -> Scenario:
    """Read a scenario's TOML file, or one of SHIPPED by name; raises InputError that names the file and the key."""
    tables = read_tables(path, _MAX_SCENARIO_BYTES)
    if CLUSTER in tables:
        raise InputError(f"{path} describes a cluster ([[{CLUSTER}]]): serfer study simulate alone has policies for it")
    return parse_file(path, parse_scenario, tables)


def read_tables(path: Path, most_bytes: int) -> dict[str, Any]:
    """Return a TOML file's tables; raises InputError where it is not TOML."""
    text = read_text(scenario_file(path), most_bytes)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also raised for numbers of thousands of digits, and deep nesting
        raise InputError(f"{path} is not TOML: {error}") from error


def parse_file(path: Path, parse: Callable[[Mapping[str, Any]], T], tables: Mapping[str, Any]) -> T:
    """Parse a file's tables; raises InputError that names the file and the key."""
    try:
        return parse(tables)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
