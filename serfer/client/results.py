"""Results that the service keeps, as clients have them: their outputs are downloaded when they are wanted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import httpx

from serfer.client.arrays import FileValues, MemoryValues, written_whole
from serfer.client.conversation import Conversation, Steps
from serfer.client.tensors import MAX_ANSWER_BYTES, StoredOutput, StoredResult
from serfer.client.wire import AsyncWire, BlockingWire, fault, run_now
from serfer.core.errors import UsageError
from serfer.core.inference_protocol import ServedTensor

PathLike = str | os.PathLike[str]
_Output = TypeVar("_Output")
T = TypeVar("T")


@dataclass(frozen=True, repr=False)
class ServedOutput:
    """One output of a result; `numpy.asarray(output)` downloads it and is a read-only view of it, an array (N, ...).

    `datatype` is the protocol's: FP32, INT64, INT32, UINT8 or BOOL. What was downloaded so is kept with this object;
    `download` writes to a file what may be larger than memory.
    """

    _output: StoredOutput
    _session: AsyncSession

    @property
    def name(self) -> str:
        """Its name."""
        return self._output.form.name

    @property
    def datatype(self) -> str:
        """Its type."""
        return self._output.form.datatype

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape, images first."""
        return self._output.form.shape

    @property
    def nbytes(self) -> int:
        """Bytes of its values."""
        return self._output.form.nbytes

    @cached_property
    def tensor(self) -> ServedTensor:
        """Its values, at most 1 GiB of them; downloaded once."""
        return run_now(self._session.tensor(self._output))

    def download(self, path: PathLike, *, timeout_s: float | None = None) -> Path:
        """Write it to a .npy file, which appears whole or not at all, in place of one that is there; return its path.

        Within `timeout_s`, by default the client's and a second for each megabyte.
        """
        return run_now(self._session.download(self._output, Path(path), timeout_s))

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """What makes it an array to numpy and others (NumPy's array interface, version 3)."""
        return self.tensor.__array_interface__

    def __repr__(self) -> str:
        return f"ServedOutput({self.name!r}, {self.datatype}, {list(self.shape)})"


class ServedResult(Mapping[str, ServedOutput]):
    """A result that the service keeps, with its outputs by name, until `expires`, in seconds since 1970."""

    def __init__(self, result: AsyncServedResult) -> None:
        self.id = result.id
        self.model = result.model
        self.expires = result.expires
        self._result = result
        outputs, session = result._stored, result._session  # noqa: SLF001 - this is its other face
        self._outputs = {name: ServedOutput(output, session) for name, output in outputs.items()}

    def download(self, name: str, path: PathLike, *, timeout_s: float | None = None) -> Path:
        """Write an output to a .npy file, as `ServedOutput.download` does."""
        return _named(self._outputs, name).download(path, timeout_s=timeout_s)

    def delete(self) -> None:
        """Delete the result; one that is already gone is not an error."""
        run_now(self._result.delete())

    def __getitem__(self, name: str) -> ServedOutput:
        return self._outputs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._outputs)

    def __len__(self) -> int:
        return len(self._outputs)

    def __repr__(self) -> str:
        return f"ServedResult({self.id!r}, {[*self._outputs.values()]})"


class AsyncServedResult:
    """All of ServedResult, awaited: `outputs` has the form of each output by name."""

    def __init__(self, stored: StoredResult, session: AsyncSession) -> None:
        self.id = stored.id
        self.model = stored.model
        self.expires = stored.expires
        self.outputs = {output.form.name: output.form for output in stored.outputs}
        self._stored = {output.form.name: output for output in stored.outputs}
        self._session = session

    async def tensor(self, name: str) -> ServedTensor:
        """Download an output, of at most 1 GiB."""
        return await self._session.tensor(_named(self._stored, name))

    async def download(self, name: str, path: PathLike, *, timeout_s: float | None = None) -> Path:
        """Write an output to a .npy file as `ServedOutput.download` does."""
        return await self._session.download(_named(self._stored, name), Path(path), timeout_s)

    async def delete(self) -> None:
        """Delete the result as `ServedResult.delete` does."""
        await self._session.run(self._session.conversation.delete_result(self.id))

    def __repr__(self) -> str:
        return f"AsyncServedResult({self.id!r}, {[*self.outputs]})"


def _named(outputs: Mapping[str, _Output], name: str) -> _Output:
    if name not in outputs:
        raise UsageError(f"the result has no output {name!r:.80}: there is {', '.join(map(repr, outputs))}")
    return outputs[name]


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
