"""Drivers that see old states share a load among variants, and do not move together."""

import pytest

from tests.control.selection.herd import Herd

LATE_SHARE = 0.1
SPREAD = 0.25
JUMP_S, SETTLED_S, END_S = 20.0, 40.0, 160.0

LOADS = [
    *(((100, 150, 400), 180), ((100, 150, 400), 400), ((100, 100, 100), 210), ((50, 1000), 400)),
    pytest.param((100,) * 6, 450, marks=pytest.mark.weekly),
]


def run(qps, rate):
    """Return drivers after a load that jumps from what the cheapest variant takes to what overloads it."""
    return Herd(qps).run(lambda now_s: 40 if now_s < JUMP_S else rate, END_S, SETTLED_S)


@pytest.mark.parametrize(("qps", "rate"), LOADS)
def test_eight_drivers_leave_an_overloaded_variant_without_overloading_or_emptying_another(qps, rate):
    herd = run(qps, rate)
    assert herd.swings(SETTLED_S) == 0
    assert herd.late_share <= LATE_SHARE


def test_the_cheapest_variant_takes_all_again_when_the_load_falls():
    herd = Herd((100, 100, 100)).run(lambda now_s: 210 if now_s < 60.0 else 40, END_S, SETTLED_S)
    assert all(load == 0.0 for name in ("v1", "v2") for load in herd.servers[name, "p0"].windows(100.0))


def test_variants_that_are_all_overloaded_share_the_load_by_their_throughput():
    herd = run((50, 200), 350)
    shares = [sum(server.windows(SETTLED_S)) for server in herd.servers.values()]
    assert shares[0] == pytest.approx(shares[1], rel=0.1)


@pytest.mark.parametrize(
    ("places", "load"),
    [(2, 0.65), (2, 1.0), *(pytest.param(4, load, marks=pytest.mark.weekly) for load in (0.65, 0.95))],
)
def test_places_of_one_variant_are_loaded_alike_though_their_states_are_old(places, load):
    herd = Herd((100,), places=places).run(lambda _: 100 * places * load, END_S, SETTLED_S)
    assert herd.spread(SETTLED_S) < SPREAD
