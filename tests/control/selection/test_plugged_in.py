"""Selectors of the user's own: found by name, refused where they are none, and their selections checked."""

from importlib.metadata import EntryPoint, EntryPoints

import pytest

from serfer.control.selection import Catalogue, InfaasSelector, States, make_selector
from serfer.core.errors import InputError, UsageError
from serfer.core.variants import Objectives, Place
from tests.control.selection.worlds import variant

MINE = """
from serfer.core.variants import Selection, SelectionReason

class Mine:
    def get_variant(self, asked, catalogue, states, draw):
        return {selection}
"""
FIRST = "Selection(catalogue.rows[0].name, SelectionReason.ACTIVE)"
CATALOGUE = Catalogue([variant("a", kind="", place=Place.FUNCTIONS)])


@pytest.fixture
def made(tmp_path):
    def write(selection=FIRST, text=MINE):
        path = tmp_path / "mine.py"
        path.write_text(text.replace("{selection}", selection))
        return f"{path}:Mine"

    return write


def plugged(monkeypatch, *entries):
    mine = EntryPoints([EntryPoint(name, value, "serfer.selectors") for name, value in entries])
    monkeypatch.setattr("serfer.plug_ins.entry_points", lambda group: mine.select(group=group))


def select(selector):
    return selector.get_variant(Objectives(), CATALOGUE, States({}), 0.0)


def test_a_selector_is_built_in_of_a_file_or_plugged_in_by_its_entry_point(made, monkeypatch):
    plugged(monkeypatch, ("mine", "serfer.control.selection:InfaasSelector"))
    assert isinstance(make_selector("infaas"), InfaasSelector)
    assert select(make_selector(made())).variant == select(make_selector("mine")).variant == "a"
    with pytest.raises(UsageError, match=r"no selector 'yours': there are infaas, mine, and MODULE:Class"):
        make_selector("yours")


def test_a_class_that_is_not_a_selector_is_refused(made):
    with pytest.raises(UsageError, match="the class has no get_variant"):
        make_selector(made(text="class Mine: pass"))


@pytest.mark.parametrize(
    ("selection", "words"),
    [
        ("None", "returned NoneType, not a Selection"),
        ("Selection('b', SelectionReason.ACTIVE)", "returned variant 'b', which the catalogue has not"),
        ("Selection('a', 'because')", "returned the reason 'because', not a SelectionReason"),
        ("Selection('a', SelectionReason.ACTIVE, place=3)", "returned a place that is not a short text"),
        ("Selection('a', SelectionReason.ACTIVE, missed=None)", "returned what it misses as NoneType"),
        ("1 / 0", "get_variant failed: ZeroDivisionError"),
    ],
)
def test_a_selection_that_cannot_be_is_an_error_that_names_the_selector(made, selection, words):
    with pytest.raises(InputError, match=words):
        select(make_selector(made(selection)))


def test_a_query_s_own_mistake_stays_one(made):
    with pytest.raises(UsageError, match="no variant 'c'"):
        select(make_selector(made("catalogue.named('c')")))
