"""The sizes that images of a plan may have where it has more than one, and those of its outputs that follow from them.

Rows and columns of an input are multiples between a least and a most. Each axis of an output is of `constant +
by_rows * r + by_columns * c + by_area * r * c` values, where r and c are rows and columns divided by their multiples,
and by a step where a stride rounds them: maps follow their own side (8 * r), a sequence along a line of text one side
(one for 8 columns), and the boxes of a detector that has one in each cell the area.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from serfer.core.dataclass_codec import LATER
from serfer.core.errors import InputError, PlanError

Size = tuple[int, int]
"""Rows and columns."""
_LONGEST_SIDE = 1 << 16
_MOST_VALUES = 1 << 28
_MOST_TEXT = 200
_EXAMPLE = "write HEIGHTxWIDTH, either as LEAST..MOST, such as 32..2016x32..2016,multiple=32,pixels=1048576"
_TEXT = r"(\d{1,5})(?:\.\.(\d{1,5}))?x(\d{1,5})(?:\.\.(\d{1,5}))?((?:,[a-z]+=\d{1,10})*)"


@dataclass(frozen=True, slots=True)
class SideSizes:
    """Rows or columns that an input may have: multiples of `multiple` from `least` to `most`.

    Raises PlanError for numbers that no side has.
    """

    least: int
    most: int
    multiple: int = 1

    def __post_init__(self) -> None:
        sound = 1 <= self.multiple <= self.least <= self.most <= _LONGEST_SIDE
        if not sound or self.least % self.multiple or self.most % self.multiple:
            raise PlanError(
                f"a side of {self.least} to {self.most} pixels in multiples of {self.multiple} is not possible: both "
                f"ends should be multiples of it, from it to {_LONGEST_SIDE:,}"
            )

    def __contains__(self, size: int) -> bool:
        return self.least <= size <= self.most and size % self.multiple == 0

    @property
    def varies(self) -> bool:
        return self.least < self.most

    def floor(self, size: float) -> int:
        return max(self.least, min(self.most, math.floor(size) // self.multiple * self.multiple))

    def ceil(self, size: float) -> int:
        return self.floor(math.ceil(size / self.multiple) * self.multiple)

    def nearest(self, size: float) -> int:
        """Return the one nearest to `size`; of two, the one that is an even number of multiples."""
        return self.floor(round(size / self.multiple) * self.multiple)

    def __str__(self) -> str:
        if not self.varies:
            return str(self.least)
        step = f" (multiples of {self.multiple})" if self.multiple > 1 else ""
        return f"{self.least} to {self.most}{step}"


@dataclass(frozen=True, slots=True)
class InputSizes:
    """The sizes of an input: its rows, its columns, and the most pixels that it may have."""

    rows: SideSizes
    columns: SideSizes
    most_pixels: int

    def __post_init__(self) -> None:
        least = self.rows.least * self.columns.least
        if not least <= self.most_pixels <= _MOST_VALUES:
            raise PlanError(f"the most pixels should be {least:,} to {_MOST_VALUES:,}, not {self.most_pixels:,}")

    @classmethod
    def of(cls, text: str) -> InputSizes:
        """Read a range of `--size`; raises InputError for text that is not sizes."""
        match = re.fullmatch(_TEXT, text) if len(text) <= _MOST_TEXT else None
        pairs = [item.split("=") for item in match[5].split(",")[1:]] if match else []
        given = {name: int(value) for name, value in pairs}
        if match is None or not given.keys() <= {"multiple", "pixels"} or len(given) < len(pairs):
            raise InputError(f"{text[:_MOST_TEXT]!r} is not a range of sizes: {_EXAMPLE}")
        ends = [(int(least), int(most or least)) for least, most in (match.group(1, 2), match.group(3, 4))]
        multiple = given.get("multiple", 1)
        try:
            rows, columns = (SideSizes(*end, multiple if end[0] < end[1] else 1) for end in ends)
            return cls(rows, columns, given.get("pixels", min(rows.most * columns.most, _MOST_VALUES)))
        except PlanError as error:
            raise InputError(f"{text!r}: {error}") from None

    def __contains__(self, size: Size) -> bool:
        rows, columns = size
        return rows in self.rows and columns in self.columns and rows * columns <= self.most_pixels

    @property
    def largest(self) -> Size:
        """The size of the most pixels that is nearest to a square."""
        rows = self.rows.floor(max(math.isqrt(self.most_pixels), self.most_pixels // self.columns.most))
        rows = self.rows.floor(min(rows, self.most_pixels // self.columns.least))
        columns = self.columns.floor(self.most_pixels // rows)
        return rows, columns

    def within(self, rows: int, columns: int) -> Size:
        """Return a size of possible sides with its larger side reduced, then the other one, until its pixels fit."""
        if rows * columns > self.most_pixels:
            if rows > columns:
                rows = self.rows.floor(self.most_pixels // columns)
            columns = self.columns.floor(self.most_pixels // rows)
            rows = self.rows.floor(min(rows, self.most_pixels // columns))
        return rows, columns

    @property
    def corners(self) -> Iterator[Size]:
        """The least and the most of both sides, whatever pixels that are."""
        return itertools.product((self.rows.least, self.rows.most), (self.columns.least, self.columns.most))

    def check(self, size: Size) -> None:
        if size not in self:
            raise InputError(f"an input of {size[0]} x {size[1]} is not one that this plan takes: it takes {self}")

    def units(self, size: Size) -> Size:
        return size[0] // self.rows.multiple, size[1] // self.columns.multiple

    def __str__(self) -> str:
        bound = f", {self.most_pixels:,} pixels at most" * (self.rows.most * self.columns.most > self.most_pixels)
        return f"{self.rows} rows and {self.columns} columns{bound}"


@dataclass(frozen=True, slots=True)
class Steps:
    """The rounding by strides along a side: (u + shift) // size steps of u multiples."""

    size: int = 1
    shift: int = 0

    def __post_init__(self) -> None:
        if not (1 <= self.size <= _LONGEST_SIDE and 0 <= self.shift < self.size):
            raise PlanError(f"steps of {self.size} multiples from {self.shift} on are not possible")

    def of(self, units: int) -> int:
        return (units + self.shift) // self.size


_EACH = Steps()


@dataclass(frozen=True, slots=True)
class AxisForm:
    """How the size of an output's axis follows from rows and columns, in steps of their multiples."""

    constant: int
    by_rows: int = 0
    by_columns: int = 0
    by_area: int = 0
    row_steps: Steps = field(default=_EACH, metadata=LATER)
    column_steps: Steps = field(default=_EACH, metadata=LATER)

    def at(self, units: Size) -> int:
        rows, columns = self.row_steps.of(units[0]), self.column_steps.of(units[1])
        return self.constant + self.by_rows * rows + self.by_columns * columns + self.by_area * rows * columns

    @property
    def varies(self) -> bool:
        return bool(self.by_rows or self.by_columns or self.by_area)


@dataclass(frozen=True, slots=True)
class PlanSizes:
    """The sizes of a plan's input, and the forms of each axis of each of its outputs."""

    input: InputSizes
    outputs: tuple[tuple[AxisForm, ...], ...]

    def dims(self, output: int, size: Size) -> tuple[int, ...]:
        units = self.input.units(size)
        return tuple(form.at(units) for form in self.outputs[output])
