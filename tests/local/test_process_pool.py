"""Processes of a pool end with the process that started them, and with an exception, whatever they are computing."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from serfer.local.process_pool import process_pool

PARENT = """
import os, signal
from serfer.local.process_pool import process_pool
with process_pool(1) as pool:
    print(pool.submit(os.getpid).result(), flush=True)
    signal.pause()
"""


@pytest.mark.killed
def test_processes_end_with_a_parent_that_is_killed():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        worker = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    worker.wait(10)  # raises TimeoutExpired where it stays


def test_an_exception_does_not_wait_for_what_runs():
    with pytest.raises(KeyboardInterrupt), process_pool(1) as pool:  # noqa: PT012 - the pool is part of it
        worker = psutil.Process(pool.submit(os.getpid).result())
        endless = pool.submit(signal.pause)
        raise KeyboardInterrupt
    assert not worker.is_running()
    assert endless.done()
