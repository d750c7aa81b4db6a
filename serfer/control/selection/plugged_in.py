"""Selectors by name: INFaaS' policy, MODULE:Class of the user's own, and the entry point group `serfer.selectors`."""

from __future__ import annotations

from typing import Any, Final

from serfer.control.selection.catalogue import Catalogue
from serfer.control.selection.places import States
from serfer.control.selection.select import InfaasSelector, Selector
from serfer.core.errors import InputError, UsageError
from serfer.core.variants import Objectives, Selection, SelectionReason
from serfer.plug_ins import in_one_line, load_entry, load_object, plugged_in

GROUP: Final = "serfer.selectors"
DEFAULT: Final = "infaas"
_HINT: Final = "(docs/how-to/add-a-policy.md)"
_MAX_PLACE: Final = 500  # characters


def make_selector(name: str) -> Selector:
    """Return a selector: built in, plugged in by the entry point group `serfer.selectors`, or MODULE:Class.

    Raises UsageError for an unknown name, and for what is not a class with `get_variant` that is made without
    arguments.
    """
    if name == DEFAULT:
        return InfaasSelector()
    if ":" in name:
        made = load_object(name)
    elif (entry := plugged_in(GROUP).get(name)) is not None:
        made = load_entry(entry)
    else:
        known = ", ".join([DEFAULT, *plugged_in(GROUP)])
        raise UsageError(f"there is no selector {name!r:.80}: there are {known}, and MODULE:Class")
    if not isinstance(made, type):
        raise UsageError(f"selector {name}: {type(made).__name__} is not a class {_HINT}")
    if not callable(getattr(made, "get_variant", None)):
        raise UsageError(f"selector {name}: the class has no get_variant {_HINT}")
    return _CheckedSelector(name, made)


class _CheckedSelector:
    """A selector whose errors name it, and whose selections are checked."""

    def __init__(self, name: str, made: type[Any]) -> None:
        """Make the selector; raises UsageError where its constructor fails."""
        self.name = name
        try:
            self._selector = made()
        except (Exception, SystemExit) as error:  # the user's own code may raise anything
            raise UsageError(f"selector {name} could not be made: {in_one_line(error)}") from error

    def get_variant(self, asked: Objectives, catalogue: Catalogue, states: States, draw: float) -> Selection:
        """Return the selection; raises InputError where it fails, or selects what the catalogue does not have."""
        try:
            selection = self._selector.get_variant(asked, catalogue, states, draw)
        except UsageError:  # of the query: an unknown variant or network
            raise
        except Exception as error:  # as above
            raise InputError(f"selector {self.name}: get_variant failed: {in_one_line(error)}") from error
        if (wrong := _wrong(selection, catalogue)) is not None:
            raise InputError(f"selector {self.name}: get_variant returned {wrong} {_HINT}")
        checked: Selection = selection
        return checked


def _wrong(selection: object, catalogue: Catalogue) -> str | None:
    """Return what is wrong with a selection, in words."""
    if not isinstance(selection, Selection):
        return f"{type(selection).__name__}, not a Selection"
    if selection.variant not in catalogue:
        return f"variant {selection.variant!r:.80}, which the catalogue has not"
    if not isinstance(selection.reason, SelectionReason):
        return f"the reason {selection.reason!r:.80}, not a SelectionReason"
    if not isinstance(selection.place, str) or len(selection.place) > _MAX_PLACE:
        return "a place that is not a short text"
    if not isinstance(selection.missed, dict):
        return f"what it misses as {type(selection.missed).__name__}, not a dictionary"
    return None
