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
from contextlib import suppress
from logging.handlers import QueueHandler
from typing import Final

MOST_LINES: Final = 8192
_PATIENCE_S: Final = 1.0  # for a reader, when the process ends


class BackgroundHandler(QueueHandler):
    """Writes log lines from a thread of its own, in order; ends with the interpreter, once the lines are written.

    It writes to a descriptor of its own: the number of one that somebody else closes may become that of a socket.
    """

    def __init__(self, descriptor: int, most: int = MOST_LINES) -> None:
        self._lines: queue.Queue[str | None] = queue.Queue(most)
        super().__init__(self._lines)
        self._descriptor = os.dup(descriptor)
        self._lost = 0
        self._count = threading.Lock()
        threading.Thread(target=self._write_lines, name="serfer-log", daemon=True).start()

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

    def _lost_line(self, lost: int) -> str:
        record = logging.LogRecord("serfer.api", logging.WARNING, "", 0, "log lines dropped", None, None)
        record.__dict__["serfer"] = {"lines": lost, "message": "standard error was not read"}
        return self.format(record)

    def close(self) -> None:
        """Take no more lines; the thread writes those that there are, if they are read, and ends."""
        with suppress(queue.Full):
            self._lines.put_nowait(None)
        super().close()

    def _take_lost(self) -> int:
        with self._count:
            lost, self._lost = self._lost, 0
        return lost

    def _write_lines(self) -> None:
        for line in iter(self._lines.get, None):
            self._write(line)
            if self._lines.empty() and (lost := self._take_lost()):  # what was dropped would come next
                self._write(self._lost_line(lost))
            self._lines.task_done()
        os.close(self._descriptor)
        self._lines.task_done()

    def _write(self, line: str) -> None:
        """Write a line, not by the stream: its lock would be held, and the interpreter needs it to end.

        What cannot be written, as the reader has closed its end, is lost.
        """
        data = f"{line}\n".encode(errors="backslashreplace")
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:  # another process has made it so
                select.select([], [self._descriptor], [])
            except OSError:
                return
