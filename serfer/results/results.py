"""Results in their store: made whole by a manifest, read by their owner, streamed by strips, deleted."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.arrays import NPY, encode, file_names
from serfer.core.errors import InputError, MissingKeyError, ResultDamagedError, ResultGoneError
from serfer.core.keys import ResultPlace
from serfer.core.plan import OutputTensor
from serfer.core.plan.answers import shaped
from serfer.core.zarr import ChunkedArray
from serfer.files import write_chunks
from serfer.results.manifest import ResultManifest, decode_manifest, encode_manifest
from serfer.results.strips import STRIP_BYTES, OutputReader, strips
from serfer.storage.store import Store

Array = NDArray[Any]


class Results:
    """Results of a store, which its owner closes; `clock` gives seconds since the epoch.

    Every method may be called from several threads at once, and raises StoreUnavailableError where the store does not
    answer.
    """

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    def now(self) -> float:
        return self._clock()

    def write(self, manifest: ResultManifest) -> int:
        left_s = manifest.expires - self._clock()
        if left_s <= 0:
            raise ResultGoneError(f"result {manifest.id} has expired before it was whole")
        value = encode_manifest(manifest)
        self._store.put(manifest.place.manifest_key, value, left_s)
        return len(value)

    def read(self, owner: str, result: str) -> ResultManifest:
        """Return the manifest of an owner's result; raises ResultGoneError, ResultDamagedError, InputError."""
        place = ResultPlace(owner, result)
        try:
            manifest = decode_manifest(self._store.get(place.manifest_key), place)
        except MissingKeyError:
            raise self._gone_error(place) from None
        if manifest.expires <= self._clock():
            raise self._gone_error(place)
        return manifest

    def arrays(self, manifest: ResultManifest) -> dict[str, Array]:
        """Return all outputs by name, (N, ...), those whose size depends on the image as large as the largest."""
        return shaped(tensors_of(manifest), [self._array(manifest, output) for output in manifest.outputs])

    def npy_chunks(
        self, manifest: ResultManifest, output: ChunkedArray, strip_bytes: int = STRIP_BYTES
    ) -> Iterator[bytes]:
        """Yield an output as .npy in chunks of about `strip_bytes`: values are checked when the last one is yielded."""
        yield npy_header(output)
        for strip in self._strips(manifest, output, strip_bytes):
            yield strip.tobytes()

    def chunk_ranges(self, manifest: ResultManifest, key: str, length: int, most_bytes: int) -> Iterator[bytes]:
        for start in range(0, length, most_bytes):
            try:
                yield self._store.get(key, start, min(most_bytes, length - start))
            except MissingKeyError as error:
                raise ResultDamagedError(f"result {manifest.id} lacks a chunk, so run it again: {error}") from error

    def delete(self, manifest: ResultManifest) -> None:
        first, *chunks = manifest.place.keys(manifest.outputs)
        self._store.delete([first])
        self._store.delete(chunks)

    def _array(self, manifest: ResultManifest, output: ChunkedArray) -> Array:
        whole = np.empty(output.shape, dtype=output.dtype)
        flat, end = whole.reshape(-1), 0
        for strip in self._strips(manifest, output, STRIP_BYTES):
            start, end = end, end + strip.size
            flat[start:end] = strip.reshape(-1)
        return whole

    def _strips(self, manifest: ResultManifest, output: ChunkedArray, strip_bytes: int) -> Iterator[Array]:
        if output not in manifest.outputs:
            raise InputError(f"result {manifest.id} has no output {output.name!r:.80}")
        reader = OutputReader(self._store, manifest, output)
        for strip in strips(output, strip_bytes):
            yield reader.read(strip)

    def _gone_error(self, place: ResultPlace) -> ResultGoneError:
        return ResultGoneError(
            f"there is no result {place.id}: it has expired, was deleted, is not yours, or has never been whole"
        )


@dataclass(frozen=True)
class StoredResult:
    """An answer that lies in the store of results until `manifest.expires`, in seconds since the epoch.

    Every method raises ResultDamagedError where a chunk of it is gone or altered, StoreUnavailableError where the store
    does not answer.
    """

    results: Results
    manifest: ResultManifest

    @property
    def id(self) -> str:
        return self.manifest.id

    def arrays(self) -> dict[str, NDArray[Any]]:
        return self.results.arrays(self.manifest)

    def save(self, folder: Path | str, stem: str | None = None, *, overwrite: bool = False) -> list[Path]:
        """Write each output to FOLDER/STEM.OUTPUT.npy, by strips, so that none of a fixed size is in memory as a whole.

        The stem is the result's id, unless given. Returns the files, each of which appears whole or not at all; raises
        InputError for one that exists, unless `overwrite`.
        """
        directory = Path(folder)
        paths = [directory / name for name in self.file_names(stem)]
        if (there := next((path for path in paths if path.exists()), None)) and not overwrite:
            raise InputError(f"{there} exists: choose to overwrite it, or another folder")
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"{str(directory)!r} cannot be a folder for outputs: {reason}") from error
        sized = self.arrays() if any(output.sized_by for output in self.manifest.outputs) else {}
        for path, output in zip(paths, self.manifest.outputs, strict=True):
            chunks = self.results.npy_chunks(self.manifest, output)
            write_chunks(path, [encode(sized[output.name], NPY, output.name)] if output.sized_by else chunks)
        return paths

    def file_names(self, stem: str | None = None) -> Sequence[str]:
        return file_names(stem or self.id, tensors_of(self.manifest), NPY)

    def delete(self) -> None:
        self.results.delete(self.manifest)


def tensors_of(manifest: ResultManifest) -> list[OutputTensor]:
    return [
        OutputTensor(output.name, output.dims, output.dtype, output.sized_by, output.axis)
        for output in manifest.outputs
    ]


def npy_header(output: ChunkedArray) -> bytes:
    header = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(np.dtype(output.dtype).newbyteorder("<"))
    np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": output.shape})
    return header.getvalue()


def npy_bytes(output: ChunkedArray) -> int:
    return len(npy_header(output)) + output.nbytes
