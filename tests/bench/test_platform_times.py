"""Times and processors of a platform that the local Lambda service takes on."""

import base64
import itertools
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from botocore.exceptions import HTTPClientError
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.errors import UsageError
from serfer.local.lambda_.environment import Environment
from serfer_bench.core.faults import Faults, Injector
from serfer_bench.core.platform_times import PlatformTimes, tail
from tests.local.conftest import runtime as runtime  # noqa: PLC0414 - a fixture
from tests.local.test_lambda_service import PATIENCE, Local, probe


@given(mean=st.floats(0.001, 10), first=st.integers(0, 200), count=st.integers(50, 400))
def test_any_fifty_draws_of_a_tail_have_about_its_mean(mean, first, count):
    draws = [*itertools.islice(tail(mean), first, first + count)]
    assert min(draws) > 0
    assert sum(draws) / count == pytest.approx(mean, rel=0.12)  # 0.115 at most


@pytest.mark.parametrize("wrong", [{"init_s": -1}, {"init_s": 61}, {"package_rate": float("nan")}, {"vcpu_speed": 0}])
def test_times_that_cannot_be_are_refused(wrong):
    with pytest.raises(UsageError, match=next(iter(wrong))):
        PlatformTimes(**wrong)


def test_processors_go_by_memory_and_slow_ones_are_one_at_most():
    assert PlatformTimes(memory_per_vcpu=1000).processors(2500) == 2.5
    slow = PlatformTimes(memory_per_vcpu=1000, vcpu_speed=0.5)
    assert [slow.processors(memory) for memory in (500, 1000, 2500)] == [0.25, 0.5, 0.5]


def log_of(answer):
    return base64.b64decode(answer["LogResult"]).decode()


def test_an_initialisation_takes_its_time_and_a_warm_invocation_none_of_it(runtime):
    faults = Faults(times=PlatformTimes(init_s=0.8, start_tail_s=0.01, invoke_tail_s=0.01))
    with Local(runtime, probe("echo"), conditions=Injector(faults)) as local:
        first, later = (log_of(local.invoke("echo", LogType="Tail")[1]) for _ in range(2))
    assert float(re.search(r"Init Duration: ([\d.]+) ms", first)[1]) >= 800
    assert "Init" not in later


def test_stopping_does_not_wait_for_environments_that_have_no_place_yet(runtime, monkeypatch):
    """Here their package takes an hour."""
    placing, start_in = threading.Event(), Environment.start_in

    def noted(environment, seconds):
        start_in(environment, seconds)
        placing.set()

    monkeypatch.setattr(Environment, "start_in", noted)
    with Local(runtime, probe("echo"), conditions=Injector(Faults(times=PlatformTimes(package_rate=1.0)))) as local:
        local.service._sizes["echo"] = 3600
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(local.invoke, "echo")
            assert placing.wait(PATIENCE)
            local.do(local.service.stop)
            with pytest.raises(HTTPClientError):
                waiting.result()
        assert local.service.environments == 0


def test_a_function_has_the_processor_time_of_its_memory(runtime):
    times = PlatformTimes(memory_per_vcpu=1769, vcpu_speed=0.2)
    with Local(runtime, probe("toil"), conditions=Injector(Faults(times=times))) as local:
        local.invoke("toil", 0.0)
        started = time.perf_counter()
        local.invoke("toil", 0.1)  # s of a processor's time, of which it has a fifth
        assert time.perf_counter() - started >= 0.4
