"""A worker's log, with the lines that Lambda adds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

LOG_TAIL = 4096  # bytes of X-Amz-Log-Result, before base64
_LINE_LIMIT = 65536  # bytes after which a line without an end is passed on as it is


class LogTail:
    """The last 4 KB that a worker wrote; whole lines are passed to `on_line` as they come."""

    def __init__(self, on_line: Callable[[str], None] | None) -> None:
        self.last = b""
        self._on_line = on_line
        self._open = b""  # the line that has no end yet

    def feed(self, chunk: bytes) -> None:
        self.last = (self.last + chunk)[-LOG_TAIL:]
        if self._on_line is None:
            return
        *lines, self._open = (self._open + chunk).split(b"\n")
        if len(self._open) > _LINE_LIMIT:
            lines, self._open = [*lines, self._open], b""
        for line in lines:
            self._on_line(line.decode(errors="replace"))

    def invocation(self, request_id: str, report: str) -> bytes:
        """Return the tail of one invocation's log, its START, END and REPORT lines added as Lambda does."""
        head = f"START RequestId: {request_id} Version: $LATEST\n".encode()
        end = b"" if self.last.endswith(b"\n") or not self.last else b"\n"
        return (head + self.last + end + f"END RequestId: {request_id}\n{report}\n".encode())[-LOG_TAIL:]


def report_line(
    request_id: str, duration_s: float, init_s: float | None, memory_mb: int, peak: int, *, restored: bool = False
) -> str:
    """Return Lambda's REPORT line; `peak` is in bytes, `init_s` None for an environment that was warm.

    Of one that was `restored` from a snapshot, the start is not billed by its time.
    """
    init_ms = (init_s or 0.0) * 1000
    billed_ms = math.ceil(duration_s * 1000 + (0.0 if restored else init_ms))
    parts = [
        f"REPORT RequestId: {request_id}",
        f"Duration: {duration_s * 1000:.2f} ms",
        f"Billed Duration: {billed_ms} ms",
        f"Memory Size: {memory_mb} MB",
        f"Max Memory Used: {math.ceil(peak / 2**20)} MB",
    ]
    if init_s is not None:
        parts.append(f"{'Restore' if restored else 'Init'} Duration: {init_ms:.2f} ms")
    return "\t".join(parts)
