"""A cheaper variant of functions is warmed up when the queries of a minute would pay for it, and not before."""

from serfer.control.selection import FUNCTIONS, Catalogue, PlaceState, States
from serfer.control.selection.select import worth_warming
from serfer.core.variants import Objectives, VariantState
from tests.applications.worlds import variant

FAST = variant("fast", ms=20.0, usd=3e-5, correct=80)
CHEAP = variant("cheap", ms=100.0, usd=1e-5, correct=80, load_ms=900.0)  # a warm-up costs as much as ten queries
CATALOGUE = Catalogue([FAST, CHEAP])
ANY = Objectives()


def states(**by_name):
    return States({name: [PlaceState(FUNCTIONS, state)] for name, state in by_name.items()})


ACTIVE_FAST = states(fast=VariantState.ACTIVE, cheap=VariantState.INACTIVE)


def test_a_warm_up_pays_when_the_saving_exceeds_its_cost():
    assert worth_warming({ANY: 5}, CATALOGUE, ACTIVE_FAST) == []
    assert worth_warming({ANY: 6}, CATALOGUE, ACTIVE_FAST) == ["cheap"]


def test_queries_that_the_cheaper_variant_does_not_satisfy_are_no_reason():
    assert worth_warming({Objectives(latency_ms=50.0): 1000}, CATALOGUE, ACTIVE_FAST) == []
    assert worth_warming({Objectives(variant="fast"): 1000}, CATALOGUE, ACTIVE_FAST) == []


def test_what_is_loaded_already_or_nowhere_is_not_warmed():
    for state in (VariantState.ACTIVE, VariantState.OVERLOADED, VariantState.INTERFERED):
        assert worth_warming({ANY: 1000}, CATALOGUE, states(fast=VariantState.ACTIVE, cheap=state)) == []


def test_without_an_active_variant_the_next_query_decides():
    assert worth_warming({ANY: 1000}, CATALOGUE, states()) == []
