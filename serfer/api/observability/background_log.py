"""Log lines to a descriptor that may stand still: a pipe that is not read, or a terminal that was stopped.

A thread writes them, so that who logs, mostly an event loop, waits for nothing. While nothing can be written, so many
lines are kept; further ones are dropped and counted.
"""

from __future__ import annotations

import logging
import os
import queue
import select
import threading
from logging.handlers import QueueHandler, QueueListener
from typing import Final

MOST_LINES: Final = 8192
_PATIENCE_S: Final = 1.0  # for a reader, when the process ends


class BackgroundHandler(QueueHandler):
    """Writes log lines from a thread of its own, in order; ends with the interpreter, once the lines are written."""

    def __init__(self, descriptor: int, most: int = MOST_LINES) -> None:
        self._lines: queue.Queue[str] = queue.Queue(most)
        super().__init__(self._lines)
        self._lost = 0
        self._count = threading.Lock()
        _Listener(self._lines, descriptor, self).start()

    def prepare(self, record: logging.LogRecord) -> str:
        return self.format(record)

    def enqueue(self, line: str) -> None:  # type: ignore[override]  # what `prepare` has made
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            with self._count:
                self._lost += 1

    def flush(self) -> None:
        with self._lines.all_tasks_done:
            self._lines.all_tasks_done.wait_for(lambda: not self._lines.unfinished_tasks, _PATIENCE_S)

    def take_lost(self) -> int:
        with self._count:
            lost, self._lost = self._lost, 0
        return lost

    def lost_line(self, lost: int) -> str:
        record = logging.LogRecord("serfer.api", logging.WARNING, "", 0, "log lines dropped", None, None)
        record.__dict__["serfer"] = {"lines": lost, "message": "standard error was not read"}
        return self.format(record)


class _Listener(QueueListener):
    """Writes lines, each with its end, and the line for dropped ones where they are missing.

    What cannot be written, as the reader has closed its end, is lost.
    """

    def __init__(self, lines: queue.Queue[str], descriptor: int, handler: BackgroundHandler) -> None:
        super().__init__(lines)
        self._descriptor = descriptor
        self._lines = lines
        self._handler = handler

    def handle(self, line: str) -> None:  # type: ignore[override]  # what `prepare` has made
        self._write(line)
        if self._lines.empty() and (lost := self._handler.take_lost()):  # what was dropped would come next
            try:
                line = self._handler.lost_line(lost)
            except Exception as error:  # noqa: BLE001 - it would end the thread, and all lines with it
                line = f"{lost} log lines dropped ({error!r})"
            self._write(line)

    def _write(self, line: str) -> None:
        """Write a line, not by the stream: its lock would be held, and the interpreter needs it to end."""
        data = f"{line}\n".encode(errors="backslashreplace")
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:  # another process has made it so
                select.select([], [self._descriptor], [])
            except OSError:
                return
