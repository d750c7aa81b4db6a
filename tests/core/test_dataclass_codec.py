import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Literal

import pytest

from serfer.core.dataclass_codec import LATER, Bounds, structure, unstructure
from serfer.core.errors import InputError, PlanError
from serfer.core.plan import Plan
from tests.core.plans import small_plan


@dataclass(frozen=True)
class Leaf:
    count: int
    ratio: float
    name: str
    sure: bool
    maybe: int | None


@dataclass(frozen=True)
class Root:
    leaves: tuple[Leaf, ...]
    pair: tuple[int, str]


GOOD = {"leaves": [{"count": 1, "ratio": 2.5, "name": "x", "sure": True, "maybe": None}], "pair": [1, "a"]}


def changed(path, value):
    copy = json.loads(json.dumps(GOOD))
    *parents, last = path
    place = copy
    for key in parents:
        place = place[key]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return copy


def test_round_trip_of_a_whole_plan_through_json_text():
    plan = small_plan()
    assert structure(Plan, json.loads(json.dumps(unstructure(plan))), "plan.json") == plan
    plain = {**unstructure(plan), "preprocess": None}
    assert structure(Plan, plain, "plan.json").preprocess is None


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("leaves", 0, "count"), "1", r"root\.leaves\[0\]\.count should be a whole number, not str"),
        (("leaves", 0, "count"), 1.0, r"root\.leaves\[0\]\.count should be a whole number, not float"),
        (("leaves", 0, "count"), True, r"root\.leaves\[0\]\.count should be a whole number, not bool"),
        (("leaves", 0, "ratio"), False, r"root\.leaves\[0\]\.ratio should be a number, not bool"),
        (("leaves", 0, "sure"), 1, r"root\.leaves\[0\]\.sure should be true or false, not int"),
        (("leaves", 0, "maybe"), "x", r"root\.leaves\[0\]\.maybe should be a whole number, not str"),
        (("leaves", 0, "name"), None, r"root\.leaves\[0\]\.name should be a text, not NoneType"),
        (("leaves", 0, "count"), 10**400, r"root\.leaves\[0\]\.count is a number that is too large"),
        (("leaves", 0, "count"), -(2**63) - 1, r"root\.leaves\[0\]\.count is a number that is too large"),
        (("leaves", 0, "ratio"), 10**400, r"root\.leaves\[0\]\.ratio is a number that is too large"),
        (("leaves", 0, "name"), ..., r"root\.leaves\[0\] lacks 'name'$"),
        (("leaves", 0, "extra"), 1, r"root\.leaves\[0\] has unknown 'extra'; known are count, ratio"),
        (("leaves", 0), [], r"root\.leaves\[0\] should be an object, not list"),
        (("leaves",), {}, r"root\.leaves should be a list, not dict"),
        (("leaves",), "ab", r"root\.leaves should be a list, not str"),
        (("pair",), [1], r"root\.pair should have 2 items, not 1"),
        (("pair", 1), 2, r"root\.pair\[1\] should be a text, not int"),
    ],
)
def test_an_error_names_the_place(path, value, message):
    with pytest.raises(PlanError, match=message):
        structure(Root, changed(path, value), "root")
    for wrong in (None, 3, "x", []):
        with pytest.raises(PlanError, match=r"^root should be an object"):
            structure(Root, wrong, "root")


def test_whole_numbers_become_floats_and_unknown_keys_may_be_ignored():
    ratio = structure(Root, changed(("leaves", 0, "ratio"), 2), "root").leaves[0].ratio
    assert (ratio, type(ratio)) == (2, float)
    assert structure(Root, changed(("leaves", 0, "extra"), 1), "root", lenient=True) == structure(Root, GOOD, "root")
    with pytest.raises(PlanError, match=r"root\.leaves\[0\] lacks 'name'$"):
        structure(Root, changed(("leaves", 0, "name"), ...), "root", lenient=True)


@dataclass(frozen=True)
class Bounded:
    share: Annotated[float, Bounds(0.0, 1.0)]
    lambda_gb: Annotated[int, Bounds(1, 10)] = field(metadata={"key": "lambda"})


def test_a_field_may_have_another_key_in_the_file():
    assert structure(Bounded, {"share": 1, "lambda": 3}, "it") == Bounded(1.0, 3)
    assert unstructure(Bounded(1.0, 3)) == {"share": 1.0, "lambda": 3}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("share", 1.5, "it.share should be 0 to 1, not 1.5"),
        ("share", float("nan"), "it.share should be 0 to 1, not nan"),
        ("lambda", 0, "it.lambda should be 1 to 10, not 0"),
        ("lambda", 1.5, "it.lambda should be a whole number, not float"),
        ("lambda_gb", 1, "it has unknown 'lambda_gb'; known are share, lambda"),
    ],
)
def test_errors_name_bounds_and_keys_and_have_the_callers_type(key, value, message):
    with pytest.raises(InputError) as caught:
        structure(Bounded, {"share": 1.0, "lambda": 1, key: value}, "it", error=InputError)
    assert str(caught.value) == message
    assert type(caught.value) is InputError


@dataclass(frozen=True)
class Optional:
    needed: int
    extra: int = 7
    named: Mapping[str, float] = field(default_factory=dict)


def test_fields_with_a_default_may_be_absent():
    assert structure(Optional, {"needed": 1}, "root") == Optional(1, 7, {})
    with pytest.raises(PlanError, match=r"root lacks 'needed'$"):
        structure(Optional, {"extra": 1}, "root")


def test_mappings_hold_values_of_one_kind_under_any_name():
    assert structure(Optional, {"needed": 1, "named": {"a": 1, "b": 2.5}}, "root").named == {"a": 1.0, "b": 2.5}
    with pytest.raises(PlanError, match=r"root\.named\.a should be a number, not str"):
        structure(Optional, {"needed": 1, "named": {"a": "x"}}, "root")
    assert structure(dict[str, int], {"net": 2}, "release") == {"net": 2}
    with pytest.raises(PlanError, match=r"release\.net should be a whole number"):
        structure(dict[str, int], {"net": "two"}, "release")


class Colour(StrEnum):
    RED = "red"
    GREEN = "green"


@dataclass(frozen=True)
class Painted:
    colour: Colour
    state: Literal["on", "off"]


def test_an_enumeration_and_a_literal_are_one_of_their_texts():
    value = {"colour": "green", "state": "off"}
    assert structure(Painted, value, "it") == Painted(Colour.GREEN, "off")
    assert unstructure(Painted(Colour.GREEN, "off")) == value
    for name, known in (("colour", "red, green"), ("state", "on, off")):
        for wrong in ("blue", 3, None, []):
            with pytest.raises(PlanError, match=rf"it\.{name} should be {known}"):
                structure(Painted, {**value, name: wrong}, "it")


@dataclass(frozen=True)
class Grown:
    old: int
    new: Bounded | None = field(default=None, metadata=LATER)


def test_a_later_field_is_left_out_where_it_has_its_default():
    assert unstructure(Grown(1)) == {"old": 1}
    assert structure(Grown, {"old": 1}, "file") == Grown(1)
    assert unstructure(Grown(1, Bounded(1.0, 3))) == {"old": 1, "new": {"share": 1.0, "lambda": 3}}
