"""The ends of processes that tests, or what they test, have started."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path


def wait_for_end(process, patience_s=30.0):
    assert select.select([process], [], [], patience_s)[0], "the process is still alive"
    os.close(process)


def said_before_kill(code, *arguments, **variables):
    """Run Python code whose first line begins with ids of processes of its own; kill it, and return that line's words.

    Those processes have to end with it.
    """
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **variables},
    ) as parent:
        words = parent.stdout.readline().split()
        processes = [os.pidfd_open(int(word)) for word in words if word.isdigit()]
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert processes
    for process in processes:
        wait_for_end(process)
    return words


def check_gone(pid, *folders):
    assert not Path(f"/proc/{pid}").exists(), "a zombie is left"
    for folder in folders:
        assert list(folder.iterdir()) == []


def use_temporary_folder(monkeypatch, folder):
    """Let this process, and those that it starts, put temporary files into a folder."""
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
