"""Case I: selections equal those of an oracle that was written apart, and the rules of section 4.1 one by one."""

import pytest

from serfer.control.selection import FUNCTIONS, Catalogue, InfaasSelector, PlaceState, States, draw_of
from serfer.control.selection.select import worth_warming
from serfer.core.errors import UsageError
from serfer.core.variants import Objectives, SelectionReason
from serfer_bench.study.papers.infaas.table8 import ARCHITECTURES, table8
from tests.applications.worlds import variant as on_functions
from tests.control.selection import oracle
from tests.control.selection.worlds import ACTIVE, INACTIVE, INTERFERED, OVERLOADED, Registry, states, variant

NONE = Objectives()


def select(variants, seen, asked=NONE, draw=0.0):
    return InfaasSelector().get_variant(asked, Catalogue(variants), seen, draw)


@pytest.mark.parametrize("block", [0, 1, *(pytest.param(block, marks=pytest.mark.weekly) for block in range(2, 8))])
def test_selections_equal_the_oracle_s_over_random_registries_and_state_changes(block):
    reasons = set()
    for seed in range(block * 400, block * 400 + 400):
        registry = Registry(seed)
        catalogue = Catalogue(registry.variants)
        for _ in range(5):
            asked, seen = registry.asked(), registry.states
            parts = oracle.select(registry.variants, registry.places, asked)
            for draw in (0.0, registry.chance.random(), 1 - 2**-53):
                chosen = InfaasSelector().get_variant(asked, catalogue, seen, draw)
                _assert_selects(chosen, [parts[0]] if draw == 0.0 else _around(parts, draw))
                reasons.add(chosen.reason)
            registry.change()
    assert reasons == set(SelectionReason)


def _assert_selects(chosen, parts):
    found = [part for part in parts if part[2:4] == (chosen.variant, chosen.place)]
    assert found, (chosen, parts)
    reason, missed, *_ = found[0]
    assert chosen.reason.name == reason
    assert chosen.missed == pytest.approx(missed)


def _around(parts, draw):
    """Return the parts on which a draw falls, those beside it included where rounding decides."""
    found, start = [], 0.0
    for part in parts:
        if start - 1e-9 <= draw <= start + part[4] + 1e-9:
            found.append(part)
        start += part[4]
    return found


def test_what_is_remembered_of_the_nearest_variant_is_of_the_states_and_objectives_at_hand():
    variants = [variant("slow", latency=60.0, accuracy=0.9), variant("wrong", accuracy=0.5)]
    catalogue, selector = Catalogue(variants), InfaasSelector()
    active, without = states(slow=[(ACTIVE, 0.0)], wrong=[(ACTIVE, 0.0)]), states(wrong=[(ACTIVE, 0.0)])
    strict, lenient = Objectives(latency_ms=50.0, min_accuracy=0.85), Objectives(latency_ms=20.0, min_accuracy=0.6)
    for _ in range(2):
        assert selector.get_variant(strict, catalogue, active, 0.0).variant == "slow"
        assert selector.get_variant(strict, catalogue, without, 0.0).variant == "wrong"
        assert selector.get_variant(lenient, catalogue, active, 0.0).variant == "wrong"
    for at in range(1100):  # more than are remembered
        selector.get_variant(Objectives(latency_ms=1.0 + at / 1000, min_accuracy=0.85), catalogue, active, 0.0)
    assert len(catalogue.live(active).nearest) <= 1000


def test_a_variant_or_network_that_is_named_answers_and_one_that_is_unknown_is_named():
    variants = [variant("a"), variant("b", network="vgg16", usd=5e-6)]
    seen = states(a=[(ACTIVE, 0.0)], b=[(OVERLOADED, 2.0)])
    chosen = select(variants, seen, Objectives(variant="b", max_cost_usd=1e-6))
    assert (chosen.variant, chosen.reason, set(chosen.missed)) == ("b", SelectionReason.NAMED, {"max_cost_usd"})
    assert select(variants, seen, Objectives(network="vgg16")).variant == "b"
    with pytest.raises(UsageError, match="no variant 'c': there are a, b"):
        select(variants, seen, Objectives(variant="c"))
    with pytest.raises(UsageError, match="no network 'alexnet': there are resnet50, vgg16"):
        select(variants, seen, Objectives(network="alexnet"))


def test_a_catalogue_needs_variants_with_names_of_their_own():
    with pytest.raises(UsageError, match="register a network"):
        Catalogue([])
    with pytest.raises(UsageError, match="one name"):
        Catalogue([variant("a"), variant("a")])


def test_draws_of_query_ids_are_even_and_the_same_at_every_driver():
    draws = [draw_of(f"query-{at}") for at in range(10_000)]
    assert draws == [draw_of(f"query-{at}") for at in range(10_000)]
    tenths = [sum(at / 10 <= draw < (at + 1) / 10 for draw in draws) for at in range(10)]
    assert max(tenths) < 1150
    assert min(tenths) > 850


def test_the_registry_of_table_8_has_the_paper_s_numbers_and_stays_within_its_ranges():
    variants = table8()
    assert (len(variants), len(ARCHITECTURES), len({each.name for each in variants})) == (175, 22, 175)
    assert all(1.5 <= each.latency_ms.value <= 5700.0 and 590.0 <= each.load_ms.value <= 11_000.0 for each in variants)
    assert variants == table8() != table8(seed=1)
    asked = Objectives(min_accuracy=0.72, latency_ms=20.0)  # Table 7's second query
    seen = States({})
    every = {each.name: [("p0", "active", 0.1, 1.0)] for each in variants}
    reason, _, name, *_ = oracle.select(variants, every, asked)[0]
    seen = states(**{name: [(ACTIVE, 0.1)] for name in every})
    assert (select(variants, seen, asked).variant, reason) == (name, "ACTIVE")


FAST = on_functions("fast", ms=20.0, usd=3e-5, correct=80)
CHEAP = on_functions("cheap", ms=100.0, usd=1e-5, correct=80, load_ms=900.0)  # a warm-up costs as much as ten queries
CATALOGUE = Catalogue([FAST, CHEAP])


@pytest.mark.parametrize(
    ("asked", "count", "fast", "cheap", "names"),
    [
        (NONE, 5, ACTIVE, INACTIVE, []),
        (NONE, 6, ACTIVE, INACTIVE, ["cheap"]),
        # Queries that the cheaper variant does not satisfy are no reason.
        (Objectives(latency_ms=50.0), 1000, ACTIVE, INACTIVE, []),
        (Objectives(variant="fast"), 1000, ACTIVE, INACTIVE, []),
        *((NONE, 1000, ACTIVE, loaded, []) for loaded in (ACTIVE, OVERLOADED, INTERFERED)),
        (NONE, 1000, INACTIVE, INACTIVE, []),  # the next query decides
    ],
)
def test_a_warm_up_pays_when_the_saving_exceeds_its_cost(asked, count, fast, cheap, names):
    seen = States({"fast": [PlaceState(FUNCTIONS, fast)], "cheap": [PlaceState(FUNCTIONS, cheap)]})
    assert worth_warming({asked: count}, CATALOGUE, seen) == names
