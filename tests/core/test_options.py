"""Options as fields of a dataclass: what they are read from, what is refused, and other values of some of them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pytest

from serfer.core.errors import UsageError
from serfer.core.options import (
    REQUIRED,
    Options,
    argument,
    changed,
    flag_of,
    is_on_line,
    option,
    options_of,
    value_of,
    with_values,
)


def _bounds(text):
    if not text.replace("-", "").isdecimal():
        raise UsageError("numbers, such as 3-4")
    return [int(part) for part in text.split("-")]


class Grid(list):
    """What no value of TOML is made into."""


@dataclass(frozen=True, kw_only=True)
class Base(Options):
    as_json: bool = option(False, "Print JSON.", "--json")


@dataclass(frozen=True, kw_only=True)
class Command(Base):
    command: ClassVar[str] = "paint"
    line: ClassVar[str] = "out count as_json"

    picture: Path = argument(REQUIRED, "A picture.", metavar="FILE")
    out: str = option(REQUIRED, "Where.")
    count: int | None = option(None, "How many.", least=1, most=9)
    share: float = option(0.5, "A share.", least=0, most=1)
    side: int | Literal["auto"] = option("auto", "A side.", least=1)
    kind: Literal["oil", "chalk"] = option("oil", "Of what.")
    colours: tuple[str, ...] = option((), "Which.")
    sizes: tuple[int, ...] = option((), "Several.", least=2)
    bounds: Sequence[int] = option((), "Two.", read=_bounds)
    grid: Grid | None = option(None, "A class that a text is read into.", read=lambda text: Grid(_bounds(text)))
    layered: bool = option(True, "In layers.")


FIELDS = {item.name: item for item in fields(Command)}
GIVEN = {"picture": Path("a.png"), "out": "b"}


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        *(("layered", raw, True) for raw in (True, "true", "Yes", "1", "on")),
        *(("layered", raw, False) for raw in (False, "false", "no", "0", "OFF")),
        ("count", "3", 3),
        ("count", 3, 3),
        ("share", "1e-1", 0.1),
        ("share", 1, 1.0),
        ("side", "auto", "auto"),
        ("side", "8", 8),
        ("kind", "chalk", "chalk"),
        ("picture", "x", Path("x")),
        ("colours", "red,blue", ("red", "blue")),
        ("colours", ["red"], ("red",)),
        ("sizes", ["2", 3], (2, 3)),
        ("colours", "red, blue", ("red", "blue")),
        ("bounds", "3-4", [3, 4]),
        ("bounds", [3, "4"], (3, 4)),
        ("grid", ["3-4"], Grid([3, 4])),
        ("grid", 3, Grid([3])),
    ],
)
def test_value_is_read_of_text_and_of_toml(name, raw, value):
    read = value_of(Command, FIELDS[name], raw, "it")
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "raw", "why"),
    [
        ("layered", "maybe", "it is true or false"),
        ("count", "many", "it is a whole number"),
        ("count", 2.5, "it is a whole number"),
        ("count", True, "it is a whole number"),
        ("count", "0", "it is from 1 to 9, not 0"),
        ("share", "nan", "it is from 0 to 1, not nan"),
        ("share", False, "it is a number"),
        ("side", "wide", "it is a whole number or auto"),
        ("side", 0, "it is at least 1, not 0"),
        ("kind", "ink", "it is oil or chalk, not 'ink'"),
        ("out", 3, "it is a text"),
        ("colours", 3, "it is a list"),
        ("sizes", "2,x", "it is a list"),
        ("sizes", [2, 1], "it is at least 2, not 1"),
        ("sizes", {}, "it is a list of whole numbers, not '{}'"),
        ("bounds", {}, "it is a list"),
        ("bounds", "x", "it: numbers"),
        ("picture", 1, "it is a path"),
        ("side", 10**400, "it is a whole number or auto, not one of so many digits"),
        ("count", 10**9, "it is from 1 to 9, not 1000000000"),
        ("share", 10**400, "it is a number"),
        ("grid", 2.5, "it: numbers"),
    ],
)
def test_other_value_is_refused_by_name(name, raw, why):
    with pytest.raises(UsageError) as refused:
        value_of(Command, FIELDS[name], raw, "it")
    assert str(refused.value).startswith(why)


@pytest.mark.parametrize(
    "values",
    [
        *({"count": count} for count in (10, "3", 2.5, True)),
        *({"share": share} for share in (-0.1, "0.1", False)),
        *({"layered": layered} for layered in ("no", 1)),
        *({name: value} for name, value in (("kind", "ink"), ("side", "wide"), ("out", 3), ("picture", 1))),
        *({"colours": "red"}, {"sizes": (3, 1)}, {"bounds": "x"}, {"colour": "red"}),
    ],
)
def test_python_value_is_held_to_the_same_bounds(values):
    with pytest.raises(UsageError, match=next(iter(values))):
        with_values(Command, Command(**GIVEN), values)


@pytest.mark.parametrize("options", [{"count": 3}, Base(), "count=3"])
def test_options_of_another_class_are_refused(options):
    with pytest.raises(UsageError, match="Command"):
        with_values(Command, options, {})


def test_text_is_read_in_python_as_on_the_line():
    options = Command(**GIVEN, bounds="3-4", grid="5", share=np.float32(0.25), count=np.int64(4))
    assert (options.bounds, options.grid, options.share, options.count) == ([3, 4], Grid([5]), 0.25, 4)
    assert Command(picture="a.png", out="b").picture == "a.png"


def test_values_by_name_replace_those_of_options():
    options = with_values(Command, Command(**GIVEN), {"count": 4, "colours": ["red"], "bounds": [1, 2]})
    assert (options.count, options.colours, options.bounds, options.out) == (4, ("red",), [1, 2], "b")
    assert changed(options, Base()) == []
    assert changed(with_values(Command, options, {"as_json": True}), Base()) == ["--json"]


def test_own_options_come_first_and_only_a_line_has_flags():
    own = [name for name in FIELDS if name != "as_json"]
    assert [item.name for item, _ in options_of(Command)] == [*own, "as_json"]
    flags = {flag_of(item, described): is_on_line(Command, item) for item, described in options_of(Command)}
    assert [flag for flag, on_line in flags.items() if on_line] == ["picture", "--out", "--count", "--json"]
