# Made from async_session.py by tests/client/unasync.py: change that file, and run that script.
"""A client's conversations, and downloads of results."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import httpx

from serfer.client.arrays import FileValues, MemoryValues, written_whole
from serfer.client.conversation import Conversation, Steps
from serfer.client.stored import StoredOutput
from serfer.client.tensors import MAX_ANSWER_BYTES, ServedTensor
from serfer.client.wire import Wire, fault
from serfer.core.errors import UsageError

T = TypeVar("T")


class Session:
    """Holds a client's conversations over its wire."""

    def __init__(self, wire: Wire, conversation: Conversation) -> None:
        self.conversation = conversation
        self._wire = wire

    def run(self, steps: Steps[T]) -> T:
        """Hold a conversation to its end."""
        try:
            step = next(steps)
            while True:
                try:
                    reply = self._wire.send(step)
                except (httpx.HTTPError, TimeoutError) as error:
                    step = steps.throw(fault(error, step, self._wire.http.base_url))
                else:
                    step = steps.send(reply)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            steps.close()

    def tensor(self, output: StoredOutput) -> ServedTensor:
        """Download an output into memory; raises UsageError for one that is too large."""
        form = output.form
        if form.nbytes > MAX_ANSWER_BYTES:
            raise UsageError(
                f"output {form.name!r} has {form.nbytes:,} bytes, too many for memory: download it to a file"
            )
        values = MemoryValues(form)
        self.run(self.conversation.fetch(output, values, None))
        return ServedTensor(form.name, form.datatype, form.shape, values.take())

    def download(self, output: StoredOutput, path: Path, timeout_s: float | None) -> Path:
        """Write an output to a .npy file, which appears whole or not at all, and return its path."""
        with written_whole(path) as file:
            self.run(self.conversation.fetch(output, FileValues(output.form, file), timeout_s))
        return path

    def close(self) -> None:
        """Close the connections."""
        self._wire.http.close()
