"""A client's conversations, and downloads of results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx

from serfer.client.arrays import FileValues, MemoryValues, written_whole
from serfer.client.conversation import Conversation, Steps
from serfer.client.stored import StoredOutput
from serfer.client.tensors import MAX_ANSWER_BYTES
from serfer.client.wire import AsyncWire, BlockingWire, fault
from serfer.core.errors import UsageError
from serfer.core.inference_protocol import ServedTensor

T = TypeVar("T")


class AsyncSession:
    """Holds a client's conversations over its wire."""

    def __init__(self, wire: AsyncWire | BlockingWire, conversation: Conversation) -> None:
        self.conversation = conversation
        self._wire = wire

    async def run(self, steps: Steps[T]) -> T:
        """Hold a conversation to its end."""
        try:
            step = next(steps)
            while True:
                try:
                    reply = await self._wire.send(step)
                except (httpx.HTTPError, TimeoutError) as error:
                    step = steps.throw(fault(error, step, self._wire.http.base_url))
                else:
                    step = steps.send(reply)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            steps.close()

    async def tensor(self, output: StoredOutput) -> ServedTensor:
        """Download an output into memory; raises UsageError for one that is too large."""
        form = output.form
        if form.nbytes > MAX_ANSWER_BYTES:
            raise UsageError(
                f"output {form.name!r} has {form.nbytes:,} bytes, too many for memory: download it to a file"
            )
        values = MemoryValues(form)
        await self.run(self.conversation.fetch(output, values, None))
        return ServedTensor(form.name, form.datatype, form.shape, values.take())

    async def download(self, output: StoredOutput, path: Path, timeout_s: float | None) -> Path:
        """Write an output to a .npy file, which appears whole or not at all, and return its path."""
        with written_whole(path) as file:
            await self.run(self.conversation.fetch(output, FileValues(output.form, file), timeout_s))
        return path

    async def aside(self, work: Callable[..., T], *arguments: Any) -> T:  # noqa: ANN401 - the work's
        """Do what may take long, such as reading files, where the wire does such work."""
        return await self._wire.aside(work, *arguments)

    async def aclose(self) -> None:
        await self._wire.close()
