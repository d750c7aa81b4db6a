"""Snapshots of what policies have learnt: plain JSON, whose fields are checked for type, shape and bounds when read."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import InputError

Snapshot = dict[str, Any]
"""What a policy has learnt, as plain JSON values."""
MAX_SNAPSHOT_BYTES: Final = 64 * 1024 * 1024
MOST_COUNTED: Final = 2**53
"""The most that a snapshot counts of anything: whole numbers up to it are floats, too."""
MOST_QPS: Final = 1e12
"""The highest rate in a snapshot, in queries/s."""
_MAX_FLOAT: Final = sys.float_info.max


@dataclass(frozen=True)
class SavedFields:
    """The fields of a snapshot, or of a part of it, which `where` names; every method raises InputError."""

    values: Mapping[str, Any]
    where: str

    @classmethod
    def of(cls, value: Any, where: str) -> SavedFields:  # noqa: ANN401 - any JSON value
        """Return the fields of what should be an object."""
        if not isinstance(value, dict):
            raise InputError(f"{where} should be an object, not {type(value).__name__}")
        return cls(value, where)

    def check_version(self, known: int) -> None:
        """Refuse a snapshot of another layout than `known`."""
        found = self.whole("version", 0, 2**31)
        if found != known:
            age = "a newer" if found > known else "an older"
            raise InputError(f"{self.where} has {age} layout, {found}: this version of SerFer reads {known}")

    def flag(self, key: str) -> bool:
        """Return true or false."""
        value = self._get(key)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def whole(self, key: str, least: int, most: int) -> int:
        """Return a whole number within bounds."""
        value = self._get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self._wrong(key, f"a whole number from {least} to {most}")
        return value

    def number(self, key: str, least: float = -_MAX_FLOAT, most: float = _MAX_FLOAT) -> float:
        """Return a finite number within bounds."""
        return float(self.numbers(key, (), least, most))

    def numbers(
        self, key: str, shape: tuple[int, ...], least: float = -_MAX_FLOAT, most: float = _MAX_FLOAT
    ) -> NDArray[np.float64]:
        """Return an array of finite numbers within bounds, of a shape."""
        found = self._array(key, shape, "iuf", "numbers")
        if not bool(np.all((found >= least) & (found <= most))):
            raise self._wrong(key, f"finite numbers from {least:g} to {most:g}")
        return found.astype(np.float64)

    def wholes(self, key: str, count: int, least: int, most: int) -> NDArray[np.int64]:
        """Return so many whole numbers within bounds."""
        found = self._array(key, (count,), "iu", "whole numbers")
        if not bool(np.all((found >= least) & (found <= most))):
            raise self._wrong(key, f"whole numbers from {least} to {most}")
        return found.astype(np.int64)

    def flags(self, key: str, shape: tuple[int, ...]) -> NDArray[np.bool_]:
        """Return an array of true and false, of a shape."""
        return self._array(key, shape, "b", "true and false").astype(np.bool_)

    def bits(self, key: str, shape: tuple[int, ...]) -> NDArray[np.bool_]:
        """Return an array of true and false that was packed by `packed`, of a shape."""
        value, count = self._get(key), int(np.prod(shape))
        try:
            data = bytes.fromhex(value)
        except (TypeError, ValueError):
            raise self._wrong(key, "hexadecimal digits") from None
        if len(data) != -(-count // 8):
            raise self._wrong(key, f"{count} bits")
        return np.unpackbits(np.frombuffer(data, np.uint8), count=count).astype(np.bool_).reshape(shape)

    def choice(self, key: str, choices: Collection[str]) -> str:
        """Return one of some texts."""
        value = self._get(key)
        if not isinstance(value, str) or value not in choices:
            raise self._wrong(key, f"one of {', '.join(sorted(choices))}")
        return value

    def part(self, key: str) -> SavedFields:
        """Return the fields of a part."""
        return SavedFields.of(self._get(key), f"{self.where}.{key}")

    def optional_part(self, key: str) -> SavedFields | None:
        """Return the fields of a part that may be null."""
        return None if self._get(key) is None else self.part(key)

    def parts(self, key: str, count: int) -> list[SavedFields]:
        """Return the fields of each of so many parts."""
        value = self._get(key)
        if not isinstance(value, list) or len(value) != count:
            raise self._wrong(key, f"a list of {count} objects")
        return [SavedFields.of(one, f"{self.where}.{key}[{at}]") for at, one in enumerate(value)]

    def length(self, key: str, most: int) -> int:
        """Return how many items a list has, `most` at most."""
        value = self._get(key)
        if not isinstance(value, list) or len(value) > most:
            raise self._wrong(key, f"a list of at most {most} items")
        return len(value)

    def _array(self, key: str, shape: tuple[int, ...], kinds: str, what: str) -> NDArray[Any]:
        try:
            found = np.array(self._get(key))
        except (ValueError, OverflowError):  # lists of unequal lengths
            raise self._wrong(key, f"{what} of shape {shape}") from None
        if not found.size and int(np.prod(shape)) == 0:
            return np.zeros(shape)  # an empty list does not show its other dimensions
        if found.shape != shape or found.dtype.kind not in kinds:
            raise self._wrong(key, f"{what} of shape {shape}")
        return found

    def _get(self, key: str) -> Any:  # noqa: ANN401 - any JSON value
        if key not in self.values:
            raise InputError(f"{self.where} lacks {key!r}")
        return self.values[key]

    def _wrong(self, key: str, wanted: str) -> InputError:
        return InputError(f"{self.where}.{key} should be {wanted}")


def packed(flags: NDArray[np.bool_]) -> str:
    """Return an array of true and false as hexadecimal digits, four to a digit."""
    return np.packbits(flags).tobytes().hex()


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
