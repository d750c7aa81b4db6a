"""What drivers tell one another arrives whole and is forgotten with the driver; an unsound record is replaced."""

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from serfer.applications.exchange import DriverEntry, Exchange, ScalingDecision
from serfer.applications.meters import DriverSignals
from serfer.control.canary import Conduct, ConductCounter
from serfer.control.selection.scaling.demand import NetworkDemand
from serfer.core.dataclass_codec import unstructure
from serfer.fleet.registry import Heartbeat
from serfer.storage.coordination import InterceptedCoordination
from tests.support.hand_clock import Clock

KEY = "serfer:variants:{faces}"


@pytest.fixture
def coordination(store):
    return store.coordination()


def entry(driver, **fields):
    counter = ConductCounter()
    counter.answer(80.0)
    given = {"variants": {"cheap": DriverSignals(in_flight=3)}, "trial": "2026", "live": counter.conduct, **fields}
    return DriverEntry(driver, **given)


def record(load, beats=1):
    return json.dumps({"drivers": [unstructure(Heartbeat(load, beats))], "lease": None, "fleet": None}).encode()


def kept(coordination):
    """Return the drivers in the record, which expires soon where there are none."""
    found = coordination.get(KEY)
    return json.loads(found.value)["drivers"] if found else []


def test_each_driver_sees_the_others_until_they_leave(coordination):
    one, two = (Exchange(coordination, "faces", name, Clock()) for name in ("one", "two"))
    assert one.exchange(entry("one")) == ()
    [seen] = two.exchange(entry("two"))
    assert (seen.driver, seen.variants["cheap"].in_flight, seen.live.queries) == ("one", 3, 1)
    demand = (NetworkDemand("net", rate=3.0, slo_ms=50.0, min_accuracy=0.5, max_cost_usd=1e-5, functions_usd=1e-4),)
    scaled = ScalingDecision({"gpu": 2}, "replicate 1 x gpu")
    [seen] = one.exchange(entry("one", demand=demand, scaled=scaled))
    assert seen.driver == "two"
    [seen] = two.exchange(entry("two"))
    assert (seen.demand, seen.scaled) == (demand, scaled)
    one.leave()
    assert two.exchange(entry("two")) == ()
    assert two.leave()
    assert kept(coordination) == []


def test_a_driver_that_leaves_during_an_exchange_leaves_nothing(coordination):
    writing, may_write = Event(), Event()

    def before(operation):
        if operation == "compare_and_set":
            writing.set()
            may_write.wait(30)

    one = Exchange(InterceptedCoordination(coordination, before), "faces", "one", Clock())
    with ThreadPoolExecutor(2) as threads:
        exchanging = threads.submit(one.exchange, entry("one"))
        assert writing.wait(30)
        leaving = threads.submit(one.leave)
        with pytest.raises(TimeoutError):
            leaving.result(0.05)  # it must not end before the entry is written
        may_write.set()
        exchanging.result(30), leaving.result(30)
    assert kept(coordination) == []
    assert one.exchange(entry("one")) == ()
    assert kept(coordination) == []


@pytest.mark.parametrize(
    "value",
    [
        b"[]",
        record(entry("x"), beats=-1),
        record(entry("x", live=Conduct((1,)))),
        record(entry("x", scaled=ScalingDecision({f"v{number}": 1 for number in range(1001)}))),
    ],
)
def test_a_record_that_is_not_sound_is_replaced(coordination, value):
    assert coordination.compare_and_set(KEY, None, value, 60.0)
    assert Exchange(coordination, "faces", "one", Clock()).exchange(entry("one")) == ()
    assert len(kept(coordination)) == 1
