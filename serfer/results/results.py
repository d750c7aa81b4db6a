"""Results in their store: made whole by a manifest, read by their owner, streamed by strips, deleted."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.checksum import protect, verified
from serfer.core.errors import AlteredPieceError, InputError, MissingKeyError, ResultDamagedError, ResultGoneError
from serfer.core.keys import ResultPlace
from serfer.results.manifest import (
    ResultManifest,
    ResultOutput,
    decode_manifest,
    encode_manifest,
)
from serfer.results.strips import STRIP_BYTES, OutputReader, strips
from storage.store import Store

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
        """Return the time, in seconds since the epoch."""
        return self._clock()

    def write(self, manifest: ResultManifest) -> int:
        """Make a result whole, all parts of which are there; returns the bytes that are put for that."""
        left_s = manifest.expires - self._clock()
        if left_s <= 0:
            raise ResultGoneError(f"result {manifest.id} has expired before it was whole")
        key = manifest.place.manifest_key
        value = protect(encode_manifest(manifest), key)
        self._store.put(key, value, left_s)
        return len(value)

    def read(self, owner: str, result: str) -> ResultManifest:
        """Return the manifest of an owner's result.

        Raises:
            ResultGoneError: it has expired, was deleted, is another owner's, or never was whole.
            ResultDamagedError: the manifest is not what was written.
            InputError: `owner` or `result` cannot be one.
        """
        place = ResultPlace(owner, result)
        try:
            stored = self._store.get(place.manifest_key)
        except MissingKeyError:
            raise _gone(result) from None
        try:
            manifest = decode_manifest(verified(stored, place.manifest_key), place)
        except AlteredPieceError as error:
            raise ResultDamagedError(f"the manifest of result {result} was altered, so run it again") from error
        if manifest.expires <= self._clock():
            raise _gone(result)
        return manifest

    def arrays(self, manifest: ResultManifest) -> dict[str, Array]:
        """Return all outputs by name, each an array (N, ...) in the network's own type; raises as `npy_chunks` does."""
        return {output.name: self._array(manifest, output) for output in manifest.outputs}

    def npy_chunks(
        self, manifest: ResultManifest, output: ResultOutput, strip_bytes: int = STRIP_BYTES
    ) -> Iterator[bytes]:
        """Yield an output as a .npy file (version 1.0, C order), in chunks of about `strip_bytes` or one row.

        Every value has been checked when the last chunk is yielded, not before: a file is whole once the iterator ends.
        The file has `npy_bytes` bytes.

        Raises:
            ResultDamagedError: a part is missing, too short or altered.
        """
        yield npy_header(manifest, output)
        for strip in self._strips(manifest, output, strip_bytes):
            yield strip.tobytes()

    def delete(self, manifest: ResultManifest) -> None:
        """Delete a result, its manifest first."""
        self.discard(manifest.place, manifest.tiles)

    def discard(self, place: ResultPlace, tiles: int) -> None:
        """Delete whatever lies at a place that `tiles` tiles write to, whole or not."""
        manifest, *parts = place.keys(tiles)
        self._store.delete([manifest])
        self._store.delete(parts)

    def _array(self, manifest: ResultManifest, output: ResultOutput) -> Array:
        whole = np.empty(output.array_shape(manifest.images), dtype=output.dtype)
        flat, end = whole.reshape(-1), 0
        for strip in self._strips(manifest, output, STRIP_BYTES):
            start, end = end, end + strip.size
            flat[start:end] = strip.reshape(-1)
        return whole

    def _strips(self, manifest: ResultManifest, output: ResultOutput, strip_bytes: int) -> Iterator[Array]:
        if output not in manifest.outputs:
            raise InputError(f"result {manifest.id} has no output {output.name!r:.80}")
        reader = OutputReader(self._store, manifest, output)
        for strip in strips(output, manifest.images, strip_bytes):
            yield reader.read(strip)


def npy_header(manifest: ResultManifest, output: ResultOutput) -> bytes:
    """Return the header of an output's .npy file."""
    header = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(np.dtype(output.dtype).newbyteorder("<"))
    shape = output.array_shape(manifest.images)
    np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": shape})
    return header.getvalue()


def npy_bytes(manifest: ResultManifest, output: ResultOutput) -> int:
    """Return the bytes of an output's .npy file."""
    return len(npy_header(manifest, output)) + output.nbytes(manifest.images)


def _gone(result: str) -> ResultGoneError:
    return ResultGoneError(
        f"there is no result {result}: it has expired, was deleted, is not yours, or has never been whole"
    )
