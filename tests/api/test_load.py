"""GET /v1/load: what offline work yields to is what the service's queries have in use."""

from types import SimpleNamespace

import pytest

from serfer.control.online_load import LoadMonitor
from serfer.control.throttle import BLOCK
from serfer.core.report import FunctionLoad
from tests.support.served import png


def pipeline(load=None, target=None):
    return SimpleNamespace(function_load=lambda: load, target=target)


def result(ms=100.0, images=1, target="serverless"):
    return images, SimpleNamespace(target=target, plan="digest", latency_ms=ms)


class World:
    def __init__(self, *pipelines, most=4):
        self.now = 1000.0
        self.monitor = LoadMonitor(dict(enumerate(pipelines)), most, lambda: self.now)

    def later(self, seconds):
        self.now += seconds
        return self.monitor.read()


def test_of_several_models_the_one_with_the_larger_share_counts():
    loads = (FunctionLoad(1, 8, 0.2, 0, of_account=False), FunctionLoad(500, 1000, 0.5, 0, of_account=True))
    read = World(*map(pipeline, loads)).later(0)
    assert (read.utilisation, read.of_account) == (0.5, True)


def test_where_no_slots_are_known_it_is_the_share_of_the_queries_at_once():
    world = World(pipeline(), most=4)
    world.monitor.change(world.now, 2)
    assert world.later(100).utilisation == pytest.approx(0.5)
    world.monitor.change(world.now, -2)
    assert world.later(100).utilisation < 0.001


def test_an_instance_is_in_use_while_it_has_a_query():
    world = World(pipeline(target=object()), most=10_000)
    world.monitor.change(world.now, 2)
    assert world.later(100).utilisation == pytest.approx(1.0)


def test_refused_invocations_count_for_ten_seconds():
    served = pipeline(FunctionLoad(0, 8, 0.0, 0, of_account=False))
    world = World(served)
    world.later(5)
    served.function_load = lambda: FunctionLoad(0, 8, 0.0, 7, of_account=False)
    assert [world.later(seconds).throttled for seconds in (1, 9, 9, 100)] == [7, 7, 0, 0]


def test_answers_that_were_kept_say_nothing_of_what_computes():
    world = World(pipeline())
    for number in range(10 * BLOCK):
        world.later(0.01)
        world.monitor.answered(world.now, "m", *result(0.1, target="cache") if number % 2 else result())
    assert world.monitor.read().latency == 1.0


def test_a_service_says_its_load(http):
    nothing = dict.fromkeys(("running", "waiting", "utilisation", "throttled"), 0)
    assert http.get("/v1/load").json() == {"of_account": False, "latency": None, "window_s": 10.0, **nothing}
    for _ in range(BLOCK + 4):
        assert http.post("/v1/classify", files={"image": png()}).status_code == 200
    load = http.get("/v1/load").json()
    assert 0 < load["utilisation"] <= 1
    assert load["latency"] > 0
