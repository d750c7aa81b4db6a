"""JSON of files that hold what policies learnt and saw: bounded, and without numbers that are none."""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn

from serfer.control.saved.fields import Snapshot
from serfer.core.errors import InputError

MAX_SNAPSHOT_BYTES: Final = 64 * 1024 * 1024


def read_json(data: bytes, where: str) -> Any:  # noqa: ANN401 - any JSON value
    """Return the value; raises InputError that says where it is none."""
    try:
        return json.loads(data, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not JSON: {error}") from error


def write_json(fields: Snapshot) -> bytes:
    """Return an object in one line; raises ValueError for numbers that are not finite.

    Piece by piece: json's own encoder would hold the interpreter for as long as a large snapshot takes.
    """
    return "".join(json.JSONEncoder(allow_nan=False, separators=(",", ":")).iterencode(fields)).encode()


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")
