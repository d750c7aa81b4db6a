"""Files that describe a scenario."""

from __future__ import annotations

import tomllib
from pathlib import Path

from serfer.control.scenario import Scenario, parse_scenario
from serfer.core.errors import InputError
from serfer.files import read_text

_MAX_SCENARIO_BYTES = 64 * 1024


def read_scenario(path: Path) -> Scenario:
    """Read a scenario's TOML file; raises InputError that names the file and the key."""
    text = read_text(path, _MAX_SCENARIO_BYTES)
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also raised for numbers of thousands of digits, and deep nesting
        raise InputError(f"{path} is not TOML: {error}") from error
    try:
        return parse_scenario(tables)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
