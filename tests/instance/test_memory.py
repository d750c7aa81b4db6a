"""What memory networks may take, and what a process holds of it."""

from multiprocessing import get_context

import numpy as np

from serfer.core.units import MIB
from serfer.instance import memory
from serfer.instance.memory import default_bound, used_bytes
from serfer.system import begin_peak, give_back, machine_bytes, peak_bytes


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
