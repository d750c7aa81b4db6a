"""Inboxes of a file store: an append-only file for each, watched by Linux's inotify (man 7 inotify)."""

import contextlib
import ctypes
import fcntl
import math
import os
import select
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock

from serfer.storage.exchange import Exchange, Message, Received
from serfer.storage.file.directory import NS, Directory
from serfer.storage.file.inbox import append, read
from serfer.storage.store import check_keys, check_ttl

_RECHECK_S = 1.0  # for file systems that announce nothing of what other machines write
_CLOSE_WRITE = 0x8
_EVENTS = 1 << 16
_POLL_S = 0.02


class Watch:
    """Watches one directory at a time; where there is no inotify, or none is left, a wait lasts 20 ms at most.

    A user may have 128 at once (fs.inotify.max_user_instances).
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._watched = -1
        try:
            self._file = int(self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
        except AttributeError:
            self._file = -1

    def start(self, folder: Path) -> None:
        if self._file >= 0:
            self._watched = self._libc.inotify_add_watch(self._file, os.fsencode(folder), _CLOSE_WRITE)

    def wait(self, timeout_s: float) -> None:
        """Return when a file has been written or the directory is gone, after `timeout_s`, or earlier."""
        if self._watched < 0:
            time.sleep(min(timeout_s, _POLL_S))
            return
        poll = select.poll()
        poll.register(self._file, select.POLLIN)
        if poll.poll(timeout_s * 1000):
            with contextlib.suppress(BlockingIOError):
                os.read(self._file, _EVENTS)

    def stop(self) -> None:
        if self._watched >= 0:
            self._libc.inotify_rm_watch(self._file, self._watched)
            self._watched = -1

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class FileExchange(Exchange):
    """Appends to files; who waits for one watches its directory, and looks every second in any case."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._lock = Lock()
        self._idle: list[Watch] = []
        self._closings = 0

    def send(self, messages: Sequence[Message], ttl: float) -> None:
        check_keys(message.inbox for message in messages)
        check_ttl(ttl)
        values: dict[str, list[bytes]] = defaultdict(list)
        for inbox, value in messages:
            values[inbox].append(value)
        with self._directory.reached():
            self._directory.sweep_if_due()
            now_ns = self._directory.now_ns()
            with self._directory.lock(fcntl.LOCK_SH):
                for inbox, appended in values.items():
                    path = self._directory.inbox(inbox)
                    path.parent.mkdir(0o700, parents=True, exist_ok=True)
                    append(path, appended, now_ns, now_ns + int(ttl * NS))

    def receive(self, inbox: str, after: str, timeout_s: float) -> list[Received]:
        check_keys((inbox,))
        deadline = time.monotonic() + timeout_s
        path = self._directory.inbox(inbox)
        with self._directory.reached():
            found = read(path, after, self._directory.now_ns())
            if found or not timeout_s > 0:
                return found
            with self._borrow_watch() as watch:
                while True:
                    with self._directory.lock(fcntl.LOCK_SH):  # no sweep removes the directory before it is watched
                        path.parent.mkdir(0o700, parents=True, exist_ok=True)
                        watch.start(path.parent)
                    found = read(path, after, self._directory.now_ns())
                    left_s = deadline - time.monotonic()
                    if found or left_s <= 0:
                        return found
                    watch.wait(math.ceil(min(left_s, _RECHECK_S) * 1000) / 1000)

    def close(self) -> None:
        with self._lock:
            self._closings += 1
            while self._idle:
                self._idle.pop().close()

    @contextlib.contextmanager
    def _borrow_watch(self) -> Iterator[Watch]:
        with self._lock:
            closings = self._closings
            watch = self._idle.pop() if self._idle else Watch()
        try:
            yield watch
        finally:
            watch.stop()
            with self._lock:
                if closings == self._closings:
                    self._idle.append(watch)
                else:
                    watch.close()
