"""Lines to a descriptor that may stand still: a pipe that is not read, or a terminal that was stopped.

A thread writes them, so that who logs, mostly an event loop, waits for nothing. While nothing can be written, so many
lines are kept; further ones are dropped and counted.
"""

from __future__ import annotations

import logging
import os
import queue
import select
import threading
from collections.abc import Callable
from typing import Final

MOST_LINES: Final = 8192
_PATIENCE_S: Final = 1.0  # for a reader, when the process ends


class BackgroundWriter:
    """Writes lines to a descriptor from a thread of its own, in order; `write` may be called from any thread.

    `dropped` makes the line that says how many were lost, which is written where they are missing. What cannot be
    written, as the reader has closed its end, is lost.
    """

    def __init__(self, descriptor: int, dropped: Callable[[int], str], most: int = MOST_LINES) -> None:
        self._descriptor = descriptor
        self._dropped = dropped
        self._most = most
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._lost = 0
        self._waiting = 0  # lines that are not written yet
        self._count = threading.Condition()
        threading.Thread(target=self._run, name="log lines", daemon=True).start()

    def write(self, line: str) -> None:
        """Have a line written, its end added; at once, whatever becomes of it."""
        with self._count:
            if self._waiting >= self._most:
                self._lost += 1
                return
            self._waiting += 1
            self._lines.put(line)

    def flush(self) -> None:
        """Wait until all is written, or for a second."""
        with self._count:
            self._count.wait_for(lambda: not self._waiting, _PATIENCE_S)

    def _run(self) -> None:
        while True:
            self._put(self._lines.get())
            with self._count:
                self._waiting -= 1
                if self._lost and not self._waiting:  # what was lost would come next
                    self._lines.put(self._told())
                    self._lost, self._waiting = 0, 1
                elif not self._waiting:
                    self._count.notify_all()

    def _told(self) -> str:
        """Return the line for what was lost; a bug in making it would end the thread, and all lines with it."""
        try:
            return self._dropped(self._lost)
        except Exception as error:  # noqa: BLE001 - whom could it be told but here
            return f"{self._lost} log lines dropped ({error!r})"

    def _put(self, line: str) -> None:
        """Write a line, not by the stream: its lock would be held, and the interpreter needs it to end."""
        data = f"{line}\n".encode(errors="backslashreplace")
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:  # another process has made it so
                select.select([], [self._descriptor], [])
            except OSError:
                return


class BackgroundHandler(logging.Handler):
    """Writes log lines by a BackgroundWriter; ends with the interpreter, once the lines are written."""

    def __init__(self, descriptor: int, most: int = MOST_LINES) -> None:
        super().__init__()
        self._writer = BackgroundWriter(descriptor, self._dropped, most)

    def emit(self, record: logging.LogRecord) -> None:
        """Have a record's line written."""
        try:
            self._writer.write(self.format(record))
        except Exception:  # noqa: BLE001 - as the logging module's own handlers
            self.handleError(record)

    def flush(self) -> None:
        """Wait until all is written, or for a second."""
        self._writer.flush()

    def _dropped(self, lines: int) -> str:
        record = logging.LogRecord("serfer.api", logging.WARNING, "", 0, "log lines dropped", None, None)
        record.__dict__["serfer"] = {"lines": lines, "message": "standard error was not read"}
        return self.format(record)
