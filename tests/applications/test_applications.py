"""A driver's applications: selection, canaries, and what happens when parts of them fail."""

import asyncio
import threading
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from unittest.mock import patch

import pytest

from serfer.api.http.problems import problem_of
from serfer.applications import applications as module
from serfer.applications import releases
from serfer.applications.answering import ApplicationQuery, Run, VariantUnavailableError
from serfer.applications.applications import STILL_S, Applications
from serfer.applications.exchange import Exchange
from serfer.applications.instances import VariantInstances
from serfer.applications.pipelines import VariantPipelines, served_name
from serfer.applications.served import FunctionsPlace
from serfer.control.selection import InfaasSelector
from serfer.core.errors import DeadlineError, PlanError, TaskFailedError, UnavailableError, UsageError
from serfer.core.variants import Canary, CanaryLimits, Objectives, Place
from serfer.registry import open_registry
from tests import bugs
from tests.applications.worlds import NOW, register, variant, version
from tests.support.hand_clock import Clock
from tests.support.served import until

FAST = variant("fast", ms=20.0, usd=3e-5, correct=80)
CHEAP = variant("cheap", ms=90.0, usd=1e-5, correct=85)
GOOD = variant("good", ms=60.0, usd=4e-5, correct=99)
NEW = variant("new", ms=90.0, usd=1e-5, correct=99)
PATIENCE_S = 30.0
LIMITS = CanaryLimits(window_s=60.0, queries=10, max_error_rate=0.1)


class Opened:
    def __init__(self, name):
        self.name = name
        self.closed = False

    async def warm(self):
        raise UsageError("in process")

    async def close(self):
        self.closed = True


class Driver:
    """One driver's applications; `broken` variants cannot be opened, queries on `failing` ones fail."""

    def __init__(self, registry, store, name="driver", instances=None, names=("faces",), clock=time.monotonic, **more):
        self.served, self.opened, self.placed = {}, [], []
        self.broken, self.failing, self.gone, self.slow = set(), set(), set(), set()
        self.begun, self.answered = [], []
        self.error, self.spend = TaskFailedError("it fails"), lambda _name: None
        self.instances = instances or VariantInstances((), "", time.monotonic)
        coordination = store.coordination()
        self.applications = Applications(
            registry,
            VariantPipelines(self._open, self.served),
            InfaasSelector(),
            self.instances,
            {each: Exchange(coordination, each, name) for each in names},
            place=FunctionsPlace(1000, 300.0),
            runs_here=lambda each: each.place is Place.FUNCTIONS or instances is not None,
            driver=name,
            clock=clock,
            **more,
        )

    async def _open(self, _, chosen, place):
        self.opened.append(chosen.name)
        self.placed.append(place)
        if chosen.name in self.broken:
            raise PlanError("it is not whole")
        return Opened(chosen.name)

    def run(self):
        @asynccontextmanager
        async def opening():
            yield

        async def answer(choice):
            name = choice.variant.name
            self.begun.append(name)
            self.spend(name)
            await asyncio.sleep(0)
            await until(lambda: name not in self.slow)
            assert not self.served[choice.model].closed
            if name in self.gone:
                raise UnavailableError("it is gone")
            if name in self.failing:
                raise self.error
            self.answered.append(name)
            return name

        return Run(answer, opening, lambda _: False, lambda one, other: one == other)

    async def ask(self, query="q", **objectives):
        return await self.applications.answering.answer(
            ApplicationQuery("faces", Objectives(**objectives), query), self.run()
        )

    async def look_all(self):
        await self.applications._instances.look()
        await self.look()

    async def look(self):
        await self.applications.look(self.applications.releases.find("faces"))


@pytest.fixture
def registry(tmp_path):
    found = open_registry(str(tmp_path / "registry"))
    register(found, "faces", version("net", 1, FAST, CHEAP, GOOD))
    return found


@pytest.fixture
def driver(registry, store):
    return Driver(registry, store)


@pytest.fixture
def clocked(registry, store):
    clock = Clock()
    return Driver(registry, store, clock=clock, canaries=False), clock


def away(registry):
    return patch.object(registry.store, "get", side_effect=UnavailableError("no registry"))


def promote(registry, version=2):
    registry.update("faces", lambda record: record.promoted({"net": version}, NOW, "test", "better"))


def with_canary(registry, **fields):
    register(registry, "faces", version("net", 2, NEW))
    canary = Canary({"net": 2}, fields.pop("share", 1.0), NOW, "test", LIMITS, **fields)
    registry.update("faces", lambda record: record.with_canary(canary))


async def test_a_variant_is_opened_once_however_many_wait_for_it(driver):
    await driver.applications.open()
    await asyncio.gather(*(driver.ask(f"q{number}", variant="good") for number in range(20)))
    assert driver.opened.count("good") == 1


async def test_another_variant_answers_where_one_cannot_be_opened(driver):
    driver.broken.add("good")
    await driver.applications.open()
    (first, _), (second, _) = (await driver.ask(min_accuracy=0.9), await driver.ask(min_accuracy=0.9))
    assert first.variant.name == second.variant.name != "good"
    assert "not whole" in first.failed
    assert driver.opened.count("good") == 1


async def test_a_variant_that_was_named_and_cannot_be_opened_is_unavailable(driver):
    driver.broken.add("good")
    await driver.applications.open()
    with pytest.raises(UnavailableError, match="good"):
        await driver.ask(variant="good")


async def test_a_variant_that_could_not_be_opened_comes_back_in_whichever_application_it_is(registry, store):
    register(registry, "pets", version("net", 1, FAST, CHEAP))
    clock = Clock()
    driver = Driver(registry, store, names=("faces", "pets"), clock=clock)
    driver.broken.add("cheap")
    await driver.applications.open()
    served = [driver.applications.releases.find(name) for name in ("faces", "pets")]
    for clock.now, is_there in ((0.0, False), (31.0, True)):
        for one in served:
            await driver.applications.look(one)
        assert ["cheap" in one.variants for one in served] == [is_there] * 2


async def test_a_driver_starts_with_the_next_variant_where_the_cheapest_cannot_be_opened(driver, registry, store):
    driver.broken.add("cheap")
    await driver.applications.open()
    assert driver.opened == ["cheap", "fast"]
    other = Driver(registry, store)
    other.broken |= {"cheap", "fast", "good"}
    with pytest.raises(UnavailableError, match="it is not whole"):
        await other.applications.open()


async def test_a_query_that_no_variant_can_answer_is_refused_by_their_names_without_what_the_log_says(driver, registry):
    """As after a release of variants whose plans have an older format."""
    register(registry, "faces", version("net", 2, NEW))
    await driver.applications.open()
    await driver.applications.releases.change("faces", lambda record: record.promoted({"net": 2}, NOW, "test", ""))
    driver.broken.add("new")
    with pytest.raises(VariantUnavailableError, match=r"faces .* new cannot be opened here, .* log") as raised:
        await driver.ask("query")
    said = problem_of(raised.value)
    assert (said.status, said.detail) == (503, str(raised.value))
    assert "it is not whole" not in said.detail


@pytest.mark.parametrize("has_loop", [True, False])
async def test_a_cheaper_variant_takes_over_when_enough_queries_would_be_cheaper(clocked, has_loop):
    driver, clock = clocked
    await driver.applications.open(warm=False)
    chosen = []
    for number in range(40):
        clock.now += STILL_S
        await (driver.look() if has_loop else driver.applications.catch_up())
        chosen.append((await driver.ask(f"query {number}"))[0].variant.name)
        while driver.applications._warming:
            await asyncio.wait(driver.applications._warming)
    assert [*dict.fromkeys(chosen)] == ["fast", "cheap"]


async def test_a_canary_answers_its_share(driver, registry):
    with_canary(registry, share=0.25)
    await driver.applications.open()
    assert 60 < sum([(await driver.ask(f"query {number}"))[0].canary for number in range(400)]) < 140


async def test_a_failing_canary_loses_no_query_and_is_taken_back_by_all_drivers(registry, store):
    with_canary(registry, share=0.5)
    drivers = [Driver(registry, store, f"driver {number}") for number in range(3)]
    for each in drivers:
        each.failing.add("new")
        await each.applications.open()
    for number in range(12):
        for each in drivers:
            choice, answer = await each.ask(f"query {number}")
            assert (choice.canary, answer) == (False, choice.variant.name)
    for each in drivers:
        await each.look()
    late = [(await each.ask(f"late {number}"))[0] for each in drivers for number in range(20)]
    assert not any(choice.failed or choice.canary for choice in late)
    record = registry.application("faces")
    assert record.canary is None
    assert "failed" in record.taken_back.why
    assert record.live_release.networks == {"net": 1}


@pytest.mark.parametrize(("allowed_s", "is_kept"), [(0.01, True), (5.0, False)])
async def test_a_client_that_allows_less_than_live_answers_take_does_not_have_a_canary_taken_back(
    registry, store, allowed_s, is_kept
):
    clock = Clock()
    driver = Driver(registry, store, clock=clock)
    driver.failing.add("new")
    driver.error = DeadlineError("no answer by the deadline")
    driver.spend = lambda name: setattr(clock, "now", clock.now + (allowed_s if name == "new" else 0.1))
    await driver.applications.open()
    for number in range(20):
        await driver.ask(f"live {number}")
    with_canary(registry)
    await driver.look()
    for number in range(20):
        await driver.ask(f"query {number}")
    await driver.look()
    assert (registry.application("faces").canary is not None) == is_kept


async def test_a_failed_canary_is_used_no_more_while_the_registry_cannot_be_reached_which_is_logged_once(
    driver, registry, monkeypatch, caplog
):
    caplog.set_level("INFO", "serfer.fleet")
    with_canary(registry)
    logged = []
    monkeypatch.setattr(releases, "log_event", lambda _, event, **__: logged.append(event))
    driver.failing.add("new")
    await driver.applications.open()
    for number in range(12):
        await driver.ask(f"query {number}")
    with away(registry):
        await driver.look()
        await driver.look()
        choice, _ = await driver.ask("late")
    assert registry.application("faces").canary is not None
    await driver.look()
    assert not choice.canary
    assert not choice.failed
    assert registry.application("faces").canary is None
    assert logged.count("canary taken back") == 1
    troubles = [(record.msg, record.serfer["part"]) for record in caplog.records if "trouble" in record.msg]
    assert troubles == [("application trouble", "registry"), ("application trouble is over", "registry")]


async def test_a_shadow_answers_copies_whose_answers_nobody_gets(driver, registry):
    with_canary(registry, shadow=True)
    await driver.applications.open()
    choices = []
    for number in range(5):
        choices.append((await driver.ask(f"query {number}"))[0])
        for _ in range(50):
            await asyncio.sleep(0)
        while driver.applications.answering.copies:
            await asyncio.wait(driver.applications.answering.copies)
    assert not any(choice.canary for choice in choices)
    assert driver.answered.count("new") == 5
    served = driver.applications.releases.find("faces")
    assert (served.compared, served.agreed) == (5, 0)


async def test_what_is_promoted_answers_after_the_next_look_and_what_is_gone_drains(driver, registry):
    await driver.applications.open()
    driver.slow.add("good")
    query = asyncio.create_task(driver.ask("before", variant="good"))
    await until(lambda: driver.begun == ["good"])
    register(registry, "faces", version("net", 2, NEW))
    promote(registry)
    await driver.look()
    choice, _ = await driver.ask("after")
    still_open = served_name("faces", "good") in driver.served
    driver.slow.clear()
    await query
    assert choice.variant.name == "new"
    assert still_open
    assert [*driver.served] == [served_name("faces", "new")]


async def test_a_look_that_began_before_a_change_does_not_undo_it(driver, registry, monkeypatch):
    register(registry, "faces", version("net", 2, NEW))
    await driver.applications.open()
    await driver.look()
    before, may_end = registry.latest("faces"), threading.Event()

    def slow(*_):
        assert may_end.wait(60)
        return replace(before)  # read before the change, and decoded afresh

    with monkeypatch.context() as patched:
        patched.setattr(registry, "latest", slow)
        look = asyncio.create_task(driver.look())
        await asyncio.sleep(0)
        await driver.applications.releases.change(
            "faces", lambda record: record.promoted({"net": 2}, NOW, "test", "better")
        )
        may_end.set()
        await look
    assert driver.applications.releases.find("faces").table.release.networks == {"net": 2}


async def test_a_record_that_cannot_be_read_is_not_the_clients_fault(driver, registry):
    await driver.applications.open()
    registry.store.compare_and_set("applications/faces.json", registry.latest("faces").version, b"torn")
    with pytest.raises(UnavailableError, match="cannot be read"):
        await driver.applications.releases.change("faces", lambda record: record)


@pytest.mark.parametrize(("name", "share", "canary"), [("good", 1.0, False), ("new", 1e-9, True)])
async def test_a_query_that_names_a_variant_gets_it_of_the_release_that_has_it(driver, registry, name, share, canary):
    with_canary(registry, share=share)
    await driver.applications.open()
    choices = [(await driver.ask(f"query {number}", variant=name))[0] for number in range(5)]
    assert {(choice.variant.name, choice.canary) for choice in choices} == {(name, canary)}


async def test_a_shadow_that_cannot_be_opened_costs_its_query_nothing(driver, registry):
    with_canary(registry, shadow=True)
    driver.broken.add("new")
    await driver.applications.open()
    choice, _ = await driver.ask("query")
    while working := [*driver.applications.answering.copies]:
        await asyncio.wait(working)
        assert all(task.exception() is None for task in working)
    assert choice.variant.name == "cheap"


async def test_a_driver_without_canaries_answers_all_by_the_live_release_and_looks_when_it_is_asked(registry, clocked):
    driver, clock = clocked
    with_canary(registry, share=1.0)

    async def version():
        choice, _ = await driver.ask()
        assert not choice.canary
        return choice.variant.version

    await driver.applications.open(warm=False)
    assert driver.opened == []
    await driver.applications.catch_up()
    promote(registry)
    await driver.applications.catch_up()
    soon = await version()
    clock.now = STILL_S
    await driver.applications.catch_up()
    assert (soon, await version()) == (1, 2)


async def test_registry_that_hangs_keeps_a_request_waiting_for_a_second_and_no_other_one(
    registry, clocked, monkeypatch
):
    (driver, _), released, reads = clocked, threading.Event(), []
    monkeypatch.setattr(module, "STILL_S", 0.0)
    monkeypatch.setattr(module, "_PATIENCE_S", 0.01)
    await driver.applications.open(warm=False)
    read = registry.store.get

    def hanging(*arguments):
        reads.append(arguments)
        released.wait(PATIENCE_S)
        return read(*arguments)

    monkeypatch.setattr(registry.store, "get", hanging)
    for _ in range(3):
        await driver.applications.catch_up()
        await driver.ask()
    released.set()
    await driver.applications.close()
    assert len(reads) == 1


async def test_an_application_that_is_deleted_answers_no_more_until_it_is_restored(registry, store):
    driver = Driver(registry, store)
    await driver.applications.open()
    [kept] = registry.history("faces")
    registry.delete("faces")
    with pytest.raises(UsageError, match="application faces was deleted") as caught:
        await driver.applications.releases.change("faces", lambda record: record)
    assert str(registry.store) not in str(caught.value)
    await driver.look()
    assert driver.applications.names == ()
    assert "serfer app restore" in driver.applications.releases.why_absent("faces")
    with pytest.raises(UnavailableError, match="was deleted from the registry"):
        await driver.ask()
    await asyncio.sleep(0)
    assert driver.served == {}
    await driver.look()
    registry.restore("faces", kept.version)
    await driver.look()
    assert driver.applications.names == ("faces",)
    assert (await driver.ask())[1] == "cheap"


async def test_an_application_that_is_registered_later_is_served_where_none_were_named(registry, store):
    found = store.coordination()
    driver = Driver(registry, store, names=(), join=lambda name: Exchange(found, name, "driver"))
    await driver.applications.open()
    assert driver.applications.names == ()
    await driver.applications.find_new()
    assert driver.applications.names == ("faces",)
    assert (await driver.ask())[1] == "cheap"
    driver.broken.add("other")
    register(registry, "dogs", version("net", 1, variant("other")))
    await driver.applications.find_new()
    assert driver.applications.names == ("faces",)


async def test_applications_are_looked_at_together_so_that_drivers_of_many_do_not_count_as_gone(registry, store):
    """One after the other, a hundred at 30 ms a request take longer than TTL_S (fleet/registry.py)."""
    names = [f"app-{number}" for number in range(8)]
    for name in names:
        register(registry, name, version("net", 1, FAST))
    driver = Driver(registry, store, names=names)
    together = threading.Barrier(len(names), timeout=PATIENCE_S)
    latest = registry.latest

    def slow(name, known=None):
        together.wait()
        return latest(name, known)

    await driver.applications.open(warm=False)
    registry.latest = slow
    await driver.applications.look_at_all()
    assert not together.broken
    await driver.applications.close()


async def test_one_applications_bug_does_not_keep_the_others_from_being_looked_at(registry, store, caplog):
    register(registry, "cats", version("net", 1, FAST))
    driver = Driver(registry, store, names=("faces", "cats"))
    latest, looked = registry.latest, []

    def broken(name, known=None):
        looked.append(name)
        if name == "faces":
            bugs.buggy()
        return latest(name, known)

    await driver.applications.open(warm=False)
    registry.latest = broken
    await driver.applications.look_at_all()
    await driver.applications.close()
    assert sorted(looked) == ["cats", "faces"]
    assert bugs.logged(caplog.records) == 1
