"""Waiting until a file of a directory has been written, by Linux's inotify (man 7 inotify)."""

import contextlib
import ctypes
import os
import select
import time
from pathlib import Path

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
