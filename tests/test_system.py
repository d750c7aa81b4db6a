"""What the operating system says of a machine and a process, where it says nothing, too."""

import math

import pytest

from serfer import system
from serfer.system import available_bytes, machine_bytes

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


def test_what_linux_alone_says_is_unknown_elsewhere(monkeypatch, tmp_path):
    monkeypatch.setattr(system, "_PROC", tmp_path / "proc")
    assert machine_bytes(tmp_path, tmp_path) == system.memory_bytes()
    assert available_bytes(tmp_path, tmp_path) == math.inf
    assert system.processor_description() == ""
    assert system.processor_name()
    assert system.resident_bytes() is None
    assert system.begin_peak() is False
    assert system.peak_bytes() > 0
    assert system.loaded_libraries("libc") == set()


def test_what_this_process_has_is_known_on_linux():
    assert 0 < system.resident_bytes() <= system.peak_bytes()
    assert any("/libc" in path for path in system.loaded_libraries("/libc"))
