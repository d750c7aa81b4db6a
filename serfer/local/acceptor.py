"""Connections of a listening socket, accepted on an event loop, also while the process has no descriptors left.

The servers of asyncio and of uvloop do not help then: one logs a traceback for each connection that waits, the other
accepts and closes each without a word, or stops for good.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable

PAUSE_S = 1.0
_QUIET_S = 10.0
_LOGGER = logging.getLogger("serfer")


class Acceptor:
    """Accepts for the running loop; `make` returns the protocol of a connection.

    `listener` is closed with it. Without descriptors, connections wait in the kernel, and the log says so.
    """

    def __init__(self, listener: socket.socket, make: Callable[[], asyncio.Protocol]) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._make = make
        self._starting: set[asyncio.Task[object]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._shortage = Shortage()
        listener.settimeout(0)
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Close the port; connections that were accepted go on, and their protocols may be made later."""
        if self._pause is not None:
            self._pause.cancel()
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)
            self._listener.close()

    async def settled(self) -> None:
        if self._starting:
            await asyncio.wait(self._starting)

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            self._shortage.log(error)
            self._loop.remove_reader(self._listener)
            self._pause = self._loop.call_later(PAUSE_S, self._loop.add_reader, self._listener, self._accept)
            return
        accepted.settimeout(0)
        # Nagle's algorithm and a client's delayed ACK would hold answers on a kept connection back for 40 ms.
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._loop.connect_accepted_socket(self._make, accepted))
        self._starting.add(task)
        task.add_done_callback(lambda _: self._started(task, accepted))

    def _started(self, task: asyncio.Task[object], accepted: socket.socket) -> None:
        """Forget a connection that starts; one that a loop's end cancels before it knows the socket is closed here."""
        self._starting.discard(task)
        if task.cancelled():
            accepted.close()


class Shortage:
    """Logs that connections cannot be accepted, one line every ten seconds at most; `clock` is in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = 0.0

    def log(self, error: OSError) -> None:
        if self._clock() >= self._next:
            self._next = self._clock() + _QUIET_S
            _LOGGER.warning("connections wait to be accepted: %s (raise the limit: ulimit -n)", error.strerror)
