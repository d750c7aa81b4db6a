"""Text files that describe a load or a scenario, bounded before they are decoded."""

from __future__ import annotations

import tomllib
from pathlib import Path

from serfer.control.scenario import Scenario, parse_scenario
from serfer.core.errors import InputError

_MOST_SCENARIO_BYTES = 64 * 1024


def read_text(path: Path, most_bytes: int) -> str:
    """Return a file's text; raises InputError that names it and says what is wrong: too large, no text, not there."""
    try:
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)
        if len(data) > most_bytes:
            raise InputError(f"{path} has more than {most_bytes:,} bytes")
        return data.decode("utf-8-sig")
    except (OSError, ValueError) as error:  # ValueError: no text, or a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise InputError(f"{str(path)!r} cannot be read: {reason}") from error


def read_scenario(path: Path) -> Scenario:
    """Read a scenario's TOML file; raises InputError that names the file and the key."""
    text = read_text(path, _MOST_SCENARIO_BYTES)
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also raised for numbers of thousands of digits, and deep nesting
        raise InputError(f"{path} is not TOML: {error}") from error
    try:
        return parse_scenario(tables)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
