"""A registry in a directory, shared by the processes of one machine (or of a shared file system with locks).

    ROOT/registry.json                                says that the directory is a registry
    ROOT/documents/applications/faces.json/           the last versions of a document
        000000000012-9f86d081884c7d65.data            version 12; the one with the highest number counts
        000000000013-60303ae22b998861.gone            the document was deleted
    ROOT/artefacts/9f/9f86d08188...                   an artefact; its modification time is when it was last put
    ROOT/parts/1f3a...                                what is being written
    ROOT/lock                                         writers of documents and deletions hold it alone, puts shared

Everything is written under `parts`, forced to the disk and renamed, so that what has a name is whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from serfer.core.errors import AlteredPieceError, InputError, MissingKeyError, UnavailableError, UsageError
from serfer.files import locked
from serfer.registry.files import opened, sha256_of
from serfer.registry.store import (
    MAX_DOCUMENT_BYTES,
    MAX_DOCUMENTS,
    ArtefactEntry,
    Document,
    DocumentVersion,
    bounded,
    check_digest,
    check_name,
    check_prefix,
    check_size,
)

KEPT_VERSIONS: Final = 50
"""The versions of a document that are kept; those of a deleted one for 30 days more."""
_FORMAT: Final = {"serfer registry": 1}
_MARK, _LOCK = "registry.json", "lock"
_FOLDERS: Final = ("documents", "artefacts", "parts")
_VERSION: Final = re.compile(r"(\d{12}-[0-9a-f]{16})\.(data|gone)", re.ASCII)
_ABANDONED_S: Final = 86_400.0
_FORGOTTEN_S: Final = 30 * 86_400.0
_TRIES: Final = 20


@dataclass(frozen=True, slots=True, order=True)
class _Version:
    """A file of a document's folder; versions are ordered by their numbers."""

    token: str
    gone: bool

    @property
    def number(self) -> int:
        return int(self.token[:12])

    @property
    def file(self) -> str:
        return f"{self.token}.{'gone' if self.gone else 'data'}"


class DirectoryStore:
    """A registry's backend in a directory, readable for its owner alone; `unix` is the time that ages count by.

    Raises UsageError where the directory holds something else, or was written by a newer version, UnavailableError
    where there is none and `create` is false.
    """

    def __init__(self, root: Path, unix: Callable[[], float] = time.time, *, create: bool = True) -> None:
        self._root = root
        self._unix = unix
        with self._reached():
            if not create and not (root / _MARK).exists():
                raise UnavailableError(f"there is no registry in {root}: serfer app register makes one")
            self._open()

    def __str__(self) -> str:
        return str(self._root)

    def names(self, prefix: str) -> list[str]:
        """List the folders below `documents` whose last version is not a deletion."""
        base = self._root / "documents"
        with self._reached():
            names = [path.relative_to(base).as_posix() for path in self._folders(base / check_prefix(prefix))]
            found = sorted(name for name in names if self._current(name) is not None)
            self._check_there(found)
        if len(found) > MAX_DOCUMENTS:
            raise InputError(f"the registry {self._root} has more than {MAX_DOCUMENTS:,} documents")
        return found

    def read(self, name: str, most_bytes: int = MAX_DOCUMENT_BYTES) -> Document | None:
        """Read the last version."""
        folder = self._folder(name)
        with self._reached():
            for _ in range(_TRIES):  # a version that was current may be one too many by now
                version = self._current(name)
                if version is None:
                    self._check_there(None)
                    return None
                with contextlib.suppress(FileNotFoundError):
                    return Document(bounded(name, _head(folder / version.file, most_bytes), most_bytes), version.token)
        raise UnavailableError(f"the registry {self._root}: others write {name} all the time; try again")

    def compare_and_set(self, name: str, expected: str | None, data: bytes) -> str | None:
        """Write the next version while no other writer runs."""
        return self._next(name, expected, check_size(name, data))

    def delete(self, name: str, expected: str) -> bool:
        """Write an empty version that says so."""
        return self._next(name, expected, None) is not None

    def versions(self, name: str) -> list[DocumentVersion]:
        """List the files of the document's folder."""
        folder, found = self._folder(name), []
        with self._reached():
            for version in _versions(folder):
                with contextlib.suppress(FileNotFoundError):
                    status = (folder / version.file).stat()
                    if not version.gone:
                        found.append(DocumentVersion(version.token, status.st_size, status.st_mtime))
            self._check_there(found)
        return found[::-1]

    def read_version(self, name: str, version: str, most_bytes: int = MAX_DOCUMENT_BYTES) -> bytes | None:
        """Read one file of the document's folder."""
        path = self._folder(name) / f"{version}.data"
        if not _VERSION.fullmatch(path.name):
            return None
        with self._reached(), contextlib.suppress(FileNotFoundError):
            return bounded(name, _head(path, most_bytes), most_bytes)
        return None

    def put_artefact(self, path: Path) -> str:
        """Copy the file, or set the time of the copy that is there."""
        with opened(path) as source:
            digest = sha256_of(source)
            if not self._refresh(digest):
                os.lseek(source, 0, os.SEEK_SET)
                digest = self._copy(source)
        return digest

    def fetch_artefact(self, digest: str, path: Path) -> None:
        """Copy the artefact."""
        part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
        with self._artefact_opened(digest) as source:
            try:
                with part.open("xb") as file:
                    found = sha256_of(source, file.write)
                if found != digest:
                    raise AlteredPieceError(f"artefact {digest} of the registry {self._root} was altered")
                part.replace(path)
            except OSError as error:
                raise UnavailableError(f"{path} cannot be written: {error.strerror}") from error
            finally:
                part.unlink(missing_ok=True)

    def has_artefact(self, digest: str) -> bool:
        """Look for the file."""
        with self._reached():
            return self._artefact(digest).is_file()

    def artefacts(self) -> Iterator[ArtefactEntry]:
        """List the files below `artefacts`."""
        with self._reached():
            for path in sorted((self._root / "artefacts").glob("??/*")):
                with contextlib.suppress(FileNotFoundError, InputError):
                    status = path.stat()
                    age = self._unix() - status.st_mtime
                    yield ArtefactEntry(check_digest(path.name), status.st_size, age, str(status.st_mtime_ns))

    def delete_artefact(self, entry: ArtefactEntry) -> bool:
        """Unlink the file where its time is still the same, while nobody sets it."""
        path = self._artefact(entry.digest)
        with self._reached(), self._lock(fcntl.LOCK_EX):
            try:
                if str(path.stat().st_mtime_ns) != entry.version:
                    return False
                path.unlink()
            except FileNotFoundError:
                return False
            return True

    def _open(self) -> None:
        """Make the directory, or see that it is a registry."""
        root, mark = self._root, self._root / _MARK
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not mark.exists():
            foreign = [path.name for path in root.iterdir() if path.name not in {*_FOLDERS, _LOCK, _MARK}]
            if foreign and not mark.exists():
                raise UsageError(f"{root} is not empty and not a registry: give an empty or a new directory")
            for name in _FOLDERS:
                (root / name).mkdir(mode=0o700, exist_ok=True)
            self._write(mark, json.dumps(_FORMAT).encode())
        if _read_mark(mark) != _FORMAT:
            raise UsageError(f"{mark} is not of a registry that this version of SerFer reads: update SerFer")
        with contextlib.suppress(OSError):  # who may only read leaves that to others
            self._tidy()

    def _tidy(self) -> None:
        """Remove what killed writers have left, and documents that were deleted long ago."""
        for part in (self._root / "parts").iterdir():
            if self._is_older(part, _ABANDONED_S):
                part.unlink(missing_ok=True)
        for folder in self._folders(self._root / "documents"):
            if self._is_forgotten(folder):
                self._forget(folder)

    def _is_older(self, path: Path, seconds: float) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return self._unix() - path.stat().st_mtime > seconds
        return False

    def _is_forgotten(self, folder: Path) -> bool:
        """Return whether a document was deleted so long ago that its versions may go."""
        versions = _versions(folder)
        return bool(versions) and versions[-1].gone and self._is_older(folder / versions[-1].file, _FORGOTTEN_S)

    def _forget(self, folder: Path) -> None:
        with self._lock(fcntl.LOCK_EX):
            if self._is_forgotten(folder):  # still: it may have been written again
                for version in _versions(folder):  # the deletion itself last
                    (folder / version.file).unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # another document's folder may lie in it
                    folder.rmdir()

    def _next(self, name: str, expected: str | None, data: bytes | None) -> str | None:
        """Write the next version of a document, None for a deletion, and forget the oldest ones."""
        folder = self._folder(name)
        with self._reached(), self._lock(fcntl.LOCK_EX):
            versions = _versions(folder)
            current = versions[-1] if versions and not versions[-1].gone else None
            if (current.token if current else None) != expected:
                return None
            for each in (*reversed(folder.relative_to(self._root).parents[:-1]), folder):
                (self._root / each).mkdir(mode=0o700, exist_ok=True)  # `parents` would give those another mode
            number = versions[-1].number + 1 if versions else 1
            new = _Version(f"{number:012}-{secrets.token_hex(8)}", data is None)
            self._write(folder / new.file, data or b"")
            for old in versions[: 1 - KEPT_VERSIONS]:
                (folder / old.file).unlink(missing_ok=True)
            return new.token

    def _write(self, path: Path, data: bytes) -> None:
        """Write a file that appears whole, and outlives a loss of power."""
        with self._part() as (part, descriptor):
            _write_all(descriptor, data)
            os.fsync(descriptor)
            part.replace(path)
            _sync_folder(path.parent)

    def _copy(self, source: int) -> str:
        """Keep a copy of a file, whose digest is that of what was copied."""
        with self._reached(), self._part() as (part, descriptor):
            digest = sha256_of(source, lambda block: _write_all(descriptor, block))
            os.fsync(descriptor)
            path = self._artefact(digest)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with self._lock(fcntl.LOCK_SH):
                self._set_time(part)
                part.replace(path)
            _sync_folder(path.parent)
        return digest

    def _refresh(self, digest: str) -> bool:
        """Set the time of an artefact; say whether it is there."""
        with self._reached(), self._lock(fcntl.LOCK_SH):
            try:
                self._set_time(self._artefact(digest))
            except FileNotFoundError:
                return False
            return True

    def _set_time(self, path: Path) -> None:
        moment = int(self._unix() * 1e9)
        os.utime(path, ns=(moment, moment))

    def _artefact(self, digest: str) -> Path:
        return self._root / "artefacts" / check_digest(digest)[:2] / digest

    def _folder(self, name: str) -> Path:
        return self._root / "documents" / check_name(name)

    def _folders(self, base: Path) -> list[Path]:
        """Return the folders that hold versions, of deleted documents too."""
        return [Path(folder) for folder, _, files in os.walk(base) if any(map(_VERSION.fullmatch, files))]

    def _check_there(self, found: object) -> None:
        """Raise OSError where nothing was found because the registry is away: moved, or not mounted."""
        if not found:
            (self._root / _MARK).stat()

    def _current(self, name: str) -> _Version | None:
        versions = _versions(self._folder(name))
        return versions[-1] if versions and not versions[-1].gone else None

    @contextlib.contextmanager
    def _artefact_opened(self, digest: str) -> Iterator[int]:
        """Open an artefact; raises MissingKeyError where there is none."""
        with self._reached():
            self._root.stat()
            try:
                descriptor = os.open(self._artefact(digest), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise MissingKeyError(f"the registry {self._root} has no artefact {digest}") from None
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _part(self) -> Iterator[tuple[Path, int]]:
        """Open a file that no reader knows; it is removed unless the body renames it."""
        part = self._root / "parts" / secrets.token_hex(16)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            yield part, descriptor
        finally:
            os.close(descriptor)
            part.unlink(missing_ok=True)

    def _lock(self, kind: int) -> contextlib.AbstractContextManager[None]:
        return locked(self._root / _LOCK, kind)

    @contextlib.contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UnavailableError(f"the registry {self._root} cannot be used: {error.strerror}") from error


def _versions(folder: Path) -> list[_Version]:
    """Return the versions in a document's folder, the oldest first."""
    try:
        matches = [_VERSION.fullmatch(name) for name in os.listdir(folder)]  # noqa: PTH208 - names are what is wanted
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(_Version(match[1], match[2] == "gone") for match in matches if match)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _head(path: Path, most_bytes: int) -> bytes:
    """Return a file's content, or a byte more than `most_bytes` of it."""
    with path.open("rb") as file:
        return file.read(most_bytes + 1)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_mark(mark: Path) -> object:
    try:
        return json.loads(_head(mark, 4096))
    except ValueError:
        return None
