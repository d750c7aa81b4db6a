"""The service with a pipeline whose stages stop where a test wants them to."""

import asyncio
import time
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest

from serfer.api.admission import Admission
from serfer.api.decoding.decoders import DecodedImages
from serfer.api.http.problems import Problem, problem_of
from serfer.api.service import Service, ServiceQuery
from serfer.core.errors import DeadlineError, LambdaThrottledError, LambdaUnavailableError, UsageError
from serfer.drivers.driver import RequestContext
from serfer.pipeline.health import Health
from serfer.pipeline.query import Wanted
from tests.support.served import Observed, until


class Pipeline:
    """Begins queries whose futures the test ends."""

    def __init__(self):
        self.begun, self.started, self.health_looks = [], [], []
        self.next_health = Health()

    target, plan, in_threads = None, SimpleNamespace(classifies=True), False
    recipe = SimpleNamespace(shape=SimpleNamespace(elements=1))

    async def answer(self, _pixels, *, deadline_s, context, **_):
        future = asyncio.get_running_loop().create_future()
        self.begun.append((future, deadline_s, context))
        return await future

    async def begin(self, count=1):
        """Wait until so many queries have begun, and return the future of the last of them."""
        await until(lambda: len(self.begun) >= count)
        return self.begun[count - 1][0]

    async def end_all(self, count):
        """Let so many queries have their numbers for results, one after the other."""
        for number in range(count):
            (await self.begin(number + 1)).set_result(Served(number))

    def function_load(self):
        return None

    async def health(self, *, start=False):
        self.health_looks.append(start)
        return self.next_health


CLASSES = Wanted(1, classes=True)


class Served(str):
    """A result that only has to be told from others."""

    __slots__ = ()
    report, outputs = SimpleNamespace(target="serverless", plan="p", latency_ms=1.0), {}


class NoDecoders:
    """Decoders that have nothing to do, or wait until they are cancelled."""

    def __init__(self):
        self.endless, self.cancelled, self.decoded = False, 0, 0

    async def decode(self, images, _names, _recipe, _place):
        try:
            await asyncio.sleep(1e6 if self.endless else 0)
            self.decoded += 1
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return DecodedImages(images, 0.0, 0.0, ((1, 1),) * len(images))


def query(deadline_s=60.0, client="a", held=None):
    return ServiceQuery("m", time.monotonic() + deadline_s, deadline_s, RequestContext("request-1"), client, None, held)


@pytest.fixture
def pipeline():
    return Pipeline()


@pytest.fixture
def observed():
    return Observed()


@pytest.fixture
def service(pipeline, observed):
    return Service({"m": pipeline}, Admission(1, 4), observed, NoDecoders())


def classify(service, **changes):
    return asyncio.create_task(service.predict(query(**changes), [b"x"], ["x"], CLASSES))


class TestQueries:
    async def test_a_cancelled_caller_cancels_the_query(self, service, pipeline, observed):
        task = classify(service)
        running = await pipeline.begin()
        task.cancel()
        await asyncio.wait((task,))
        assert running.cancelled()
        assert service.admission.turns.running == 0
        assert len(observed.failures) == 1

    async def test_a_query_that_is_cancelled_while_it_is_decoded_never_runs(self, service, pipeline):
        service.decoders.endless = True
        task = classify(service)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        assert (service.decoders.cancelled, service.admission.queries.count, pipeline.begun) == (1, 0, [])

    async def test_waiting_counts_towards_the_deadline(self, service, pipeline):
        first, second = classify(service), classify(service)
        await pipeline.begin()
        await asyncio.sleep(0.05)
        await pipeline.end_all(2)
        assert pipeline.begun[1][1] <= 60.0 - 0.05
        assert [(await task).result for task in (first, second)] == ["0", "1"]
        assert (await second).queued_s >= 0.05

    async def test_a_deadline_that_passes_in_the_queue_is_a_deadline_error(self, service, pipeline, observed):
        first = classify(service)
        await pipeline.begin()
        with pytest.raises(DeadlineError):
            await classify(service, deadline_s=0.01)
        assert [type(error) for _, error in observed.failures] == [DeadlineError]
        await pipeline.end_all(1)
        await first

    async def test_a_deadline_stops_decoding(self, service, pipeline, observed):
        service.decoders.endless = True
        with pytest.raises(DeadlineError, match="deadline of 500 ms: its images were not decoded; allow more"):
            await classify(service, deadline_s=0.5)
        assert (service.decoders.cancelled, service.admission.turns.running, pipeline.begun) == (1, 0, [])
        assert [type(error) for _, error in observed.failures] == [DeadlineError]

    async def test_a_deadline_stops_a_query_that_runs(self, service, pipeline):
        with pytest.raises(DeadlineError, match="deadline of 50 ms: it was running"):
            await classify(service, deadline_s=0.05)
        assert pipeline.begun[0][0].cancelled()

    async def test_images_that_wait_for_a_decoder_keep_no_query_from_running(self, service, pipeline):
        service.decoders.endless = True
        hostile = [classify(service) for _ in range(3)]
        await until(lambda: all(not task.done() for task in hostile))
        await asyncio.sleep(0)
        service.decoders.endless = False
        served = classify(service)
        await pipeline.end_all(1)
        assert (await served).result == "0"
        for task in hostile:
            task.cancel()
        await asyncio.wait(hostile)

    async def test_a_query_without_room_is_refused_before_an_image_is_decoded(self, pipeline, observed):
        service = Service({"m": pipeline}, Admission(1, 1), observed, NoDecoders())
        together = [classify(service) for _ in range(4)]  # the first look finds room for each of them
        await until(lambda: pipeline.begun and sum(task.done() for task in together) == 2)
        assert service.decoders.decoded == 2
        await pipeline.end_all(2)
        ended = await asyncio.gather(*together, return_exceptions=True)
        assert [isinstance(each, Problem) for each in ended].count(True) == 2
        assert (service.admission.turns.running, service.admission.queries.count) == (0, 0)

    async def test_client_with_all_places_loses_its_newest_query_to_another_client(self, service, pipeline, observed):
        flood = [classify(service) for _ in range(5)]
        await until(lambda: service.admission.turns.waiting == 4)
        with pytest.raises(UsageError):  # what is refused takes nobody's place
            await service.predict(query(client="b"), [b"image"], ["a.png"], Wanted(0))
        served = classify(service, client="b")
        await until(flood[-1].done)
        await pipeline.end_all(5)
        assert (await served).result == "2"  # after one of the flood that ran, and one whose line was first
        ended = await asyncio.gather(*flood, return_exceptions=True)
        assert [isinstance(end, Problem) for end in ended] == [False] * 4 + [True]
        assert len(observed.failures) == 1

    async def test_decoded_pixels_count_with_the_bytes_that_requests_hold(self, service, pipeline):
        budget = service.admission.bytes
        budget.most = 1
        with budget.hold("a") as held:
            first = classify(service, held=held)
            await pipeline.begin()
            with pytest.raises(Problem, match="hold all the memory"):
                await classify(service, held=budget.hold("b"))
            assert service.admission.queries.count == 1
            await pipeline.end_all(1)
            await first
        assert (budget.held, service.admission.queries.count) == (0, 0)

    async def test_a_passed_deadline_is_a_deadline_error(self, service, pipeline):
        for deadline_s in (0.0, -1.0):
            with pytest.raises(DeadlineError, match="nothing was begun"):
                await classify(service, deadline_s=deadline_s)
        assert not pipeline.begun

    async def test_a_query_knows_the_request_that_it_came_with(self, service, pipeline):
        task = classify(service)
        await pipeline.end_all(1)
        assert pipeline.begun[0][2].request == "request-1"
        await task


class TestHealth:
    async def test_a_query_that_was_throttled_raises_no_doubt(self, service, pipeline):
        task = classify(service)
        (await pipeline.begin()).set_exception(LambdaThrottledError("Rate Exceeded."))
        with pytest.raises(LambdaThrottledError) as caught:
            await task
        problem = problem_of(caught.value)
        assert (problem.status, problem.slug) == (429, "overloaded")
        assert 1 <= int(problem.headers["Retry-After"]) <= 3
        assert (await service.health()).ready
        assert pipeline.health_looks == [False]  # none has to start, which would take more room

    async def test_looks_at_the_same_time_are_one(self, service, pipeline):
        results = await asyncio.gather(*(service.health() for _ in range(5)))
        assert results == [Health()] * 5
        assert pipeline.health_looks == [False]

    async def test_the_last_health_is_returned_while_a_check_runs(self, service, pipeline, monkeypatch):
        assert (await service.health()).ready
        looking = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(pipeline, "health", lambda **_: looking)
        service._looked -= 3.0
        assert (await asyncio.wait_for(service.health(), 60)).ready
        looking.set_result(Health(store="gone"))
        await until(lambda: service._looking is None)
        assert (await service.health()) == Health(store="gone")

    @pytest.mark.parametrize("first", [Health(functions="gone"), Health(busy=True)])
    async def test_after_a_failure_of_functions_they_have_to_start(self, service, pipeline, first):
        """A check that was throttled does not clear it."""
        task = classify(service)
        (await pipeline.begin()).set_exception(LambdaUnavailableError("gone"))
        with pytest.raises(LambdaUnavailableError):
            await task
        for pipeline.next_health in (first, Health(), Health()):
            service._looked = float("-inf")
            assert await service.health() == Health(functions=pipeline.next_health.functions)
        assert pipeline.health_looks == [True, True, False]


WELL, ILL = Health(), Health(functions="gone")


@pytest.mark.parametrize(
    ("model", "variants", "health"),
    [
        (WELL, [ILL, WELL], WELL),
        (None, [ILL, WELL], WELL),
        (WELL, [ILL, ILL], ILL),
        (WELL, [asyncio.CancelledError()], WELL),
    ],
)
async def test_of_variants_beside_models_one_that_is_well_suffices_and_one_that_is_closed_is_left_out(
    model, variants, health
):
    pipelines = {}
    for name, look in {"m": model, **{f"a:{number}": look for number, look in enumerate(variants)}}.items():
        if look is not None:
            pipelines[name] = SimpleNamespace(health=AsyncMock(side_effect=[look]), function_load=lambda: None)
    models = {"m": pipelines["m"]} if model else {}
    service = Service(models, Admission(1, 4), Observed(), NoDecoders())
    service.pipelines |= pipelines
    assert await service.health() == health


def test_work_is_late_at_its_deadline_and_its_own_errors_stay_its_own():
    async def stopped(seconds):
        async with query(seconds).in_time("it was tried"):
            await asyncio.Event().wait()

    async def raises(error):
        async with query().in_time("it was tried"):
            raise error

    for seconds in (0.01, -1.0):
        with pytest.raises(DeadlineError, match="it was tried; allow more"):
            asyncio.run(stopped(seconds))
    for own in (TimeoutError("of a store"), asyncio.CancelledError()):
        with pytest.raises(type(own)) as raised:
            asyncio.run(raises(own))
        assert raised.value is own
