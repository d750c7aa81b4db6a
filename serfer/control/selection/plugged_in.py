"""Selectors by name: INFaaS' policy, MODULE:Class of the user's own, and the entry point group `serfer.selectors`."""

from __future__ import annotations

from typing import Final

from serfer.control.selection.catalogue import Catalogue
from serfer.control.selection.select import InfaasSelector, Selector
from serfer.core.variants import Selection, SelectionReason
from serfer.plug_ins import load

DEFAULT: Final = "infaas"
_MAX_PLACE: Final = 500  # characters


def make_selector(name: str) -> Selector:
    """Return a selector: built in, plugged in by the entry point group `serfer.selectors`, or MODULE:Class.

    Raises UsageError for an unknown name, and for what is not a class with `get_variant` that is made without
    arguments.
    """
    plug_in = load("selector", "serfer.selectors", name, ("get_variant",), {DEFAULT: InfaasSelector})
    selector: Selector = plug_in.make(checks={"get_variant": _fault_of})
    return selector


def _fault_of(selection: object, _asked: object, catalogue: Catalogue, *_: object) -> str | None:
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
