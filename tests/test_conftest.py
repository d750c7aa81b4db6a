from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import pytest_collection_modifyitems


@settings(max_examples=7)
@given(st.none())
def about(_):
    """Stand for a property test."""


def test_examples_are_multiplied_once_however_many_items_a_property_has(monkeypatch):
    monkeypatch.setenv("TEST_EXAMPLES", "2")
    pytest_collection_modifyitems([SimpleNamespace(obj=about)] * 3)
    assert about._hypothesis_internal_use_settings.max_examples == 14
