"""Functions of the local Lambda service are changed and published; the probe finds the constants that it takes on."""

import io
import queue
import socket
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from urllib.parse import urlsplit

import pytest

from serfer.core.errors import InputError
from serfer.core.sigv4 import Access, sign
from serfer.settings import load_settings
from serfer_bench.core.faults import Faults, Injector
from serfer_bench.core.platform_times import PlatformTimes
from serfer_bench.study.aws.constants import EXTENT, SETS, probed, rows_of
from serfer_bench.study.aws.function_changes import ChangeableLambda
from serfer_bench.study.aws.probed_function import ProbedFunction, RefusedError
from tests.bench.test_platform_times import log_of
from tests.local.conftest import runtime as runtime  # noqa: PLC0414 - a fixture
from tests.local.test_lambda_service import HERE, PATIENCE, Local, probe


@pytest.fixture
def local(runtime):
    conditions = Injector(Faults(times=PlatformTimes(restore_s=0.3)))
    with Local(runtime, probe("echo"), make=ChangeableLambda, conditions=conditions, concurrency=7) as running:
        yield running


@pytest.fixture
def function(local):
    return ProbedFunction(local.client, "echo", HERE / "probe")


def test_another_memory_starts_new_environments_of_it(local, function):
    before = local.invoke("echo")[0]["pid"]
    assert local.invoke("echo")[0]["pid"] == before
    function.set_memory(1024)
    payload, answer = local.invoke("echo", LogType="Tail")
    assert payload["pid"] != before
    assert "Memory Size: 1024 MB" in log_of(answer)
    function.renew(1024)
    assert local.invoke("echo")[0]["pid"] not in (before, payload["pid"])
    assert function.environments() == 7


def test_other_code_runs_and_is_removed_with_the_service(local, function):
    function.pad(5_000)
    assert local.invoke("echo")[0]["calls"] == 1
    described = local.client.get_function_configuration(FunctionName="echo")
    assert described["CodeSize"] == sum(path.stat().st_size for path in (HERE / "probe").rglob("*.py")) + 5_000
    (directory,) = local.service._changes._directories
    assert (directory / "padding").stat().st_size == 5_000
    local.do(local.service.stop)
    assert not directory.exists()


def test_a_published_version_is_restored_and_keeps_what_it_was(local, function):
    version = function.publish_snapshot()
    function.set_memory(2048)
    answer = local.invoke(version, LogType="Tail")[1]
    log = log_of(answer)
    assert (answer["ExecutedVersion"], local.invoke("echo")[1]["ExecutedVersion"]) == ("1", "$LATEST")
    assert "Restore Duration: " in log
    assert "Init Duration" not in log
    assert "Memory Size: 2048" not in log
    assert [one["FunctionName"] for one in local.client.list_functions()["Functions"]] == ["echo"]


def test_invocations_do_not_wait_for_code_that_is_unpacked_but_other_changes_do(local, function, monkeypatch):
    entered, gate, unpacked = threading.Event(), threading.Event(), local.service._changes._unpacked

    def unpack(given):
        entered.set()
        assert gate.wait(PATIENCE)
        return unpacked(given)

    monkeypatch.setattr(local.service._changes, "_unpacked", unpack)
    with ThreadPoolExecutor(2) as threads:
        padding = threads.submit(function.pad, 5_000)
        assert entered.wait(PATIENCE)
        remembering = threads.submit(function.set_memory, 1024)
        assert local.invoke("echo")[0]["calls"] == 1
        assert not padding.done()
        gate.set()
        padding.result(PATIENCE)
        remembering.result(PATIENCE)
    described = local.client.get_function_configuration(FunctionName="echo")
    assert described["MemorySize"] == 1024
    assert described["CodeSize"] > 5_000


def test_events_run_a_function_as_it_is_by_then_and_a_version_as_it_was(local, function, monkeypatch):
    seen, dispatch = queue.Queue(), local.service._pool.dispatch

    def noting(config, invocation):
        seen.put((config.memory_mb, config.version))
        return dispatch(config, invocation)

    monkeypatch.setattr(local.service._pool, "dispatch", noting)
    local.invoke("echo", InvocationType="Event")
    assert seen.get(timeout=PATIENCE) == (1769, "$LATEST")
    version = function.publish_snapshot()
    function.set_memory(1024)
    for name, expected in ((version, (1769, "1")), ("echo", (1024, "$LATEST"))):
        local.invoke(name, InvocationType="Event")
        assert seen.get(timeout=PATIENCE) == expected


def zipped(**entries):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, size in entries.items():
            archive.writestr(name, bytes(size))
    return buffer.getvalue()


def damaged(archive):
    """Return a zip of one file `code` whose compressed bytes are none: its first block is of no kind."""
    data = bytearray(archive)
    data[30 + len("code")] = 0xFF
    return bytes(data)


@pytest.mark.parametrize(
    ("operation", "given", "reason"),
    [
        ("update_function_configuration", {"MemorySize": 20_000}, "20000 MB of memory"),
        ("update_function_configuration", {"Timeout": 5}, "does not change Timeout"),
        ("update_function_code", {"ZipFile": b"no zip"}, "cannot be unpacked"),
        ("update_function_code", {"ZipFile": damaged(zipped(code=1000))}, "cannot be unpacked"),
        ("update_function_code", {"ZipFile": zipped(bomb=300_000_000)}, "300,000,000 bytes unzipped"),
        ("update_function_code", {"S3Bucket": "abc", "S3Key": "k"}, "does not change S3Bucket, S3Key"),
    ],
)
def test_what_lambda_would_not_take_is_refused_and_changes_nothing(local, function, operation, given, reason):
    with pytest.raises(RefusedError, match=reason):
        function._call(operation, **given)
    assert local.client.get_function_configuration(FunctionName="echo")["MemorySize"] == 1769


@pytest.mark.hostile
@pytest.mark.parametrize("body", [b"[]", b"{", b'{"MemorySize": true}', b'{"SnapStart": 1}', b"[" * 100_000])
def test_a_malformed_change_is_refused(local, body):
    with pytest.raises(InputError):
        local.service._changes.changed(probe("echo"), "configuration", body)


@pytest.mark.who_may
def test_code_of_a_caller_without_the_key_is_refused_before_it_is_sent(local):
    """Its size is announced, and the request waits for a word, as SDKs do: there is nothing to keep in memory."""
    address = urlsplit(local.service.url)
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    target = "/2015-03-31/functions/echo/code"
    for access, answer in ((Access("LOCALOTHER", "s"), b"HTTP/1.1 403"), (local.service.access, b"HTTP/1.1 100")):
        signed = sign(access, "us-east-1", now, "PUT", target, {"host": address.netloc}, b"")
        head = {**signed, "Content-Length": "60000000", "Expect": "100-continue"}
        lines = [f"PUT {target} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items())]
        with socket.create_connection((address.hostname, address.port), timeout=20) as connection:
            connection.sendall("\r\n".join([*lines, "", ""]).encode())
            assert connection.recv(12) == answer


SMALL = replace(EXTENT, groups=(4, 16), rounds=1, small=16, large=4, packages=(12_000_000, 0), repeats=4, restored=3)
QUICK = replace(SETS["one"], init_s=1.0, invoke_tail_s=0.1, start_tail_s=0.2, restore_s=0.8, package_rate=8e6)


@pytest.mark.weekly
@pytest.mark.parametrize("name", SETS)
def test_constants_that_are_put_in_are_found_within_a_tenth(name):
    """Two sets, so that no default can be what was found. Weekly, since it measures: nothing may run beside it."""
    found = probed(SETS[name], load_settings())
    ratios = {row.constant: row.found / row.put_in for row in rows_of(name, SETS[name], found)}
    assert {constant: ratio for constant, ratio in ratios.items() if abs(ratio - 1) > 0.1} == {}


@pytest.mark.slow
def test_the_kit_runs_each_step_and_finds_no_less_time_than_was_put_in():
    """A busy machine may add to times, so the exact values are weekly."""
    found = probed(QUICK, load_settings(), SMALL)
    assert found.samples.missing == []
    rows = {row.constant: row for row in rows_of("quick", QUICK, found)}
    times = ("lambda.invoke_floor", "lambda.init", "lambda.restore", "s3.request_latency")
    assert {name: rows[name].found for name in times if rows[name].found < 0.9 * rows[name].put_in} == {}
    assert [row["invocations"] for row in found.bill()] == ["20 cold", "16 warm"]
