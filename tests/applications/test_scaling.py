"""The loop of case II in every driver, several of them over one store, in a test's own time."""

import asyncio
from collections import defaultdict
from contextlib import asynccontextmanager
from dataclasses import replace
from unittest.mock import Mock

import pytest
from aiohttp import web

from serfer.applications.instances import SeenInstance
from serfer.applications.opening import ApplicationOptions, open_applications, variants_for_instances
from serfer.applications.scaling.controller import VariantFleet, VariantPools
from serfer.applications.scaling.copies import VariantCopies
from serfer.applications.scaling.spec import parse_instances
from serfer.applications.served import FunctionsPlace, ServedApplication, table_of
from serfer.cli.shared.service_commands import ServeCommand
from serfer.cli.shared.service_options import applications_of
from serfer.control.selection.scaling.fleet_records import PoolTerms
from serfer.core.errors import PlanError, UsageError
from serfer.core.plan import codec
from serfer.core.units import MIB
from serfer.core.variants import NO_OBJECTIVES, Application, Place
from serfer.fleet.control_loop import Timing
from serfer.fleet.purchase import Purchase
from serfer.fleet.registry import PoolRegistry
from serfer.registry import open_registry
from serfer.settings import Settings
from serfer.storage.memory import MemoryStore
from tests.applications.worlds import NOW, model_state, on_instance, plan_variant, register, variant, version
from tests.fleet.fakes import DriverWorld, FakeProvisioner
from tests.support.aiohttp_server import serve_route
from tests.support.hand_clock import Clock

ANY = Purchase("")
ON_INSTANCES = [on_instance(f"b{batch}", qps, batch=batch, ms=20.0) for batch, qps in ((1, 10.0), (8, 100.0))]
NET = version("net", 1, variant("function", ms=50.0, usd=1e-2), *ON_INSTANCES)
RECORD = Application("faces", 7, "ab" * 32).with_version(NET)


class Instances:
    """A driver's instances, which load and unload at once; `loaded` is what all of them have in memory, by URL."""

    urls = ()

    def __init__(self, loaded, net, clock):
        self.loaded, self.probe, self.clock = loaded, net.connect, clock

    def use(self, urls):
        self.urls = tuple(urls)

    def seen(self, url):
        if url not in self.urls:
            return None
        states = {True: model_state("loaded", 50 * MIB), False: model_state("unloaded", 50 * MIB)}
        models = {name: states[name in self.loaded[url]] for name in ("faces:b1", "faces:b8")}
        return SeenInstance(models, 0.1, 120 * MIB, self.clock())

    def change(self, action, url, model):
        loaded = self.loaded[url]
        loaded.add(model) if action == "load" else loaded.discard(model)

    def status(self, _url, _model, listed, _at):
        return listed.status

    def is_blocked(self, _url, _model):
        return False

    def forget(self, urls):
        pass

    async def close(self):
        pass


class Drivers(DriverWorld):
    def __init__(self, *, most=4, ceiling=float("inf"), pools=None):
        super().__init__()
        self.in_memory = defaultdict(set)
        self.provisioner = FakeProvisioner(self.net, self.clock, boot_s=4.0)
        self.served, self.pipelines = {}, {}
        self.pools = pools or VariantPools(
            {"": PoolTerms(most, 5.0)}, {ANY: self.provisioner}, ends=(ANY,), max_usd_per_hour=ceiling
        )

    def add(self, name):
        one = self.served[name] = ServedApplication("faces", FunctionsPlace(1000, 300.0), self.clock)
        one.use(table_of(RECORD, lambda _: True))
        self.pipelines[name] = Mock(busy_places=frozenset())
        instances = Instances(self.in_memory, self.net, self.clock)
        fleet = self.running[name] = VariantFleet(
            self.pools,
            PoolRegistry(self.coordination, "p", name, self.clock),
            {"faces": one},
            instances,
            self.pipelines[name],
            instances,
            admits=lambda _bought, _url: True,
            timing=Timing(self.clock, asyncio.sleep),
        )
        return fleet

    async def step(self, seconds, rate=0):
        self.rate = rate
        await super().step(seconds)

    async def tick(self, driver):
        for served in driver.served.values():
            for _ in range(self.rate):
                served.ask(NO_OBJECTIVES)
            served.next_second()
        await super().tick(driver)

    @property
    def loaded(self):
        return {model for models in self.in_memory.values() for model in models}

    @property
    def starts(self):
        return sum(count for word, count in self.provisioner.calls if word == "start")


async def test_load_starts_an_instance_and_loads_a_variant_and_its_end_stops_it():
    drivers = Drivers()
    one = drivers.add("a")
    await drivers.step(3)
    assert drivers.provisioner.calls == []
    await drivers.step(15, rate=8)
    assert drivers.starts == 1
    assert drivers.loaded == {"faces:b1"}
    assert one._instances.urls
    drivers.pipelines["a"].use_places.assert_called_with(one._instances.urls)
    assert drivers.served["a"].scaled.desired == {"b1": 1}
    await drivers.step(30)
    assert drivers.provisioner.there == {}
    assert one._instances.urls == ()
    assert drivers.starts == 1


async def test_instances_that_are_managed_elsewhere_get_the_variants_that_the_load_asks_for():
    pools = VariantPools({"": PoolTerms(1, 0.0, fixed=True)}, {}, urls={"": ("http://elsewhere",)})
    drivers = Drivers(pools=pools)
    fleet = drivers.add("one")
    await drivers.step(20, rate=5)
    assert not fleet.troubles
    assert drivers.loaded == {"faces:b1"}


async def test_the_load_of_all_drivers_counts_and_all_of_them_know_what_was_decided():
    drivers = Drivers()
    for name in ("a", "b"):
        drivers.add(name)
    entries = {}
    for _ in range(15):
        await drivers.step(1, rate=6)
        entries = {name: served.entry(name) for name, served in drivers.served.items()}
        for name, served in drivers.served.items():
            served.others = [entry for other, entry in entries.items() if other != name]
    follower = next(name for name in drivers.running if name != drivers.leader)
    assert drivers.loaded == {"faces:b8"}  # 12 queries a second together
    assert entries[follower].scaled is None
    assert drivers.served[follower].scaled.desired == {"b8": 1}


@pytest.mark.killed
async def test_another_driver_takes_over_from_a_leader_that_dies_and_starts_nothing_twice():
    drivers = Drivers()
    for name in ("a", "b"):
        drivers.add(name)
    await drivers.step(4, rate=8)
    assert drivers.starts == 1
    dead = drivers.leader
    del drivers.running[dead]
    await drivers.step(25, rate=8)
    assert drivers.leader != dead
    assert drivers.starts == 1
    assert drivers.loaded == {"faces:b1"}
    await drivers.step(30)
    assert drivers.provisioner.there == {}


@pytest.mark.parametrize(("bounds", "expected"), [({"ceiling": 3.0}, 0), ({"ceiling": 8.0}, 2), ({"most": 1}, 1)])
async def test_no_more_instances_are_started_than_the_bounds_allow(bounds, expected):
    drivers = Drivers(**bounds)
    drivers.add("a")
    await drivers.step(25, rate=900)
    assert drivers.starts == expected


async def test_an_instance_that_owes_answers_is_not_stopped_until_it_has_given_them():
    drivers = Drivers()
    one = drivers.add("a")
    await drivers.step(15, rate=8)
    drivers.pipelines["a"].busy_places = frozenset(one._instances.urls)
    await drivers.step(60)
    assert len(drivers.provisioner.there) == 1
    assert one._instances.urls == ()
    drivers.pipelines["a"].busy_places = frozenset()
    await drivers.step(3)
    assert drivers.provisioner.there == {}


async def test_without_the_store_instances_are_used_on_as_they_are_and_the_last_driver_stops_them_when_it_is_closed():
    drivers = Drivers()
    one, two = drivers.add("a"), drivers.add("b")
    await drivers.step(15, rate=8)
    await one.close()
    del drivers.running["a"]
    assert len(drivers.provisioner.there) == 1
    await drivers.step(8, rate=8)
    urls = two._instances.urls
    drivers.coordination.gone = True
    await drivers.step(40)
    assert (drivers.provisioner.calls, two._instances.urls, drivers.loaded) == ([("start", 1)], urls, {"faces:b1"})
    drivers.coordination.gone = False
    await two.close()
    assert drivers.provisioner.there == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("local", [("", "local", 2)]),
        ("local:5", [("", "local", 5)]),
        ("ec2:workers", [("", "ec2:workers", 256)]),
        ("static:http://a:1,http://b:2/", [("", "static:http://a:1,http://b:2/", 2)]),
        ("static:http://a:1|http://b:2", [("", "static:http://a:1,http://b:2", 2)]),
        (
            "g6.xlarge=ec2:gpus,c7i.large=static:http://a:1|http://b:2",
            [("g6.xlarge", "ec2:gpus", 256), ("c7i.large", "static:http://a:1,http://b:2", 2)],
        ),
    ],
)
def test_specs_name_pools(text, expected):
    assert [(each.kind, each.spec, each.most) for each in parse_instances(text)] == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "local:", "local:0", "local:1000", "local:x", "local;rm", "ec2:", "static:", "static:ftp://a"),
        *("a=local,a=local", "=local", "a=ec2:g,b=ec2:g", "a=static:http://a:1,b=static:http://a:1"),
        *("http://a:1", "a=b", "x" * 100_000),
    ],
)
def test_specs_that_cannot_be_are_refused_by_the_name_of_the_option(text):
    with pytest.raises(UsageError, match="variant_instances"):
        parse_instances(text)


@pytest.fixture
def registry(tmp_path):
    return open_registry(str(tmp_path / "registry"))


@pytest.fixture
def settings(tmp_path):
    return Settings(cache_dir=tmp_path / "cache")


@pytest.fixture
def options(tmp_path):
    return ApplicationOptions(str(tmp_path / "registry"), ("faces",))


def test_a_fleet_starts_instances_of_its_registry_and_applications_and_uses_those_of_its_pools_alone(
    registry, options, settings, tmp_path
):
    options = replace(options, instances=parse_instances("gpu=ec2:group , cpu=local:3 "), max_usd_per_hour=2.0)
    register(registry, "faces", NET)
    with MemoryStore() as store:
        applications = open_applications(
            options, {}, lambda _: None, settings, store, "memory://", FunctionsPlace(1000, 300.0)
        )
    fleet = applications.fleet
    local = fleet._pools.provisioners[Purchase("cpu")]
    words = [*local._command]
    at = words.index("instance")
    assert words[at : at + 3] == ["instance", f"--registry={tmp_path}/registry", "--app=faces"]
    assert words[-1] == "--set=instance_type=cpu"
    assert (local._most, fleet._pools.ends, fleet._pools.max_usd_per_hour) == (3, (Purchase("cpu"),), 2.0)
    assert fleet._provisioning.admits(Purchase("cpu"), "http://127.0.0.1:4711")
    assert not fleet._provisioning.admits(Purchase("cpu"), "http://10.0.0.7:8000")
    assert fleet._provisioning.admits(Purchase("gpu"), "http://10.0.0.7:8000")
    assert not fleet._provisioning.admits(Purchase("gpu"), "http://127.0.0.1:8000")


def test_an_instance_of_a_type_has_the_variants_for_it_alone(registry, options, settings, tmp_path):
    made = plan_variant(registry, tmp_path / "plan", "small", place=Place.INSTANCE, kind="cpu")
    register(registry, "faces", version("net", 1, made, replace(made, name="large", kind="gpu")))
    assert [*variants_for_instances(options, settings)] == ["faces:small", "faces:large"]
    assert [*variants_for_instances(options, settings, "gpu")] == ["faces:large"]
    with pytest.raises(UsageError, match="type 'tpu'"):
        variants_for_instances(options, settings, "tpu")


@pytest.mark.parametrize("fetched", [True, False], ids=["fetched by an older version", "not fetched yet"])
def test_an_instance_leaves_out_variants_whose_plans_have_an_older_format(
    registry, options, settings, tmp_path, monkeypatch, caplog, fetched
):
    with monkeypatch.context() as before:
        before.setattr(codec, "FORMAT", codec.FORMAT - 1)
        older = plan_variant(registry, tmp_path / "older", "older", place=Place.INSTANCE, kind="cpu")
        register(registry, "faces", version("net", 1, older))
        if fetched:
            variants_for_instances(options, settings)
    with pytest.raises(PlanError, match=r"has format 10, this version reads 11: .* with serfer app register"):
        variants_for_instances(options, settings)
    made = plan_variant(registry, tmp_path / "plan", "made", place=Place.INSTANCE, kind="cpu")
    register(registry, "faces", version("other", 1, made))
    registry.update("faces", lambda record: record.promoted({"net": 1, "other": 1}, NOW, "test", ""))
    assert [*variants_for_instances(options, settings)] == ["faces:made"]
    assert "variant not opened" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant_instances": "local"}, "--registry"),
        ({"registry": "registry", "variant_instances": "locally"}, "variant_instances"),
        ({"registry": "registry", "variant_instances": "local", "max_usd_per_hour": -1.0}, "max_usd_per_hour"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        applications_of(Settings(registry=None), ServeCommand(**options))


MODEL = "faces:b1"
KEY = "sf_" + "k" * 43


class Instance:
    """An instance that answers as it is told, once `gate` is open; it keeps what it was asked."""

    def __init__(self):
        self.asked = []
        self.status = 200
        self.gate = asyncio.Event()
        self.gate.set()

    async def change(self, request):
        self.asked.append((request.match_info["model"], request.match_info["action"], request.headers.get("X-API-Key")))
        await self.gate.wait()
        return web.json_response({"detail": "as it is told"}, status=self.status)


@asynccontextmanager
async def world():
    clock, looks, instance = Clock(), [], Instance()
    copies = VariantCopies(KEY, clock, lambda: looks.append(clock.now))
    async with serve_route("POST", "/v2/repository/models/{model}/{action}", instance.change) as url:
        yield copies, instance, url, clock, looks
        await copies.close()


async def done(copies):
    await asyncio.wait([*copies.tasks])


async def test_a_load_is_asked_for_once_with_the_key_and_counts_until_the_instance_says_something_newer():
    async with world() as (copies, instance, url, clock, looks):
        clock.now = 10.0
        instance.gate.clear()
        copies.change("load", url, MODEL)
        copies.change("load", url, MODEL)
        assert copies.status(url, MODEL, model_state("unloaded"), 9.0) == "loading"
        instance.gate.set()
        await done(copies)
        assert instance.asked == [(MODEL, "load", KEY)]
        assert looks == [10.0]
        assert copies.status(url, MODEL, model_state("unloaded"), 9.0) == "loaded"
        assert copies.status(url, MODEL, model_state("unloaded"), 11.0) == "unloaded"
        assert copies.changes == {"load": 1}


async def test_what_is_being_unloaded_counts_as_gone_and_stays_where_it_has_queries():
    async with world() as (copies, instance, url, _clock, _looks):
        instance.status = 409
        copies.change("unload", url, MODEL)
        assert copies.status(url, MODEL, model_state("loaded"), 0.0) == "unloaded"
        await done(copies)
        assert copies.status(url, MODEL, model_state("loaded"), 0.0) == "loaded"
        assert not copies.is_blocked(url, MODEL)


@pytest.mark.parametrize("status", [404, 429, 503])
async def test_a_load_that_failed_is_not_tried_again_at_once(status):
    async with world() as (copies, instance, url, clock, _looks):
        instance.status = status
        copies.change("load", url, MODEL)
        await done(copies)
        assert copies.is_blocked(url, MODEL)
        assert copies.status(url, MODEL, model_state("unloaded"), 0.0) == "unloaded"
        clock.now += 31.0
        assert not copies.is_blocked(url, MODEL)
        assert copies.changes == {"failed": 1}


async def test_an_instance_that_is_gone_is_a_failed_load():
    copies = VariantCopies("", Clock(), lambda: None)
    copies.change("load", "http://127.0.0.1:9", MODEL)
    await done(copies)
    assert copies.is_blocked("http://127.0.0.1:9", MODEL)
    copies.forget(())
    assert not copies.is_blocked("http://127.0.0.1:9", MODEL)
    await copies.close()


async def test_closing_ends_what_is_under_way():
    async with world() as (copies, instance, url, _clock, _looks):
        instance.gate.clear()
        copies.change("load", url, MODEL)
        await asyncio.sleep(0)
        await copies.close()
        assert copies.tasks == set()
        instance.gate.set()
