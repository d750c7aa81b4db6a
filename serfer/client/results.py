"""Results that the service keeps, as clients have them: their outputs are downloaded when they are wanted."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from serfer.client.arrays import FileValues, MemoryValues, written_whole
from serfer.client.conversation import Conversation
from serfer.client.stored import StoredOutput, StoredResult
from serfer.client.tensors import MAX_ANSWER_BYTES, ServedTensor
from serfer.client.wire import AsyncWire, Wire
from serfer.core.errors import UsageError

PathLike = str | os.PathLike[str]
_Output = TypeVar("_Output")


@dataclass(frozen=True, repr=False)
class ServedOutput:
    """One output of a result; `numpy.asarray(output)` downloads it and is a read-only view of it, an array (N, ...).

    `datatype` is the protocol's: FP32, INT64, INT32, UINT8 or BOOL. What was downloaded so is kept with this object;
    `download` writes to a file what may be larger than memory.
    """

    _output: StoredOutput
    _wire: Wire
    _conversation: Conversation

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
        values = _in_memory(self._output)
        self._wire.run(self._conversation.fetch(self._output, values, None))
        return _tensor(self._output, values)

    def download(self, path: PathLike, *, timeout_s: float | None = None) -> Path:
        """Write it to a .npy file, which appears whole or not at all, in place of one that is there; return its path.

        Within `timeout_s`, by default the client's and a second for each megabyte.
        """
        with written_whole(Path(path)) as file:
            values = FileValues(self._output.form, file)
            self._wire.run(self._conversation.fetch(self._output, values, timeout_s))
        return Path(path)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """What makes it an array to numpy and others (NumPy's array interface, version 3)."""
        return self.tensor.__array_interface__

    def __repr__(self) -> str:
        return f"ServedOutput({self.name!r}, {self.datatype}, {list(self.shape)})"


class ServedResult(Mapping[str, ServedOutput]):
    """A result that the service keeps, with its outputs by name, until `expires`, in seconds since 1970."""

    def __init__(self, stored: StoredResult, wire: Wire, conversation: Conversation) -> None:
        self.id = stored.id
        self.model = stored.model
        self.expires = stored.expires
        self._wire = wire
        self._conversation = conversation
        self._outputs = {each.form.name: ServedOutput(each, wire, conversation) for each in stored.outputs}

    def download(self, name: str, path: PathLike, *, timeout_s: float | None = None) -> Path:
        """Write an output to a .npy file, as `ServedOutput.download` does."""
        return _named(self._outputs, name).download(path, timeout_s=timeout_s)

    def delete(self) -> None:
        """Delete the result; one that is already gone is not an error."""
        self._wire.run(self._conversation.delete_result(self.id))

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

    def __init__(self, stored: StoredResult, wire: AsyncWire, conversation: Conversation) -> None:
        self.id = stored.id
        self.model = stored.model
        self.expires = stored.expires
        self.outputs = {each.form.name: each.form for each in stored.outputs}
        self._stored = {each.form.name: each for each in stored.outputs}
        self._wire = wire
        self._conversation = conversation

    async def tensor(self, name: str) -> ServedTensor:
        """Download an output, of at most 1 GiB."""
        output = _named(self._stored, name)
        values = _in_memory(output)
        await self._wire.run(self._conversation.fetch(output, values, None))
        return _tensor(output, values)

    async def download(self, name: str, path: PathLike, *, timeout_s: float | None = None) -> Path:
        """Write an output to a .npy file as `ServedOutput.download` does."""
        output = _named(self._stored, name)
        with written_whole(Path(path)) as file:
            values = FileValues(output.form, file)
            await self._wire.run(self._conversation.fetch(output, values, timeout_s))
        return Path(path)

    async def delete(self) -> None:
        """Delete the result as `ServedResult.delete` does."""
        await self._wire.run(self._conversation.delete_result(self.id))

    def __repr__(self) -> str:
        return f"AsyncServedResult({self.id!r}, {[*self.outputs]})"


def _in_memory(output: StoredOutput) -> MemoryValues:
    """Return memory for an output; raises UsageError for one that is too large."""
    form = output.form
    if form.nbytes > MAX_ANSWER_BYTES:
        raise UsageError(f"output {form.name!r} has {form.nbytes:,} bytes, too many for memory: download it to a file")
    return MemoryValues(form)


def _tensor(output: StoredOutput, values: MemoryValues) -> ServedTensor:
    return ServedTensor(output.form.name, output.form.datatype, output.form.shape, values.take())


def _named(outputs: Mapping[str, _Output], name: str) -> _Output:
    """Return an output by name; raises UsageError that says which there are."""
    if name not in outputs:
        raise UsageError(f"the result has no output {name!r:.80}: there is {', '.join(map(repr, outputs))}")
    return outputs[name]
