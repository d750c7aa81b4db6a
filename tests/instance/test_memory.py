"""What memory there is, and what a process holds of it."""

import math
from multiprocessing import get_context

import numpy as np
import pytest

from serfer.core.units import MIB
from serfer.instance import memory
from serfer.instance.memory import (
    available_bytes,
    begin_peak,
    default_bound,
    give_back,
    machine_bytes,
    peak_bytes,
    used_bytes,
)

MEMINFO = "MemTotal:       16000 kB\nMemFree:         1000 kB\nMemAvailable:   14000 kB\n"


@pytest.fixture
def machine(tmp_path):
    """Make a machine's files of a process's control groups; returns the arguments of machine_bytes."""

    def make(groups, limits):
        proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
        (proc / "self").mkdir(parents=True)
        (proc / "meminfo").write_text(MEMINFO)
        (proc / "self/cgroup").write_text(groups)
        for path, limit in limits.items():
            (cgroups / path).parent.mkdir(parents=True, exist_ok=True)
            (cgroups / path).write_text(limit)
        return proc, cgroups

    return make


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("", {}, 16_000 * 1024),
        ("0::/\n", {"memory.max": "max\n"}, 16_000 * 1024),
        ("0::/\n", {"memory.max": "5000000\n"}, 5_000_000),
        ("0::/a/b\n", {"a/memory.max": "4000000\n", "a/b/memory.max": "max\n"}, 4_000_000),
        ("0::/of/the/host\n", {"memory.max": "3000000\n"}, 3_000_000),  # a container's own file system
        (
            "9:cpu:/x\n4:memory:/m/n\n",
            {"memory/m/n/memory.limit_in_bytes": "2000000\n", "memory/memory.limit_in_bytes": f"{1 << 62}\n"},
            2_000_000,
        ),
    ],
)
def test_the_least_limit_of_machine_and_control_groups_holds(machine, groups, limits, expected):
    assert machine_bytes(*machine(groups, limits)) == expected


def test_what_is_available_is_what_is_free_within_the_control_groups_limits(machine, tmp_path):
    proc, cgroups = machine("0::/\n", {"memory.max": "max\n"})
    assert available_bytes(proc, cgroups) == 14_000 * 1024
    (cgroups / "memory.max").write_text("5000000\n")
    assert available_bytes(proc, cgroups) == 5_000_000
    assert available_bytes(tmp_path, tmp_path) == math.inf


def test_the_default_is_a_share_of_what_there_is():
    assert 0 < default_bound("cpu") < machine_bytes()


def test_a_gpus_memory_is_unknown_where_cuda_is_not_loaded(monkeypatch):
    monkeypatch.setattr(memory, "_CUDART", ("libcudart.so.no-such",))
    assert default_bound("cuda") is None
    assert used_bytes("cuda") is None


def hold_and_release():
    before = used_bytes("cpu")
    assert begin_peak()
    held = np.ones(64 * MIB, np.uint8)
    more = np.ones(32 * MIB, np.uint8)
    del more
    now = used_bytes("cpu")
    assert 60 * MIB <= now - before <= 80 * MIB
    assert peak_bytes() - before >= 90 * MIB
    assert held[-1] == 1
    del held
    give_back()
    assert used_bytes("cpu") - before <= 10 * MIB


def test_what_is_held_and_its_peak_are_seen_and_what_is_released_goes_back():
    with get_context("spawn").Pool(1) as pool:  # a process without other threads, whose memory would be counted
        pool.apply(hold_and_release)
