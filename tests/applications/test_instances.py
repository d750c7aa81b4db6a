"""Variants on instances: their states are those that the instances tell, and queries leave an instance that is gone."""

import asyncio
from contextlib import asynccontextmanager

import numpy as np
import pytest
from aiohttp import web

from serfer.api.routes.applications import detail_of
from serfer.applications.instances import OneInstance, VariantInstances
from serfer.applications.pipelines import served_name
from serfer.core.dataclass_codec import unstructure
from serfer.core.errors import TaskFailedError, UnavailableError
from serfer.core.http_messages import InstanceState
from serfer.core.variants import Place, VariantState
from serfer.drivers.driver import RequestContext
from serfer.drivers.instance.client import Fault, FaultKind
from serfer.registry import open_registry
from tests.applications.test_applications import CHEAP, Driver
from tests.applications.worlds import model_state, register, variant, version
from tests.support.aiohttp_server import serve_route
from tests.support.hand_clock import Clock

GPU = variant("gpu", ms=5.0, usd=1e-6, correct=90, place=Place.INSTANCE, kind="g6.xlarge", batch=8)
MODEL = served_name("faces", "gpu")


def listing(status="loaded", caution="", **signals):
    model = {"name": MODEL, "plan": "x", "state": unstructure(model_state(status, caution=caution, **signals))}
    shared = InstanceState("cuda", None, 1000, signals.get("utilisation", 0.1))
    return {"models": [model, {"name": "other"}], "instance": unstructure(shared)}


def instance(reply):
    """Serve what an instance lists at GET /v1/models; `reply` returns it."""

    async def models(_):
        found = reply()
        return found if isinstance(found, web.Response) else web.json_response(found)

    return serve_route("GET", "/v1/models", models)


@asynccontextmanager
async def looked(reply, clock=None):
    """Yield instances after a look at one, and its URL."""
    async with instance(reply) as url:
        instances = VariantInstances([url], "", clock or Clock())
        await instances.look()
        yield instances, url


@pytest.fixture
def registry(tmp_path):
    found = open_registry(str(tmp_path / "registry"))
    register(found, "faces", version("net", 1, CHEAP, GPU))
    return found


@asynccontextmanager
async def opened_driver(registry, store, reply=listing, clock=None, **sets):
    async with instance(reply) as url:
        driver = Driver(registry, store, instances=VariantInstances([url], "", clock or Clock()))
        for name, variants in sets.items():
            getattr(driver, name).update(variants)
        await driver.applications.open()
        try:
            yield driver, url
        finally:
            await driver.applications.close()


async def test_what_an_instance_tells_becomes_signals_with_their_age():
    clock = Clock()
    async with looked(lambda: listing(waiting=4, interference=1.5, utilisation=0.6), clock) as (instances, url):
        clock.now = 1.5
        [(place, seen)] = instances.signals(MODEL).items()
        assert (place, instances.signals("faces:none")) == (url, {})

    assert (seen.warm, seen.waiting, seen.share, seen.latency_ratio, seen.age_s) == (1, 0.5, 0.6, 1.5, 1.5)


async def test_what_a_small_network_loses_to_noise_is_not_taken_for_interference():
    async with looked(lambda: listing(interference=3.0, profiled_ms=0.4)) as (instances, url):
        assert instances.signals(MODEL)[url].latency_ratio == 1.0


@pytest.mark.parametrize(
    "reply",
    [
        lambda: web.Response(status=503),
        lambda: web.Response(text="no JSON"),
        lambda: web.Response(text="[" * 100_000),
        lambda: {"models": [{"name": 7}]},
        lambda: {"models": [{"name": MODEL, "state": {"status": "odd"}}]},
    ],
)
async def test_what_an_instance_tells_wrongly_makes_it_no_place(reply):
    async with looked(reply) as (instances, _):
        assert instances.signals(MODEL) == {}


async def test_a_listing_of_many_models_is_read_whole():
    def many():
        one = listing()["models"][0]
        others = [{**one, "name": f"faces:other-{number}"} for number in range(5000)]
        return {**listing(), "models": [*others, one]}

    async with looked(many) as (instances, url):
        assert [*instances.signals(MODEL)] == [url]


async def test_a_loaded_variant_on_an_instance_is_selected_and_one_that_is_overloaded_is_not(registry, store):
    told = {}
    clock = Clock()
    async with opened_driver(registry, store, lambda: listing(**told), clock) as (driver, url):
        first, _ = await driver.ask("one")
        told["utilisation"] = 1.0
        clock.now = 3.0
        await driver.look_all()
        second, _ = await driver.ask("two")
        state = driver.applications.releases.find("faces").places("gpu")[url]
    assert (first.variant.name, second.variant.name) == ("gpu", "cheap")
    assert first.model.startswith(f"{MODEL}@http://")
    assert state is VariantState.OVERLOADED


async def test_a_variants_description_says_which_instance_has_another_processor_than_its_accuracy_was_measured_on(
    registry, store
):
    reply = lambda: listing(caution="this processor lacks avx512_vnni")  # noqa: E731 - short
    async with opened_driver(registry, store, reply) as (driver, url):
        made = {row.name: row.made for row in detail_of(driver.applications, "faces").table}
    assert made["gpu"].endswith(f"; at {url}, this processor lacks avx512_vnni")
    assert "avx512_vnni" not in made["cheap"]


async def test_a_query_whose_instance_is_gone_is_answered_elsewhere(registry, store):
    async with opened_driver(registry, store, gone=["gpu"]) as (driver, _):
        choice, _ = await driver.ask("one")
    assert choice.variant.name == "cheap"
    assert "gone" in choice.failed


async def test_a_variant_that_no_instance_has_is_not_selected_and_unavailable_by_name(registry, store):
    driver = Driver(registry, store, instances=VariantInstances(["http://127.0.0.1:9"], "", Clock()))
    await driver.applications.open()
    assert (await driver.ask("one"))[0].variant.name == "cheap"
    with pytest.raises(UnavailableError, match="no instance"):
        await driver.ask("two", variant="gpu")
    await driver.applications.close()


async def test_instances_come_and_go_and_a_new_one_is_looked_at_next_time():
    async with instance(listing) as first, instance(listing) as second:
        instances = VariantInstances([first], "", Clock())
        await instances.look()
        instances.use([first, second])
        assert [*instances.signals(MODEL)] == [first]
        await instances.look()
        assert {*instances.signals(MODEL)} == {first, second}
        instances.use([f"{second}/"])
        assert [*instances.signals(MODEL)] == [second]
        assert instances.seen(first) is None


async def test_the_pipelines_to_an_instance_that_goes_are_closed_when_their_queries_have_ended(registry, store):
    async with opened_driver(registry, store) as (driver, url):
        choice, _ = await driver.ask("one")
        pipelines = driver.applications.pipelines
        with pipelines.running(choice.model):
            busy = pipelines.busy_places
            pipelines.use_places([])
            during = pipelines.is_open(choice.model)
        after = pipelines.is_open(choice.model)
        assert (busy, during, after, pipelines.busy_places) == ({url}, True, False, frozenset())


class Slow:
    async def infer(self, _batch, timeout_s, patience_s, _request):
        self.allowed_s = timeout_s, patience_s
        return Fault(FaultKind.NO_RESPONSE, "too slow")


def test_an_instance_that_is_too_slow_leaves_time_for_another_place():
    target = OneInstance("http://127.0.0.1:9", MODEL, None, "")
    target._client = Slow()
    with pytest.raises(UnavailableError, match="too slow"):
        asyncio.run(target.run(np.zeros((1, 2, 2, 3), np.uint8), 8.0, RequestContext("q")))
    assert target._client.allowed_s == (4.0, 4.0)


async def test_an_instance_that_answers_byte_by_byte_is_waited_for_half_of_a_querys_time():
    async def drip(request):
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.01)

    async with serve_route("*", "/{path:.*}", drip, shutdown_timeout=0.0) as url:
        target = OneInstance(url, MODEL, None, "")
        with pytest.raises(UnavailableError, match=r"did not answer within 0\.2 s"):
            await target.run(np.zeros((1, 2, 2, 3), np.uint8), 0.4, RequestContext("q"))
        await target.close()


async def test_what_a_query_itself_causes_at_an_instance_is_no_reason_to_leave_it(registry, store):
    async with opened_driver(registry, store, failing=["gpu"]) as (driver, _):
        with pytest.raises(TaskFailedError):
            await driver.ask("one")
        assert len(driver.applications.releases.find("faces").places("gpu")) == 1
