"""Selection of the variant that answers a query: states of variants from signals, and case I of INFaaS (4.1).

    signals by (variant, place) ──StateTracker──► States ─┐
    variants of a release ─────────────────► Catalogue ───┼─► Selector.get_variant ──► Selection (variant, place, why)
    a query: Objectives, and its draw ────────────────────┘

Pure: no clock, no I/O. The caller gathers signals, keeps the newest States, and does what is selected.
"""

from serfer.control.selection.catalogue import Catalogue
from serfer.control.selection.places import FUNCTIONS, PlaceState, States
from serfer.control.selection.select import DEFAULT, InfaasSelector, Selector, draw_of, make_selector, worth_warming
from serfer.control.selection.states import THRESHOLDS, StateTracker, VariantSignals, next_state

__all__ = [
    "DEFAULT",
    "FUNCTIONS",
    "THRESHOLDS",
    "Catalogue",
    "InfaasSelector",
    "PlaceState",
    "Selector",
    "StateTracker",
    "States",
    "VariantSignals",
    "draw_of",
    "make_selector",
    "next_state",
    "worth_warming",
]
