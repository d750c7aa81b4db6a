"""A result in the hands of who may read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from serfer.arrays import NPY, encode, file_names
from serfer.core.errors import InputError
from serfer.files import write_chunks
from serfer.results.manifest import ResultManifest
from serfer.results.results import Results, tensors_of


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
