import json
from dataclasses import dataclass

import pytest

from serfer.core.errors import PlanError
from serfer.core.plan import Plan
from serfer.core.structure import structure, unstructure
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


def test_round_trip_of_a_plan_without_preprocess_keeps_none():
    plain = {**unstructure(small_plan()), "preprocess": None}
    assert structure(Plan, plain, "plan.json").preprocess is None


def test_whole_numbers_become_floats_where_a_float_is_wanted():
    ratio = structure(Root, changed(("leaves", 0, "ratio"), 2), "root").leaves[0].ratio
    assert ratio == 2
    assert type(ratio) is float


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("leaves", 0, "count"), "1", r"root\.leaves\[0\]\.count should be int, not str"),
        (("leaves", 0, "count"), 1.0, r"root\.leaves\[0\]\.count should be int, not float"),
        (("leaves", 0, "count"), True, r"root\.leaves\[0\]\.count should be int, not bool"),
        (("leaves", 0, "ratio"), False, r"root\.leaves\[0\]\.ratio should be float, not bool"),
        (("leaves", 0, "sure"), 1, r"root\.leaves\[0\]\.sure should be bool, not int"),
        (("leaves", 0, "maybe"), "x", r"root\.leaves\[0\]\.maybe should be int, not str"),
        (("leaves", 0, "name"), None, r"root\.leaves\[0\]\.name should be str, not NoneType"),
        (("leaves", 0, "count"), 10**400, r"root\.leaves\[0\]\.count is a number that is too large"),
        (("leaves", 0, "count"), -(2**63) - 1, r"root\.leaves\[0\]\.count is a number that is too large"),
        (("leaves", 0, "ratio"), 10**400, r"root\.leaves\[0\]\.ratio is a number that is too large"),
        (("leaves", 0, "name"), ..., r"root\.leaves\[0\] lacks 'name'$"),
        (("leaves", 0, "extra"), 1, r"root\.leaves\[0\] has unknown 'extra'$"),
        (("leaves", 0), [], r"root\.leaves\[0\] should be an object, not list"),
        (("leaves",), {}, r"root\.leaves should be a list, not dict"),
        (("leaves",), "ab", r"root\.leaves should be a list, not str"),
        (("pair",), [1], r"root\.pair should have 2 items, not 1"),
        (("pair", 1), 2, r"root\.pair\[1\] should be str, not int"),
    ],
)
def test_an_error_names_the_place(path, value, message):
    with pytest.raises(PlanError, match=message):
        structure(Root, changed(path, value), "root")


@pytest.mark.parametrize("value", [None, 3, "x", []])
def test_the_top_itself_may_be_wrong(value):
    with pytest.raises(PlanError, match=r"^root should be an object"):
        structure(Root, value, "root")


def test_what_is_unknown_may_be_passed_over_but_nothing_may_lack():
    assert structure(Root, changed(("leaves", 0, "extra"), 1), "root", lenient=True) == structure(Root, GOOD, "root")
    with pytest.raises(PlanError, match=r"root\.leaves\[0\] lacks 'name'$"):
        structure(Root, changed(("leaves", 0, "name"), ...), "root", lenient=True)
