"""`serfer map` yields to a service's online load, and resumes."""

import json
import re
import signal
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

import serfer as package
from serfer.core.errors import LambdaThrottledError
from serfer.pipeline.blocking import Pipeline
from tests.mapping.plans import HEIGHT, WIDTH, assert_equal, expected, read
from tests.raster.files import pixels
from tests.support.http_stub import serving

WINDOWS = 20


def load(share, **fields):
    return (200, {}, json.dumps({"utilisation": share, "throttled": 0, "latency": None, **fields}).encode())


@pytest.fixture
def service(monkeypatch):
    """A service whose load a test says; it is asked every hundredth of a second."""
    monkeypatch.setattr("serfer.offline.gate.PERIOD_S", 0.01)
    with serving() as server:
        yield server


def asked(service, times):
    for _ in range(times):
        assert service.came.acquire(timeout=60)


class TestYielding:
    def test_nothing_starts_beside_online_load_and_everything_is_done_after_it(
        self, service, image, plan, tmp_path, monkeypatch
    ):
        submitted, submit = [], Pipeline.submit

        def counted(self, *arguments, **options):
            submitted.append(1)
            return submit(self, *arguments, **options)

        monkeypatch.setattr(Pipeline, "submit", counted)
        service.replies = [load(0.9)]
        out = tmp_path / "result.tif"
        with ThreadPoolExecutor() as threads:
            job = threads.submit(package.map, image, plan, out, workers="inprocess", yield_to=[service.url])
            asked(service, 20)
            assert (submitted, job.done()) == ([], False)
            service.replies = [load(0.1)]
            report = job.result(60)
        assert (report.computed, len(submitted)) == (WINDOWS, WINDOWS)
        assert report.paused_s > 0
        assert_equal(read(out), expected(pixels(HEIGHT, WIDTH)))

    def test_a_pause_is_named_and_its_time_reported(self, service, serfer, command):
        service.replies = [*[load(0.0)] * 2, *[load(0.0, latency=1.5)] * 40, load(0.2)]
        done = serfer(*command, "--yield-to", service.url, "--set", "concurrency=1").ends(0)
        assert re.search(r"paused: queries of 127.0.0.1:\d+ take 1.50 of their profile, above 1.00", done.err)
        assert re.search(r"paused for [\d.]+ s beside online load", done.out)

    def test_its_thresholds_are_the_users(self, service, serfer, command):
        service.replies = [load(0.6, latency=1.5)]
        chosen = ("--set", "yield_utilisation=0.8", "--set", "yield_latency=2")
        assert serfer(*command, "--yield-to", service.url, *chosen, "--json").ends(0).report["paused_s"] == 0.0
        serfer(*command, "--yield-to", service.url, "--set", "yield_utilisation=1.5").ends(2, "at most 1")

    @pytest.mark.killed
    def test_an_interrupt_while_it_is_paused_keeps_what_is_done(self, service, serfer, command, tmp_path):
        service.replies = [load(0.9)]
        again = [*map(str, command), "--yield-to", service.url]
        process = subprocess.Popen(
            [sys.executable, "-m", "serfer", *again], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        asked(service, 2)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130, errors
        service.replies = [load(0.0)]
        report = serfer(*again, "--json").report
        assert (report["resumed"] + report["computed"], report["result"]) == (WINDOWS, str(tmp_path / "result.tif"))

    @pytest.mark.parametrize(("reply", "code"), [((404, {}, b""), 2), ((401, {}, b""), 2), ((200, {}, b"{}"), 3)])
    def test_a_service_that_says_no_load_is_refused_before_anything_starts(
        self, service, serfer, command, tmp_path, reply, code
    ):
        service.replies = [reply]
        serfer(*command, "--yield-to", service.url).ends(code, "--yield-to 127.0.0.1")
        assert not (tmp_path / "result.tif.parts").exists()

    def test_a_dry_run_asks_nobody(self, service, serfer, command):
        assert serfer(*command, "--dry-run", "--yield-to", service.url).code == 0
        assert service.requests == []


class TestThrottledWindows:
    """Lambda has no room for some windows' queries."""

    @pytest.fixture
    def refuse(self, monkeypatch):
        submit = Pipeline.submit

        def first(count):
            left = iter(range(count))

            def refusing(self, *arguments, **options):
                if next(left, None) is None:
                    return submit(self, *arguments, **options)
                future = Future()
                future.set_exception(LambdaThrottledError("no room"))
                return future

            monkeypatch.setattr(Pipeline, "submit", refusing)

        return first

    def test_they_are_computed_later(self, serfer, command, refuse, tmp_path):
        refuse(10)
        report = serfer(*command, "--json").ends(0).report
        assert (report["computed"], report["failures"]) == (WINDOWS, [])
        assert_equal(read(tmp_path / "result.tif"), expected(pixels(HEIGHT, WIDTH)))

    def test_a_map_for_which_there_is_never_room_ends(self, serfer, command, refuse):
        refuse(10_000)
        serfer(*command).ends(4, "no room")
