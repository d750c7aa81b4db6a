import asyncio
from contextlib import AsyncExitStack

import pytest

from serfer.api.admission import Admission, RefusalPace, using
from serfer.api.http.problems import Problem
from serfer.core.errors import DeadlineError


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


async def turns(admission, count, deadline_s=60.0):
    """Take `count` turns that are free; each is held until what stands for it is closed, or forgotten."""
    held = []
    for _ in range(count):
        stack = AsyncExitStack()
        await stack.enter_async_context(admission.turn(deadline_s))
        held.append(stack)
    return held


def refused(admission, deadline_s=60.0):
    with pytest.raises(Problem) as caught:
        admission.check(deadline_s)
    assert caught.value.status == 429
    return int(caught.value.headers["Retry-After"])


def run(test):
    return asyncio.run(test())


class TestBounds:
    def test_so_many_run_and_so_many_wait_and_the_next_is_refused(self):
        async def check():
            admission = Admission(2, 3, Clock())
            held = await turns(admission, 2)
            waiting = [asyncio.create_task(turns(admission, 1)) for _ in range(3)]
            await asyncio.sleep(0)
            assert (admission.running, admission.waiting) == (2, 3)
            assert refused(admission) >= 1
            assert admission.shed == 1
            assert len(held) == 2
            for task in waiting:
                task.cancel()

        run(check)

    def test_a_slot_goes_to_the_longest_waiting_query(self):
        async def check():
            admission, came = Admission(1, 4, Clock()), []
            [held] = await turns(admission, 1)

            async def wait(name):
                async with admission.turn(60.0):
                    came.append(name)

            tasks = [asyncio.create_task(wait(name)) for name in "abc"]
            await asyncio.sleep(0)
            await held.aclose()
            await asyncio.gather(*tasks)
            assert came == ["a", "b", "c"]
            assert admission.running == 0

        run(check)

    def test_no_queue_at_all(self):
        async def check():
            admission = Admission(1, 0, Clock())
            held = await turns(admission, 1)
            refused(admission)
            assert len(held) == 1

        run(check)

    def test_waiting_ends_at_the_deadline(self):
        async def check():
            admission = Admission(1, 4)
            held = await turns(admission, 1)
            with pytest.raises(DeadlineError, match="it waited"):
                await turns(admission, 1, 0.01)
            assert (admission.waiting, admission.running) == (0, len(held))

        run(check)

    def test_a_late_slot_goes_to_the_next_query_within_its_deadline(self):
        async def check():
            clock = Clock()
            admission = Admission(1, 4, clock)
            [held] = await turns(admission, 1)
            doomed, fine = (asyncio.create_task(turns(admission, 1, deadline_s)) for deadline_s in (3.9, 60.0))
            await asyncio.sleep(0)
            clock.now += 2.0  # 1.9 s are left of the first one's time, and what has just been answered took 2 s
            await held.aclose()
            with pytest.raises(DeadlineError, match="it waited"):
                await doomed
            [held] = await fine
            assert (admission.running, admission.waiting) == (1, 0)
            await held.aclose()
            assert admission.running == 0

        run(check)

    def test_a_cancelled_wait_uses_no_slot(self):
        async def check():
            admission = Admission(1, 4, Clock())
            [held] = await turns(admission, 1)
            leaving, staying = (asyncio.create_task(turns(admission, 1)) for _ in range(2))
            await asyncio.sleep(0)
            await held.aclose()
            leaving.cancel()  # in the very moment that its turn has come
            [mine] = await staying
            assert admission.running == 1
            await mine.aclose()
            assert admission.running == 0

        run(check)


class TestReservations:
    def test_a_reserved_place_is_taken_from_the_next_and_used_once(self):
        async def check():
            admission = Admission(1, 1, Clock())
            first, second = admission.reserve(60.0), admission.reserve(60.0)
            refused(admission)
            with using(first):
                [held] = await turns(admission, 1)
            assert (admission.running, admission.reserved) == (1, 1)
            refused(admission)
            first.release()
            second.release()
            admission.check(60.0)
            await held.aclose()
            assert (admission.running, admission.reserved) == (0, 0)

        run(check)

    def test_a_reserved_query_is_not_refused(self):
        async def check():
            admission = Admission(1, 1, Clock())
            place = admission.reserve(60.0)
            held = await turns(admission, 1)
            refused(admission)
            with using(place):
                waiting = asyncio.create_task(turns(admission, 1))
            await asyncio.sleep(0)
            assert admission.waiting == 1
            await held[0].aclose()
            assert len(await waiting) == 1

        run(check)


class TestPace:
    def holds(self, *times, left_s=60.0):
        """Return how long refusals at these times are held."""
        clock, held = Clock(), []

        async def sleep(seconds):
            held[-1] = seconds

        async def check():
            pace = RefusalPace(clock, sleep)
            for each in times:
                clock.now = 100.0 + each
                held.append(0.0)
                await pace.hold(left_s)

        run(check)
        return held

    def test_few_refusals_go_out_at_once(self):
        assert self.holds(0, 0.15, 1, 2, 2.15) == [0.0] * 5

    def test_many_go_out_at_a_bounded_rate_and_none_is_held_longer_than_three_seconds(self):
        held = self.holds(*[0] * 100)
        assert held[:3] == pytest.approx([0, 0.1, 0.2])
        assert max(held) == held[-1] == pytest.approx(3.0)

    @pytest.mark.parametrize("left_s", [0.5, -1.0])
    def test_none_is_held_longer_than_until_its_deadline(self, left_s):
        assert max(self.holds(*[0] * 100, left_s=left_s)) == max(left_s, 0.0)

    def test_departed_clients_hold_back_no_requests(self):
        assert self.holds(*[0] * 100, 3.2)[-1] == 0.0


class TestTime:
    async def busy(self, clock, between_s, count=2):
        """Return an admission that has seen queries depart, one every `between_s` seconds, while others waited."""
        admission = Admission(count, 100, clock)
        held = await turns(admission, count)
        waiting = [asyncio.create_task(turns(admission, 1)) for _ in range(10)]
        await asyncio.sleep(0)
        for place in range(10):
            clock.now += between_s
            await held.pop(0).aclose()
            held += await waiting[place]
        return admission, held

    def test_the_rate_is_that_of_departures_while_others_wait(self):
        async def check():
            admission, _ = await self.busy(Clock(), 0.5)
            assert admission.rate == pytest.approx(2.0)

        run(check)

    @pytest.mark.parametrize("moments", [0, 5], ids=["its turn has just come", "it runs"])
    def test_cancelled_clients_do_not_count_as_departures(self, moments):
        async def runs(admission):
            async with admission.turn(60.0):
                await asyncio.get_running_loop().create_future()

        async def check():
            clock = Clock()
            admission = Admission(1, 100, clock)
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

        run(check)

    def test_a_query_that_would_miss_its_deadline_is_refused_at_once(self):
        async def check():
            clock = Clock()
            admission, held = await self.busy(clock, 0.5)
            clock.now += 0.5
            await held.pop().aclose()
            assert admission.running == 1
            admission.check(2.1)  # two queries, half a second each, and as much again for safety
            refused(admission, 1.9)

        run(check)

    async def after_one(self, clock, took_s):
        """Return an admission of two at once that has answered one query."""
        admission = Admission(2, 100, clock)
        [held] = await turns(admission, 1)
        clock.now += took_s
        await held.aclose()
        assert admission.rate is None
        return admission

    def test_before_a_rate_was_measured_queries_that_must_wait_count_as_long_as_the_last_ones_took(self):
        async def check():
            clock = Clock()
            admission = await self.after_one(clock, 1.0)
            await turns(admission, 2)
            admission.check(3.1)  # the third query, of which two end a second, and as much again for safety
            refused(admission, 2.9)
            clock.now += 11
            admission.check(0.1)

        run(check)

    def test_a_cold_start_keeps_no_query_out_that_need_not_wait(self):
        async def check():
            admission = await self.after_one(Clock(), 30.0)
            await turns(admission, 1)
            admission.check(1.0)

        run(check)

    def test_a_turn_needs_half_the_recent_service_time_left(self):
        async def check():
            clock = Clock()
            admission = Admission(3, 100, clock)
            for took in (0.1, 1.0, 1.0):
                [held] = await turns(admission, 1)
                clock.now += took
                await held.aclose()
            held, *_others = await turns(admission, 3)
            hopeless, hopeful = (asyncio.create_task(turns(admission, 1, deadline_s=60.0)) for _ in range(2))
            await asyncio.sleep(0)
            admission._waiting[0] = (admission._waiting[0][0], clock.now + 0.9)
            await held.aclose()
            with pytest.raises(DeadlineError):
                await hopeless
            assert len(await hopeful) == 1

        run(check)

    def test_departures_in_clumps_are_counted_over_several_of_them(self):
        async def check():
            clock = Clock()
            admission = Admission(4, 100, clock)
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

        run(check)

    def test_idle_time_does_not_count_between_departures(self):
        async def check():
            clock = Clock()
            admission, held = await self.busy(clock, 0.5)
            for each in held:
                await each.aclose()
            clock.now += 5
            held = await turns(admission, 2)
            waiting = [asyncio.create_task(turns(admission, 1)) for _ in range(2)]
            await asyncio.sleep(0)
            clock.now += 0.5
            await held.pop(0).aclose()
            assert admission.rate > 2.0
            for task in waiting:
                task.cancel()

        run(check)

    def test_an_idle_driver_accepts_every_query(self):
        async def check():
            admission, held = await self.busy(Clock(), 0.5)
            for each in held:
                await each.aclose()
            admission.check(0.001)

        run(check)

    def test_old_measurements_say_nothing(self):
        async def check():
            clock = Clock()
            admission, _ = await self.busy(clock, 0.5)
            clock.now += 11
            assert admission.rate is None

        run(check)

    def test_nothing_is_learnt_while_everybody_gets_in(self):
        async def check():
            clock = Clock()
            admission = Admission(4, 4, clock)
            for _ in range(5):
                [held] = await turns(admission, 1)
                clock.now += 3
                await held.aclose()
            assert admission.rate is None

        run(check)

    def test_retry_after_grows_with_each_refused_client(self):
        async def check():
            clock = Clock()
            admission, _ = await self.busy(clock, 2.0)
            waits = [refused(admission, 0.1) for _ in range(40)]
            assert waits == sorted(waits)
            assert waits[:4] == [2, 4, 6, 8]
            assert max(waits) == 60
            clock.now += 9  # 30 promises are left, of which the last is in 51 s
            assert refused(admission, 0.1) == 53

        run(check)
