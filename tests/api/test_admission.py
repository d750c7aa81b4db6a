"""Who gets a place, a slot or bytes, in which order, and that all of it comes back however a request ends."""

import asyncio
import math
from collections import Counter
from contextlib import AsyncExitStack, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.api.admission import Admission, Bytes, Place, Places, Slots
from serfer.api.http.problems import Problem, problem_of, problem_response
from serfer.api.http.request_middleware import RequestMiddleware
from serfer.api.observability.metrics import Metrics
from serfer.api.observability.telemetry import Telemetry
from serfer.core.errors import DeadlineError
from tests.support.hand_clock import Clock

CLIENTS = ("alice", "bob", "carol")


def bounded(in_flight, queue, clock=None, **more):
    return Admission(in_flight, queue, clock=clock or Clock(100.0), **more)


async def turns(admission, count, deadline_s=60.0, turn_s=None):
    """Take `count` turns that are free; each is held until what stands for it is closed, or forgotten."""
    held = []
    for _ in range(count):
        async with AsyncExitStack() as stack:
            place = stack.enter_context(admission.place("a", deadline_s))
            await stack.enter_async_context(admission.turns.hold(place, turn_s or deadline_s))
            held.append(stack.pop_all())
    return held


def timed(in_flight, queue):
    clock = Clock(100.0)
    return bounded(in_flight, queue, clock), clock


async def answer(admission, clock, took_s):
    [held] = await turns(admission, 1)
    clock.now += took_s
    await held.aclose()


def refused(admission, deadline_s=60.0):
    with pytest.raises(Problem) as caught:
        admission.check("a", deadline_s)
    assert caught.value.status == 429
    return int(caught.value.headers["Retry-After"])


def run(test):
    return asyncio.run(test())


async def settle():
    for _ in range(6):
        await asyncio.sleep(0)


class TestBounds:
    async def test_so_many_run_and_so_many_wait_and_the_next_is_refused(self):
        admission = bounded(2, 3)
        held = await turns(admission, 2)
        waiting = [asyncio.create_task(turns(admission, 1)) for _ in range(3)]
        await asyncio.sleep(0)
        assert (admission.turns.running, admission.turns.waiting) == (2, 3)
        assert refused(admission) >= 1
        assert len(held) == 2
        for task in waiting:
            task.cancel()

    async def test_waiting_ends_at_the_deadline(self):
        admission = bounded(1, 4)
        held = await turns(admission, 1)
        with pytest.raises(DeadlineError, match="it waited"):
            await turns(admission, 1, 0.01)
        assert (admission.turns.waiting, admission.turns.running, admission.queries.count) == (0, 1, len(held))

    async def test_a_late_slot_goes_to_the_next_query_within_its_deadline(self):
        admission, clock = timed(1, 4)
        [held] = await turns(admission, 1)
        doomed, fine = (asyncio.create_task(turns(admission, 1, deadline_s)) for deadline_s in (3.9, 60.0))
        await asyncio.sleep(0)
        clock.now += 2.0  # 1.9 s are left of the first one's time, and what has just been answered took 2 s
        await held.aclose()
        with pytest.raises(DeadlineError, match="it waited"):
            await doomed
        [held] = await fine
        assert (admission.turns.running, admission.turns.waiting) == (1, 0)
        await held.aclose()
        assert admission.turns.running == 0

    @pytest.mark.parametrize("moments", [0, 1, 2])
    async def test_a_cancelled_wait_uses_no_slot(self, moments):
        admission = bounded(1, 4)
        [held] = await turns(admission, 1)
        leaving, staying = (asyncio.create_task(turns(admission, 1)) for _ in range(2))
        await asyncio.sleep(0)
        await held.aclose()
        for _ in range(moments):
            await asyncio.sleep(0)
        leaving.cancel()  # in the very moment that its turn has come, or after it
        with suppress(asyncio.CancelledError):
            for left in await leaving:
                await left.aclose()
        [mine] = await staying
        assert admission.turns.running == 1
        await mine.aclose()
        assert (admission.turns.running, admission.queries.count) == (0, 0)

    def test_half_of_the_downloads_are_one_clients(self):
        downloads = bounded(1, 0, downloads=4).downloads
        first, _ = downloads.take("a"), downloads.take("a")
        with pytest.raises(Problem) as caught:
            downloads.take("a")
        assert (caught.value.status, caught.value.headers) == (429, {"Retry-After": "1"})
        with downloads.take("b"), downloads.take("c"), pytest.raises(Problem):
            downloads.take("d")
        first.release()
        first.release()
        assert downloads.count == 1
        with bounded(1, 0, downloads=1).downloads.take("a"):
            pass


class Requests:
    """Requests for a place and a slot; those of a list come while the slot is held."""

    def __init__(self, slots, places):
        self.slots, self.places, self.order, self.tasks = slots, places, [], []

    async def add(self, client, served=0, **how):
        self.tasks.append(asyncio.create_task(self._hold(len(self.tasks), client, served, how)))
        await asyncio.sleep(0)

    def closed(self):
        return self.slots.hold(Place("first"))

    async def _hold(self, number, client, served, how):
        with self.places.take(client, **how) as place:
            async with self.slots.hold(place, served=served):
                self.order.append((client, served, number))
                await asyncio.sleep(0)

    @property
    def clients(self):
        return [client for client, _, _ in self.order]

    async def all(self):
        return await asyncio.gather(*self.tasks, return_exceptions=True)


def one_slot(most):
    return Requests(Slots(1, Clock(100.0)), Places(most, "full", clock=Clock(100.0)))


class TestClients:
    async def test_of_one_client_those_that_were_served_least_and_wait_longest_come_first(self):
        requests = one_slot(100)
        async with requests.closed():
            for served in (7, 2, 0, 2):
                await requests.add("everybody", served)
        await requests.all()
        assert [(served, number) for _, served, number in requests.order] == [(0, 2), (2, 1), (2, 3), (7, 0)]

    async def test_where_all_places_are_taken_the_client_with_most_loses_its_newest_that_waits(self):
        requests = one_slot(4)
        async with requests.closed():
            for _ in range(5):
                await requests.add("hostile")
            await requests.add("alice")
            assert requests.places.count == 4
        results = await requests.all()
        assert [number for number, result in enumerate(results) if isinstance(result, Problem)] == [3, 4]
        assert (results[4].status, results[4].headers["Retry-After"]) == (429, "1")
        assert "alice" in requests.clients
        assert requests.places.count == requests.slots.running == 0

    @pytest.mark.parametrize(
        ("most", "clients", "kept", "lost"),
        [(3, "aaabc", (1, 2), [0, 4]), (5, "aaabbab", (), [5, 6])],
        ids=["a place that is kept", "clients with as many places"],
    )
    async def test_places_that_no_other_client_takes(self, most, clients, kept, lost):
        requests = one_slot(most)
        async with requests.closed():
            for number, client in enumerate(clients):
                await requests.add(client, kept=number in kept)
        results = await requests.all()
        assert [number for number, result in enumerate(results) if isinstance(result, Problem)] == lost

    async def test_a_client_counts_with_its_share_of_the_turns(self):
        admission, clock = timed(1, 100)
        await answer(admission, clock, 1.0)
        held = [admission.place("hostile", math.inf) for _ in range(50)]
        with pytest.raises(Problem):
            admission.check("hostile", 60.0)
        admission.check("alice", 60.0)
        with pytest.raises(Problem):
            admission.check("alice", 3.9)  # of two clients it is next but one, and a query may take twice as long
        assert len(held) == 50

    @given(st.lists(st.tuples(st.sampled_from(CLIENTS), st.integers(0, 2)), max_size=30))
    def test_no_client_gets_two_slots_while_another_ones_request_waits(self, arrivals):
        async def check():
            requests = one_slot(100)
            async with requests.closed():
                for client, served in arrivals:
                    await requests.add(client, served)
            await requests.all()
            return requests.clients

        waiting, order = Counter(client for client, _ in arrivals), run(check)
        assert len(order) == len(arrivals)
        let_in = set()  # since the round began
        for client in order:
            if client in let_in:
                assert all(name in let_in for name in waiting if waiting[name]), order
                let_in = set()
            let_in.add(client)
            waiting[client] -= 1


class TestPace:
    def holds(self, *times, left_s=60.0):
        clock, held = Clock(100.0), []

        async def sleep(seconds):
            held[-1] = seconds

        async def check():
            admission = bounded(1, 0, clock, sleep=sleep)
            for each in times:
                clock.now = 100.0 + each
                held.append(0.0)
                await admission.pace(left_s)

        run(check)
        return held

    def test_few_refusals_go_out_at_once_and_departed_clients_hold_back_none(self):
        assert self.holds(0, 0.15, 1, 2, 2.15) == [0.0] * 5
        assert self.holds(*[0] * 100, 3.2)[-1] == 0.0

    def test_many_go_out_at_a_bounded_rate_and_none_is_held_longer_than_three_seconds(self):
        held = self.holds(*[0] * 100)
        assert held[:3] == pytest.approx([0, 0.1, 0.2])
        assert max(held) == held[-1] == pytest.approx(3.0)

    @pytest.mark.parametrize("left_s", [0.5, -1.0])
    def test_none_is_held_longer_than_until_its_deadline(self, left_s):
        assert max(self.holds(*[0] * 100, left_s=left_s)) == max(left_s, 0.0)


class TestTime:
    async def busy(self, between_s):
        """Return an admission of two at once that has seen queries depart, one every `between_s`, while others waited.

        Also return what holds its turns, and its clock.
        """
        admission, clock = timed(2, 100)
        held = await turns(admission, 2)
        waiting = [asyncio.create_task(turns(admission, 1)) for _ in range(10)]
        await asyncio.sleep(0)
        for place in range(10):
            clock.now += between_s
            await held.pop(0).aclose()
            held += await waiting[place]
        return admission, held, clock

    @pytest.mark.parametrize("moments", [0, 5], ids=["its turn has just come", "it runs"])
    async def test_cancelled_clients_do_not_count_as_departures(self, moments):
        async def runs(admission):
            with admission.place("a", 60.0) as place:
                async with admission.turns.hold(place, 60.0):
                    await asyncio.get_running_loop().create_future()

        admission, clock = timed(1, 100)
        [held] = await turns(admission, 1)
        for _ in range(6):
            leaving = asyncio.create_task(runs(admission))
            await asyncio.sleep(0)
            staying = asyncio.create_task(turns(admission, 1))
            await asyncio.sleep(0)
            clock.now += 1.0
            await held.aclose()
            for _ in range(moments):
                await asyncio.sleep(0)
            leaving.cancel()
            [held] = await staying
        assert admission.rate == pytest.approx(1.0)

    async def test_a_query_that_would_miss_its_deadline_is_refused_at_once(self):
        admission, held, clock = await self.busy(0.5)
        clock.now += 0.5
        await held.pop().aclose()
        assert admission.turns.running == 1
        admission.check("a", 2.1)  # two queries, half a second each, and as much again for safety
        refused(admission, 1.9)

    async def after_one(self, took_s):
        """Return an admission of two at once that has answered one query, and its clock."""
        admission, clock = timed(2, 100)
        await answer(admission, clock, took_s)
        assert admission.rate is None
        return admission, clock

    async def test_before_a_rate_was_measured_queries_that_must_wait_count_as_long_as_the_last_ones_took(self):
        admission, clock = await self.after_one(1.0)
        await turns(admission, 2)
        admission.check("a", 3.1)  # the third query, of which two end a second, and as much again for safety
        refused(admission, 2.9)
        clock.now += 11
        admission.check("a", 0.1)

    async def test_a_cold_start_keeps_no_query_out_that_need_not_wait(self):
        admission, _ = await self.after_one(30.0)
        await turns(admission, 1)
        admission.check("a", 1.0)

    async def test_a_turn_needs_half_the_recent_service_time_left(self):
        admission, clock = timed(3, 100)
        for took in (0.1, 1.0, 1.0):
            await answer(admission, clock, took)
        held, *_others = await turns(admission, 3)
        hopeless, hopeful = (asyncio.create_task(turns(admission, 1, turn_s=turn_s)) for turn_s in (0.9, 60.0))
        await asyncio.sleep(0)
        await held.aclose()
        with pytest.raises(DeadlineError):
            await hopeless
        assert len(await hopeful) == 1

    async def test_departures_in_clumps_are_counted_over_several_of_them(self):
        admission, clock = timed(4, 100)
        held = await turns(admission, 4)
        waiting = [asyncio.create_task(turns(admission, 1)) for _ in range(40)]
        await asyncio.sleep(0)
        for clump in range(10):
            clock.now += 1.0
            for place in range(4):  # four end together, once a second
                await held.pop(0).aclose()
                held += await waiting[4 * clump + place]
            if clump > 2:
                assert admission.rate == pytest.approx(4.0, rel=0.3)

    @pytest.mark.parametrize("error", [None, asyncio.CancelledError()], ids=["answered", "left"])
    async def test_idle_time_does_not_count_between_departures(self, error):
        admission, held, clock = await self.busy(0.5)
        for each in held:
            await each.__aexit__(error and type(error), error, None)
        clock.now += 5
        held = await turns(admission, 2)
        waiting = [asyncio.create_task(turns(admission, 1)) for _ in range(2)]
        await asyncio.sleep(0)
        clock.now += 0.5
        await held.pop(0).aclose()
        assert admission.rate >= 2.0
        for task in waiting:
            task.cancel()

    async def test_an_idle_driver_accepts_every_query_and_old_measurements_say_nothing(self):
        admission, held, clock = await self.busy(0.5)
        for each in held:
            await each.aclose()
        admission.check("a", 0.001)
        clock.now += 11
        assert admission.rate is None

    async def test_nothing_is_learnt_while_everybody_gets_in(self):
        admission, clock = timed(4, 4)
        for _ in range(5):
            await answer(admission, clock, 3)
        assert admission.rate is None

    async def test_queries_that_wait_for_decoders_count_as_kept_out_where_more_are_here_than_can_run(self):
        admission, clock = timed(2, 100)
        decoding = [admission.place("a", math.inf) for _ in range(10)]
        for place in decoding:
            async with admission.turns.hold(place, math.inf):
                clock.now += 0.5
            place.release()
        assert admission.rate == pytest.approx(2.0)

    async def test_retry_after_is_behind_all_that_wait(self):
        admission, _, _ = await self.busy(0.5)
        waiting = [asyncio.create_task(turns(admission, 1)) for _ in range(20)]
        await asyncio.sleep(0)
        assert refused(admission, 0.1) == 11  # twenty at two a second, and itself
        for task in waiting:
            task.cancel()

    async def test_retry_after_grows_with_each_refused_client(self):
        admission, _, clock = await self.busy(2.0)
        waits = [refused(admission, 0.1) for _ in range(40)]
        assert waits == sorted(waits)
        assert waits[:4] == [2, 4, 6, 8]
        assert max(waits) == 60
        clock.now += 9  # 30 promises are left, of which the last is in 51 s
        assert refused(admission, 0.1) == 53


class TestBytes:
    async def test_bodies_are_bounded_together_and_given_back(self):
        budget, end, read = Bytes(100), asyncio.Event(), []

        async def answer(_scope, receive, _send):
            read.append(len((await receive())["body"]))
            await end.wait()

        async def ask(size, client="10.0.0.1"):
            sent = []

            async def receive():
                return {"type": "http.request", "body": bytes(size), "more_body": False}

            async def send(message):
                sent.append(message)

            async def respond(request, error):
                return problem_response(problem_of(error), request)

            scope = {"type": "http", "method": "POST", "path": "/", "headers": [], "client": (client, 9)}
            await RequestMiddleware(answer, Telemetry(Metrics({})), budget, respond)(scope, receive, send)
            return [(message["status"], dict(message["headers"])[b"retry-after"]) for message in sent[:1]]

        fitting = [asyncio.create_task(ask(40)) for _ in range(2)]
        await asyncio.sleep(0)
        assert await ask(9) == [(429, b"1")]
        fitting += [asyncio.create_task(ask(8)), asyncio.create_task(ask(12, "10.0.0.2"))]
        await asyncio.sleep(0)
        assert await ask(1, "10.0.0.3") == [(429, b"1")]
        end.set()
        assert await asyncio.gather(*fitting, ask(100)) == [[]] * 5
        assert (read, budget.held) == ([40, 40, 8, 12, 100], 0)

    @given(st.lists(st.integers(-100, 100)), st.integers(1, 50))
    def test_one_clients_large_bodies_keep_no_other_clients_small_ones_out(self, changes, small):
        budget, held = Bytes(400), []
        for change in changes:
            if change < 0 and held:
                held.pop(change % len(held)).release()
            with suppress(Problem):
                held.append(budget.hold("hostile", max(0, change)))
            with budget.hold("alice", small) as own:
                assert budget.held <= budget.most
                if not held:
                    own.add(budget.most - small)
        for each in held:
            each.release()
        assert budget.held == 0
        assert not budget.by_client  # no names of clients that are gone

    def test_the_last_eighth_is_for_clients_that_hold_no_more_than_an_eighth(self):
        budget = Bytes(80)
        with budget.hold("a", 60), budget.hold("b", 9):
            for client, size in (("a", 2), ("b", 2), ("c", 11)):
                with pytest.raises(Problem), budget.hold(client, size):
                    pass
            with budget.hold("b", 1), budget.hold("c", 10):
                assert budget.held == budget.most


STEPS = st.one_of(
    st.tuples(st.just("arrive"), st.sampled_from(CLIENTS), st.integers(1, 40)),
    st.tuples(st.sampled_from(["answer", "fail", "leave"]), st.integers(0, 30)),
)


def can_be_lost(place):
    return place.waiting is not None and not place.waiting.done() and not place.kept


class Driver:
    """Requests that hold bytes, are decoded by one of two decoders, and run until they are told how to end."""

    def __init__(self):
        self.admission, self.decoders = bounded(2, 3, held_bytes=100), Slots(2, Clock(100.0))
        self.tasks, self.ends, self.failing = [], [], set()

    def arrive(self, client, size, *, kept):
        self.ends.append(asyncio.Event())
        self.tasks.append(asyncio.create_task(self._request(client, size, len(self.ends) - 1, kept=kept)))

    def end(self, number, how):
        if not self.tasks:
            return
        number %= len(self.tasks)
        if how == "leave":
            self.tasks[number].cancel()
            return
        if how == "fail":
            self.failing.add(number)
        self.ends[number].set()

    async def end_all(self):
        for end in self.ends:
            end.set()
        return await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _request(self, client, size, number, *, kept):
        with self.admission.bytes.hold(client, size):
            place = self._place(client, kept=kept)
            try:
                with place, self.admission.bytes.hold(client, size):
                    async with self.decoders.hold(place):
                        await asyncio.sleep(0)
                    async with self.admission.turns.hold(place, math.inf):
                        await self.ends[number].wait()
                        if number in self.failing:
                            raise RuntimeError
            finally:
                place.release()

    def _place(self, client, *, kept):
        """Return a place; where there is none, no client has two more, or none of its that can be lost."""
        taken = {name: [*map(can_be_lost, own)] for name, own in self.admission.queries.taken.items()}
        try:
            return self.admission.place(client, math.inf, kept=kept)
        except Problem:
            largest = max(taken.values(), key=len)
            assert len(largest) < len(taken.get(client, ())) + 2 or not any(largest)
            raise

    def check(self):
        admission = self.admission
        assert 0 <= admission.bytes.held <= admission.bytes.most
        assert admission.queries.count <= admission.queries.most
        assert 0 <= admission.turns.running <= admission.in_flight
        assert 0 <= self.decoders.running <= self.decoders.count

    def held(self):
        turns, decoders = self.admission.turns, self.decoders
        waiting = turns.waiting + decoders.waiting
        return self.admission.bytes.held, self.admission.queries.count, turns.running, decoders.running, waiting


@given(st.lists(STEPS, max_size=60))
def test_bounds_hold_and_everything_comes_back_however_requests_end(steps):
    async def check():
        driver = Driver()
        for number, (kind, *how) in enumerate(steps):
            if kind == "arrive":
                driver.arrive(*how, kept=number % 5 == 0)
            else:
                driver.end(*how, kind)
            if number % 2:
                await settle()
            driver.check()
        ended = await driver.end_all()
        assert {type(end) for end in ended} <= {type(None), Problem, RuntimeError, asyncio.CancelledError}
        assert driver.held() == (0, 0, 0, 0, 0)

    run(check)
