"""What tests leave behind: processes, sockets that listen, and the event loops of pipelines."""

import os
import socket
import stat
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

MARK = "STARTED_BY_TESTS_OF"  # a variable that processes inherit, so that one whose parent has ended is found, too
OWN = (
    "from multiprocessing.resource_tracker import main",  # Python's: it starts with the first pool, and stays
    "chrome_crashpad_handler",  # Chromium's, of no parent: it ends with the browser, which is the session's
)
LOOP = "serfer-loop"  # the thread of a pipeline that is open
PATIENCE = 60.0  # s: what was killed a moment ago may still be ending


@dataclass(frozen=True)
class Left:
    """Processes that this one has started, listening sockets of its own by their addresses, and threads."""

    processes: frozenset[psutil.Process] = frozenset()
    listeners: frozenset[tuple[str, int]] = frozenset()
    threads: frozenset[threading.Thread] = frozenset()

    def __or__(self, other):
        return Left(self.processes | other.processes, self.listeners | other.listeners, self.threads | other.threads)

    def __sub__(self, other):
        return Left(self.processes - other.processes, self.listeners - other.listeners, self.threads - other.threads)


NOTHING = Left()


def present():
    """Return what there is now, but for orphans."""
    threads = frozenset(each for each in threading.enumerate() if each.name == LOOP)
    return Left(frozenset(psutil.Process().children(recursive=True)), frozenset(_listeners()), threads)


def _listeners():
    """Yield the addresses of this process's listening sockets; the system's table has thousands of closed ones."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names suffice
        with suppress(OSError):  # the descriptor of the list itself
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as own:
                    if own.family != socket.AF_UNIX and own.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                        yield own.getsockname()[:2]


def marked():
    """Return the other processes that carry this one's mark, which orphans do, too."""
    mark = f"{MARK}={os.getpid()}".encode()
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError, psutil.NoSuchProcess):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.add(psutil.Process(int(entry.name)))
    return frozenset(found)


def complaint(kept, patience=PATIENCE):
    """Return in words what was left behind besides what is `kept`, with `patience` seconds for what is ending."""
    left = present() - kept
    strangers = [each for each in left.processes | marked() if not _belongs(each, kept.processes)]
    strangers = [each for each in strangers if not any(own in _command(each) for own in OWN)]
    end = time.monotonic() + patience
    _, running = psutil.wait_procs(strangers, timeout=patience)
    words = [f"process {each.pid} ({_command(each)})" for each in running if not _ended(each)]
    if left.listeners:
        words += [f"a socket that listens at {at}" for at in (present() - kept).listeners]
    for thread in left.threads:
        thread.join(max(0.0, end - time.monotonic()))
    words += [f"thread {each.name}" for each in left.threads if each.is_alive()]
    return ", ".join(sorted(words))


def _belongs(process, kept):
    """Return whether a process is one that is kept, or was started by one; one that has ended asks for nothing."""
    with suppress(psutil.NoSuchProcess):
        return process in kept or any(each in kept for each in process.parents())
    return True


def _ended(process):
    with suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE
    return True


def _command(process):
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return "which has just ended"
