"""A registry's backend: documents by name with numbered versions, and artefacts by digest, as objects of any store.

    registry.json                                       says that this is a registry, and of which format
    documents/applications/faces.json/000000000012      version 12; the one with the highest number counts
    documents/applications/faces.json/000000000013      of 32 bytes: the document was deleted
    artefacts/9f86d08188.../data-000000000000           the content of an artefact
    artefacts/9f86d08188.../000000000001                empty: it was put
    artefacts/9f86d08188.../000000000002                not empty: it is garbage; put again, its content is data-...2
    parts/1f3a...                                       in directories: what is being written

Every number is taken by put-if-absent, so of two writers at once one wins, and nothing is locked. A version begins with
32 hex digits, by which a writer whose response was lost recognises it. An artefact that is put gets the next number,
and so does its deletion: it deletes nothing that was put since it was listed, and what is put after it is sent again.
Numbers that are free again because old versions were deleted are recognised by another look after the write.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import secrets
import stat
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Final

from obstore.exceptions import AlreadyExistsError, BaseError, NotSupportedError, PermissionDeniedError

from serfer.core.errors import (
    AlteredPieceError,
    InputError,
    MissingKeyError,
    NoRegistryError,
    UnavailableError,
    UsageError,
)
from serfer.files import sync_folder
from serfer.registry.records import DIGEST, MAX_DOCUMENT_BYTES, check_digest, check_size
from serfer.storage.coordination import Entry

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

MAX_DOCUMENTS: Final = 10_000
"""The most documents that a list names; a directory or a prefix with more of them is refused."""
KEPT_VERSIONS: Final = 50
"""The versions of a document that are kept; those of a deleted one for 30 days more."""
MARK: Final = "registry.json"
"""The object that says that a place is a registry."""
PARTS: Final = "parts"
"""The folder of a directory for what is being written."""
_FORMAT: Final = 2
_NONCE: Final = 32  # the hex digits that a version begins with, before a newline and its content
_PART: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}"
_NAME: Final = re.compile(rf"{_PART}(/{_PART}){{0,3}}", re.ASCII)
_PREFIX: Final = re.compile(rf"|{_PART}/", re.ASCII)
_TEMPORARY: Final = re.compile(r"[0-9a-f]{32}")
_NUMBERED: Final = re.compile(r"(data-)?(\d{12})", re.ASCII)
_FORGOTTEN_S: Final = 30 * 86_400.0
_ABANDONED_S: Final = 86_400.0
_BLOCK: Final = 1 << 20
_PART_BYTES: Final = 16 << 20
_MAX_PARTS: Final = 10_000
_MAX_MARK_BYTES: Final = 4096
_TRIES: Final = 20
_NO_BUCKET: Final = "NoSuchBucket"


@dataclass(frozen=True, slots=True)
class DocumentVersion:
    """A version of a document that is kept: `written` in seconds since the epoch, by the backend's clock."""

    version: str
    bytes: int
    written: float


@dataclass(frozen=True, slots=True)
class ArtefactEntry:
    """An artefact that is there; `age_s` counts from when it was last put, by the backend's clock.

    `version` is the number of that put.
    """

    digest: str
    bytes: int
    age_s: float
    version: int


@dataclass(frozen=True, slots=True)
class _Folder:
    """The objects of a document's or an artefact's folder, by their numbers in ascending order."""

    numbers: dict[int, ObjectMeta] = field(default_factory=dict)
    data: dict[int, ObjectMeta] = field(default_factory=dict)

    @property
    def last(self) -> int:
        return max(self.numbers, default=0)

    @property
    def live_version(self) -> str | None:
        return _number(self.last) if self.numbers and self.numbers[self.last]["size"] > _NONCE else None

    @property
    def kept_versions(self) -> list[tuple[int, ObjectMeta]]:
        return [
            (n, meta) for n, meta in self.numbers.items() if n > self.last - KEPT_VERSIONS and meta["size"] > _NONCE
        ]

    @property
    def deletion(self) -> int:
        """The number of an artefact's last deletion, by which its content is named since."""
        return max((number for number, meta in self.numbers.items() if meta["size"]), default=0)

    @property
    def content(self) -> ObjectMeta | None:
        return self.data.get(self.deletion) if self.last > self.deletion else None


class RegistryStore:
    """A registry in an object store; `name` names it in errors, and `root` is its directory where it is one.

    Every method may be called by several threads and processes at once, and blocks. All raise UnavailableError where
    the store cannot be reached or has no room, and InputError for a name or a digest that cannot be one. A writer that
    is killed at any point leaves what was there or the new content, each whole. `unix` is the time that ages count by.
    """

    def __init__(
        self, objects: ObjectStore, name: str, root: Path | None = None, unix: Callable[[], float] = time.time
    ) -> None:
        self.objects = objects
        self._name = name
        self._root = root
        self._unix = unix

    def __str__(self) -> str:
        return self._name

    def open(self, *, create: bool) -> None:
        """See that there is a registry, or make one.

        Raises UsageError for a registry of another format, or a server that ignores conditions; UnavailableError where
        there is none and `create` is false.
        """
        with self._reached():
            found = self._format()
            if found is None:
                if not create:
                    raise NoRegistryError(f"there is no registry in {self}: serfer app register makes one")
                self._check_conditions()
                self._create(MARK, json.dumps({"serfer registry": _FORMAT}).encode())
                found = self._format()
            if found != _FORMAT:
                raise UsageError(
                    f"{self} is not a registry that this version of SerFer reads: use the version that wrote it, or "
                    "another directory or prefix"
                )
            self._delete_old_parts()

    def names(self, prefix: str) -> list[str]:
        """Return the sorted names of the documents that begin with `prefix`: "" or a folder such as "applications/"."""
        if not _PREFIX.fullmatch(prefix):
            raise InputError(f"{prefix!r:.100} is not a folder of a registry's documents: give NAME/")
        with self._reached():
            folders = self._folders(f"documents/{prefix}")
        found = sorted(name.removeprefix("documents/") for name, folder in folders.items() if folder.live_version)
        if len(found) > MAX_DOCUMENTS:
            raise InputError(f"the registry {self} has more than {MAX_DOCUMENTS:,} documents")
        return found

    def get(self, name: str, most_bytes: int = MAX_DOCUMENT_BYTES) -> Entry | None:
        for _ in range(_TRIES):  # a version that was the last may be one too many by now
            version = self.version(name)
            if version is None:
                return None
            data = self.read_version(name, version, most_bytes)
            if data is not None:
                return Entry(data, version)
        raise UnavailableError(f"the registry {self}: others write {name} all the time; try again")

    def version(self, name: str) -> str | None:
        with self._reached():
            return self._folder(_document(name)).live_version

    def compare_and_set(self, name: str, expected: str | None, value: bytes, ttl: float = math.inf) -> str | None:
        """Write a document in place of the version `expected` (None: of nothing) and return the new version; it stays.

        Returns None, and writes nothing, where another version is there by now. Raises InputError for more than
        MAX_DOCUMENT_BYTES.
        """
        del ttl
        return self._write_next(name, expected, b"\n" + check_size(name, value))

    def delete(self, name: str, expected: str) -> bool:
        """Delete a document of the version `expected`; say whether that was there. Earlier versions are kept."""
        return self._write_next(name, expected, b"") is not None

    def versions(self, name: str) -> list[DocumentVersion]:
        with self._reached():
            kept = self._folder(_document(name)).kept_versions
        return [DocumentVersion(_number(n), meta["size"] - _NONCE - 1, _written(meta)) for n, meta in reversed(kept)]

    def read_version(self, name: str, version: str, most_bytes: int = MAX_DOCUMENT_BYTES) -> bytes | None:
        folder = _document(name)
        if not re.fullmatch(r"\d{12}", version, re.ASCII):
            return None
        with self._reached():
            try:
                body = self._head(f"{folder}/{version}", most_bytes + _NONCE + 2)
            except FileNotFoundError:
                return None
        nonce, found, data = body.partition(b"\n")
        if len(nonce) != _NONCE:
            raise InputError(f"{name} of the registry {self} was not written by SerFer: restore an earlier version")
        if len(data) > most_bytes:
            raise InputError(f"{name} has more than {most_bytes:,} bytes: it was not written by a registry")
        return data if found else None

    def put_artefact(self, path: Path) -> str:
        """Keep a file, and return its SHA-256 digest in hex; where it is kept already, it only counts as new again.

        Raises InputError for a link, for what is not a regular file, or for a file that changes meanwhile.
        """
        with _open_regular(path) as source, self._reached():
            digest = hashlib.file_digest(source, "sha256").hexdigest()
            key = f"artefacts/{digest}"
            for _ in range(_TRIES):
                found = self._folder(key)
                if found.content is None:
                    self._send(source, f"{key}/data-{_number(found.deletion)}", digest)
                put = self._create(f"{key}/{_number(found.last + 1)}", b"")
                if put and self._folder(key).deletion == found.deletion:
                    return digest
        raise UnavailableError(f"the registry {self}: others put and delete {digest} all the time; try again")

    def fetch_artefact(self, digest: str, path: Path) -> None:
        """Write an artefact to a file, which appears whole and verified or not at all.

        Raises MissingKeyError where it is not there, AlteredPieceError where its content has another digest.
        """
        part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
        altered = AlteredPieceError(f"artefact {digest} of the registry {self} was altered")
        with self._reached():
            stream = self._stream(digest)
            try:
                with part.open("xb") as file:
                    file.writelines(_verified(stream, digest, altered))
                part.replace(path)
            except OSError as error:
                raise UnavailableError(f"{path} cannot be written: {error.strerror or error}") from error
            finally:
                part.unlink(missing_ok=True)

    def artefacts(self) -> Iterator[ArtefactEntry]:
        with self._reached():
            folders = self._folders("artefacts/")
        for name, folder in folders.items():
            digest, content = name.removeprefix("artefacts/"), folder.content
            if DIGEST.fullmatch(digest) and content:
                age = self._unix() - _written(folder.numbers[folder.last])
                yield ArtefactEntry(digest, content["size"], age, folder.last)

    def delete_artefact(self, entry: ArtefactEntry) -> bool:
        """Delete an artefact, unless it was put again since `entry` was read; say whether it was deleted."""
        folder, deletion = _artefact(entry.digest), entry.version + 1
        with self._reached():
            if not self._create(f"{folder}/{_number(deletion)}", b"deleted"):
                return False
            found = self._folder(folder)
            before = [meta for kind in (found.numbers, found.data) for n, meta in kind.items() if n < deletion]
            self._delete(before)
        return True

    def delete_leftovers(self) -> None:
        """Delete the versions of documents deleted a month ago, and what killed writers have left of artefacts."""
        with self._reached():
            for folder in self._folders("documents/").values():
                if not folder.live_version and self._is_older(folder.numbers[folder.last], _FORGOTTEN_S):
                    self._delete([meta for number, meta in folder.numbers.items() if number < folder.last])
            for folder in self._folders("artefacts/").values():
                unused = [] if folder.content else list(folder.data.values())
                unused += [meta for number, meta in folder.data.items() if number < folder.deletion]
                self._delete([meta for meta in unused if self._is_older(meta, _ABANDONED_S)])

    def _format(self) -> int | None:
        """The number of the registry's format, None where there is none, 0 for something else."""
        try:
            return int(json.loads(self._head(MARK, _MAX_MARK_BYTES))["serfer registry"])
        except FileNotFoundError as error:
            if _NO_BUCKET in str(error):
                raise
            return None
        except (ValueError, TypeError, KeyError):
            return 0

    def _head(self, key: str, most_bytes: int) -> bytes:
        return bytes(self.objects.get(key, options={"range": (0, most_bytes)}).bytes())

    def _stream(self, digest: str) -> Iterator[bytes]:
        missing = MissingKeyError(f"the registry {self} has no artefact {digest}")
        content = self._folder(_artefact(digest)).content
        if content is None:
            raise missing
        try:
            return map(bytes, self.objects.get(content["path"]).stream(_BLOCK))
        except FileNotFoundError:
            raise missing from None

    def _write_next(self, name: str, expected: str | None, content: bytes) -> str | None:
        """Write the next version of a document, only 32 digits for a deletion, and delete the oldest ones."""
        folder, nonce = _document(name), secrets.token_hex(_NONCE // 2).encode()
        with self._reached():
            found = self._folder(folder)
            if found.live_version != expected:
                return None
            number = found.last + 1
            key = f"{folder}/{_number(number)}"
            try:
                written = self._create(key, nonce + content) or self._begins_with(key, nonce)
            except BaseError:  # no response came: it may be there
                if not self._begins_with(key, nonce):
                    raise
                written = True
            if not written:
                return None
            found = self._folder(folder)
            if found.last >= number + KEPT_VERSIONS:  # its number may have been free because it was deleted
                raise UnavailableError(f"the registry {self}: others write {name} all the time; try again")
            with suppress(PermissionDeniedError):  # who may write need not be allowed to delete
                self._delete([meta for kept, meta in found.numbers.items() if kept <= found.last - KEPT_VERSIONS])
        return _number(number)

    def _begins_with(self, key: str, nonce: bytes) -> bool:
        try:
            return self._head(key, _NONCE) == nonce
        except FileNotFoundError:
            return False

    def _create(self, key: str, data: bytes) -> bool:
        try:
            if self._root is None:
                self.objects.put(key, data, mode="create")
            else:
                with self._part(self._root, [data]) as part:
                    self.objects.copy(part, key, overwrite=False)
                sync_folder((self._root / key).parent)
        except AlreadyExistsError:
            return False
        return True

    def _send(self, source: BufferedReader, key: str, digest: str) -> None:
        changed = InputError(f"a file changed while it was kept as {digest}: try again")
        source.seek(0)
        blocks = _verified(iter(lambda: source.read(_BLOCK), b""), digest, changed)
        if self._root is not None:
            with self._part(self._root, blocks) as part:
                self.objects.rename(part, key)
            sync_folder((self._root / key).parent)
            return
        with tempfile.TemporaryFile() as copy:
            copy.writelines(blocks)
            size = copy.tell()
            copy.seek(0)
            self.objects.put(key, copy, chunk_size=max(_PART_BYTES, -(-size // _MAX_PARTS)))

    @contextmanager
    def _part(self, root: Path, blocks: Iterable[bytes]) -> Iterator[str]:
        """Write an object of a directory that no reader knows, to the disk; it is deleted unless it is renamed."""
        key = f"{PARTS}/{secrets.token_hex(16)}"
        try:
            with open(root / key, "xb", opener=_open_own) as file:
                file.writelines(blocks)
                file.flush()
                os.fsync(file.fileno())
            yield key
        finally:
            (root / key).unlink(missing_ok=True)

    def _delete(self, objects: Iterable[ObjectMeta]) -> None:
        for meta in sorted(objects, key=lambda meta: meta["path"]):  # the oldest first
            with suppress(FileNotFoundError):
                self.objects.delete(meta["path"])

    def _folder(self, name: str) -> _Folder:
        """List a folder; raises FileNotFoundError where it is empty because the registry is away."""
        objects = self.objects.list_with_delimiter(name)["objects"]
        return self._sort(objects).get(name, _Folder())

    def _folders(self, prefix: str) -> dict[str, _Folder]:
        pages = self.objects.list(prefix.rstrip("/"), chunk_size=1000)
        return self._sort(meta for page in pages for meta in page)

    def _sort(self, objects: Iterable[ObjectMeta]) -> dict[str, _Folder]:
        folders: dict[str, _Folder] = defaultdict(_Folder)
        for meta in sorted(objects, key=lambda meta: meta["path"]):
            folder, _, name = meta["path"].rpartition("/")
            if match := _NUMBERED.fullmatch(name):
                numbers = folders[folder].data if match[1] else folders[folder].numbers
                numbers[int(match[2])] = meta
        if not folders:
            self.objects.head(MARK)
        return folders

    def _is_older(self, meta: ObjectMeta, seconds: float) -> bool:
        return self._unix() - _written(meta) > seconds

    def _delete_old_parts(self) -> None:
        if self._root is None:
            return
        with suppress(OSError):  # who may only read leaves that to others
            for part in (self._root / PARTS).iterdir():
                if _TEMPORARY.fullmatch(part.name) and self._unix() - part.stat().st_mtime > _ABANDONED_S:
                    part.unlink(missing_ok=True)

    def _check_conditions(self) -> None:
        trial = f"{MARK}.{secrets.token_hex(8)}"
        with suppress(NotSupportedError):
            held = self._create(trial, b"") and not self._create(trial, b"")
            self.objects.delete(trial)
            if held:
                return
        raise UsageError(
            f"the registry {self}: this server ignores If-None-Match, so that updates would be lost: use another S3 "
            "server, or a directory"
        )

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError) as error:
            reason = str(error).partition("\n")[0]
            if _NO_BUCKET in str(error):
                reason = "its bucket does not exist: create it"
            elif self._root is None and isinstance(error, PermissionDeniedError):
                reason = "S3 refused: allow s3:GetObject, PutObject, DeleteObject and ListBucket"
            elif isinstance(error, FileNotFoundError):
                reason = "there is no registry any more"
            raise UnavailableError(f"the registry {self} cannot be used: {reason:.500}") from error


def _document(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r:.100} is not a name of a registry's document: letters, digits and ._- between slashes"
        )
    return f"documents/{name}"


def _artefact(digest: str) -> str:
    return f"artefacts/{check_digest(digest)}"


def _number(number: int) -> str:
    return f"{number:012}"


def _written(meta: ObjectMeta) -> float:
    return meta["last_modified"].timestamp()


def _open_regular(path: Path) -> BufferedReader:
    try:
        file = open(path, "rb", opener=_open_unlinked)  # noqa: SIM115 - for the caller
    except OSError as error:
        raise InputError(f"{path} cannot be kept: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise InputError(f"{path} cannot be kept: it is not a regular file")
    return file


def _open_unlinked(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)


def _verified(blocks: Iterable[bytes], digest: str, error: Exception) -> Iterator[bytes]:
    found = hashlib.sha256()
    for block in blocks:
        found.update(block)
        yield block
    if found.hexdigest() != digest:
        raise error


def _open_own(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
