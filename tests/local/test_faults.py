"""Faults on purpose: each hits what it should and nothing else, and every one is counted."""

import json
import signal
import time

import pytest

from serfer.core.errors import UsageError
from serfer.local.lambda_.access import fetch
from serfer.local.lambda_.bootstrap import slowed
from serfer_bench.core.faults import Faults, Injector
from tests.local.test_lambda_service import Local, probe

PATIENCE = 30.0


def reported_counts(local):
    return json.loads(fetch(local.service.url, "/serfer/counts", local.service.access, 20, 1 << 20))


class TestInjector:
    def test_a_share_of_invocations_is_throttled(self):
        chances = iter([0.0, 0.299, 0.3, 0.9])
        injector = Injector(Faults(throttle=0.3), lambda: next(chances))
        assert [injector.throttles() for _ in range(4)] == [True, True, False, False]
        assert not Injector(Faults(), lambda: pytest.fail("a chance was taken")).throttles()

    @pytest.mark.parametrize(("seed", "first"), [(0, 3), (1, 2), (3, 0)])
    def test_one_environment_in_so_many_is_slow_in_an_order_that_the_seed_fixes(self, seed, first):
        injector = Injector(Faults(slow_one_in=4, slow_factor=50, seed=seed))
        factors = [injector.slowness() for _ in range(12)]
        assert [number for number, factor in enumerate(factors) if factor == 50] == [first, first + 4, first + 8]
        assert set(factors) == {1.0, 50.0}

    @pytest.mark.parametrize(
        "wrong", [{"throttle": 1.0}, {"throttle": -0.1}, {"slow_one_in": -1}, {"slow_factor": 0.5}]
    )
    def test_a_fault_that_cannot_be_is_refused(self, wrong):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            Faults(**wrong)


class TestSlowHandler:
    @pytest.fixture
    def rests(self, monkeypatch):
        """How long a slow handler rested each time; no time passes while it does."""
        rests = []
        monkeypatch.setattr("serfer.local.lambda_.bootstrap.time.sleep", rests.append)
        before = signal.getsignal(signal.SIGALRM)
        yield rests
        signal.signal(signal.SIGALRM, before)

    def test_it_rests_in_proportion_while_it_works_and_when_it_is_done(self, rests):
        during = []

        def work(event, _context):
            begun = time.perf_counter()
            while not rests or time.perf_counter() < begun + 0.02:  # a busy machine may skip the first rest
                assert time.perf_counter() < begun + PATIENCE
            during[:] = rests
            return event

        started = time.perf_counter()
        assert slowed(work, 10)("done", None) == "done"
        took = time.perf_counter() - started
        assert during
        assert len(rests) > len(during)
        assert 9 * 0.02 <= sum(rests) <= 9 * took
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)

    def test_an_error_passes_and_no_timer_is_left(self, rests):
        with pytest.raises(LookupError):
            slowed(lambda *_: {}["nothing"], 10)(None, None)
        assert rests
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


class TestService:
    def test_throttled_invocations_are_refused_as_aws_does_and_start_nothing(self, runtime):
        faults = Faults(throttle=0.5)
        with Local(runtime, probe("echo"), conditions=Injector(faults)) as local:
            chance = Injector(faults)
            for kind in ("RequestResponse", "Event") * 8:
                if chance.throttles():
                    with pytest.raises(local.client.exceptions.TooManyRequestsException) as refusal:
                        local.invoke("echo", InvocationType=kind)
                    assert refusal.value.response["ResponseMetadata"]["HTTPStatusCode"] == 429
                else:
                    local.invoke("echo", InvocationType=kind)
            counts = reported_counts(local)
        assert 0 < counts["throttled"] < 16
        assert 0 < counts["events"] < 16 - counts["throttled"]

    def test_an_event_is_delivered_twice_under_one_id_with_room_for_both(self, runtime):
        with Local(runtime, probe("fail"), conditions=Injector(Faults(twice=True)), concurrency=1) as local:
            answer = local.invoke("fail", InvocationType="Event")[1]
            request_id = answer["ResponseMetadata"]["RequestId"]
            for _ in range(2):
                local.line(f"failing {request_id}")
            counts = reported_counts(local)
            assert (counts["events"], counts["doubled"], counts["invocations"]) == (1, 1, {"fail": 2})

    def test_a_synchronous_invocation_is_never_doubled(self, runtime):
        with Local(runtime, probe("echo"), conditions=Injector(Faults(twice=True))) as local:
            local.invoke("echo")
            assert local.invoke("echo")[0]["calls"] == 2

    def test_one_environment_in_so_many_is_slow(self, runtime):
        with Local(
            runtime, probe("toil"), probe("echo"), conditions=Injector(Faults(slow_one_in=2, slow_factor=20))
        ) as local:
            local.invoke("echo")
            assert reported_counts(local)["slowed"] == 0
            started = time.perf_counter()
            assert local.invoke("toil", 0.02)[0] == 0.02
            assert time.perf_counter() - started >= 20 * 0.02
            assert local.service.counts.slowed == reported_counts(local)["slowed"] == 1

    def test_a_slow_environment_that_cannot_be_loaded_says_why(self, runtime):
        with Local(runtime, probe("broken", directory="broken"), conditions=Injector(Faults(slow_one_in=1))) as local:
            assert local.error("broken")["errorMessage"] == "broken from the start"

    def test_starts_failures_and_refusals_are_counted_without_faults(self, runtime):
        with Local(runtime, probe("echo"), probe("fail")) as local:
            for name in ("echo", "echo", "fail"):
                local.invoke(name)
            counts = reported_counts(local)
        none = dict.fromkeys(("refused", "throttled", "events", "doubled", "slowed"), 0)
        assert counts == {"invocations": {"echo": 2, "fail": 1}, "failed": 1, **none}
