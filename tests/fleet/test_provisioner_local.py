"""Instances as processes of this machine: they outlive controllers, and no stranger is ever killed in their place."""

import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
import urllib.request
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from serfer.core.errors import UnavailableError
from serfer.fleet.provisioners import local
from serfer.fleet.provisioners.local import Identity, LocalProvisioner, identify
from tests.fleet.provisioner_contract import ProvisionerContract, emptied, serving, until

STUB = (sys.executable, "-I", "-S", str(Path(__file__).with_name("stub_instance.py")))
ROOT = Path(__file__).parents[2]


class TestLocal(ProvisionerContract):
    @pytest.fixture(autouse=True)
    def _registry(self, tmp_path):
        self.registry = tmp_path / "instances"

    def opened(self):
        return LocalProvisioner(STUB, self.registry, most=self.MOST)


@pytest.fixture
def registry(tmp_path):
    return tmp_path / "instances"


@asynccontextmanager
async def opened(registry, *command, **more):
    pool = LocalProvisioner(command or STUB, registry, **more)
    try:
        yield pool
    finally:
        await emptied(pool)


def ready(url):
    with urllib.request.urlopen(f"{url}/v2/health/ready", timeout=10) as answer:  # noqa: S310 - our own
        return answer.status


def command_line(pid):
    return Path(f"/proc/{pid}/cmdline").read_text()


def recorded(registry):
    return {path.stem: json.loads(path.read_text())["process"]["pid"] for path in registry.glob("*.json")}


async def test_types_share_a_registry_and_a_limit_and_each_has_its_own_processes(registry):
    fast, slow, spot = (
        LocalProvisioner(STUB, registry, label=f"local-{name}", most=3) for name in ("fast", "slow", "fast-spot")
    )
    try:
        await fast.start(1)
        await spot.start(1)
        await slow.start(5)  # one is left
        names = [[one.name for one in await serving(each, 1)] for each in (fast, slow, spot)]
        assert len({name for (name,) in names}) == 3
        assert not await slow.stop(names[0][0])
        assert await fast.stop(names[0][0])
        await until(fast, lambda members: not members)
        assert len(await slow.members()) == len(await spot.members()) == 1
    finally:
        for each in (fast, slow, spot):
            await emptied(each)


async def test_a_pool_without_measure_does_not_take_the_whole_machine(registry, caplog):
    with caplog.at_level(logging.WARNING):
        async with opened(registry) as pool:
            await pool.start(1_000_000)
            processes = len(await pool.members())
    assert 8 <= processes <= max(8, 2 * os.cpu_count())
    [warning] = [record.getMessage() for record in caplog.records if "wanted" in record.getMessage()]
    assert "--instances local: 1000000 more instances are wanted" in warning


@pytest.mark.killed
async def test_one_that_died_by_itself_disappears_and_its_last_words_are_logged(registry, caplog):
    with caplog.at_level(logging.WARNING):
        async with opened(registry, *STUB, "--die") as pool:
            await pool.start(1)
            await until(pool, lambda members: not members)
    assert "has ended by itself: there is no such model" in caplog.text
    assert list(registry.iterdir()) == []


@pytest.mark.killed
async def test_one_that_was_killed_disappears_and_nothing_of_it_is_left(registry):
    async with opened(registry) as pool:
        await pool.start(2)
        first, second = await serving(pool, 2)
        os.kill(recorded(registry)[first.name], signal.SIGKILL)
        assert [one.name for one in await serving(pool, 1)] == [second.name]
        assert {path.stem for path in registry.iterdir()} == {second.name}


@pytest.mark.killed
async def test_an_instance_that_ignores_sigterm_is_killed(registry):
    async with opened(registry, *STUB, "--deaf", end_s=0.1) as pool:
        await pool.start(1)
        [one] = await serving(pool, 1)
        pid = recorded(registry)[one.name]
        await pool.stop(one.name)
        await until(pool, lambda members: not members)
        assert identify(pid) is None


async def test_while_it_is_to_end_it_is_draining(registry):
    async with opened(registry, *STUB, "--deaf") as pool:
        await pool.start(1)
        [one] = await serving(pool, 1)
        await pool.stop(one.name)
        [same] = await pool.members()
        assert (same.name, same.url, same.state) == (one.name, one.url, "draining")
        pool._end_s = 0.0


async def test_one_that_boots_slowly_is_there_without_an_address_and_can_be_stopped(registry):
    async with opened(registry, boot_delay_s=3600) as pool:
        await pool.start(1)
        [one] = await pool.members()
        assert (one.url, one.state) == (None, "booting")
        await pool.stop(one.name)
        await until(pool, lambda members: not members)


async def test_a_boot_delay_ends_in_the_command_itself(registry):
    async with opened(registry, boot_delay_s=0.2) as pool:
        await pool.start(1)
        [one] = await serving(pool, 1)
        assert ready(one.url) == 200
        assert "os.execv" not in command_line(recorded(registry)[one.name])


CONTROLLER = """
import asyncio, pathlib, sys, time
from serfer.fleet.provisioners.local import LocalProvisioner

async def main():
    pool = LocalProvisioner(sys.argv[2:], pathlib.Path(sys.argv[1]))
    await pool.start(2)
    print("started", flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


@pytest.mark.killed
async def test_instances_of_a_killed_controller_are_adopted_and_can_be_stopped(registry):
    command = [sys.executable, "-c", textwrap.dedent(CONTROLLER), str(registry), *STUB]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as controller:  # noqa: ASYNC220 - it is all that runs
        assert controller.stdout.readline() == "started\n"
        controller.kill()
    pool = LocalProvisioner(STUB, registry)
    assert len(await serving(pool, 2)) == 2
    pids = recorded(registry).values()
    await emptied(pool)
    assert not any(Identity(pid, 0, "").lives for pid in pids)
    assert not list(registry.iterdir())


@pytest.fixture
def stranger():
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(3600)"]) as process:
        yield process
        process.kill()


@pytest.mark.killed
@pytest.mark.parametrize("other", ["started", "boot"])
async def test_a_number_that_another_process_has_by_now_is_never_killed(registry, stranger, other):
    """The record is of a process that has ended; its number, or the machine's boot, is another one's."""
    real = identify(stranger.pid)
    past = {"pid": real.pid, "started": real.started, "boot": real.boot}
    past[other] = real.started - 1 if other == "started" else "00000000-0000-0000-0000-000000000000"
    registry.mkdir()
    (registry / "local-old.json").write_text(json.dumps({"process": past, "ends": None}))
    (registry / "local-ends.json").write_text(json.dumps({"process": past, "ends": 0.0}))
    pool = LocalProvisioner(STUB, registry)
    await pool.stop("local-old")
    assert await pool.members() == []
    assert stranger.poll() is None
    assert list(registry.iterdir()) == []


NAMELESS_BOOT = '{"process": {"pid": 1, "started": 1, "boot": ""}, "ends": null}'


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 60_000, "{}", '"a"', NAMELESS_BOOT])
async def test_an_invalid_record_is_skipped_and_logged_once(registry, text, caplog):
    registry.mkdir()
    (registry / "foreign.json").write_text(text)
    with caplog.at_level(logging.WARNING):
        pool = LocalProvisioner(STUB, registry)
        assert await pool.members() == await pool.members() == []
        await pool.stop("foreign")
    assert caplog.text.count("not a record of an instance") == 1
    assert (registry / "foreign.json").read_text() == text


async def test_a_registry_that_cannot_be_written_and_a_missing_command_are_errors(registry, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UnavailableError, match="--instances local: no instance could be started: "):
        await LocalProvisioner(STUB, tmp_path / "file" / "instances").start(1)
    with pytest.raises(UnavailableError, match=r"--instances local: .*No such file"):
        await LocalProvisioner(["/nowhere/serfer"], registry).start(1)


async def test_a_log_does_not_grow_without_bound(registry, monkeypatch):
    monkeypatch.setattr(local, "_MOST_LOG_BYTES", 1000)
    async with opened(registry) as pool:
        await pool.start(1)
        [log] = registry.glob("*.err")
        sizes = []
        for _ in range(3):
            with log.open("ab") as stream:  # as the process does
                stream.write(b"x" * 600)
            await pool.members()
            sizes.append(log.stat().st_size)
    first, second, third = sizes
    assert (second, third - second) == (0, 600)
    assert first in range(600, 1001)
