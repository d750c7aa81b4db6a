"""What a registry's backend does: documents by name with versions and compare-and-set, and artefacts by digest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from serfer.core.errors import InputError

MAX_DOCUMENT_BYTES: Final = 4 << 20
"""The most bytes that a document may have."""
MAX_DOCUMENTS: Final = 10_000
"""The most documents that a list names; a directory or a prefix with more of them is refused."""
_PART: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}"
_NAME: Final = re.compile(rf"{_PART}(/{_PART}){{0,3}}", re.ASCII)
_PREFIX: Final = re.compile(rf"|{_PART}/", re.ASCII)
_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Document:
    """A document as it was read; `version` is a token that no other content of that name ever had or will have."""

    data: bytes
    version: str


@dataclass(frozen=True, slots=True)
class DocumentVersion:
    """A version of a document that is kept: `written` in seconds since the epoch, by the backend's clock."""

    version: str
    bytes: int
    written: float


@dataclass(frozen=True, slots=True)
class ArtefactEntry:
    """An artefact that is there; `age_s` counts from when it was last put, by the backend's clock.

    `version` is the backend's token of that put.
    """

    digest: str
    bytes: int
    age_s: float
    version: str


class RegistryStore(Protocol):
    """A backend; every method may be called by several threads and processes at once, and blocks.

    All raise UnavailableError where the backend cannot be reached or has no room, and InputError for a name or a digest
    that cannot be one. A writer that is killed at any point leaves what was there or the new content, each whole.
    """

    def names(self, prefix: str) -> list[str]:
        """Return the sorted names of the documents that begin with `prefix`: "" or a folder such as "applications/"."""
        ...

    def read(self, name: str, most_bytes: int = MAX_DOCUMENT_BYTES) -> Document | None:
        """Return a document, None where there is none; raises InputError for more than `most_bytes`."""
        ...

    def compare_and_set(self, name: str, expected: str | None, data: bytes) -> str | None:
        """Write a document in place of the version `expected` (None: of nothing) and return the new version.

        Returns None, and writes nothing, where another version is there by now. Raises InputError for more than
        MAX_DOCUMENT_BYTES.
        """
        ...

    def delete(self, name: str, expected: str) -> bool:
        """Delete a document of the version `expected`; say whether that was there. Earlier versions are kept."""
        ...

    def versions(self, name: str) -> list[DocumentVersion]:
        """Return the versions of a document that are kept, a deleted one's too, the newest first."""
        ...

    def read_version(self, name: str, version: str, most_bytes: int = MAX_DOCUMENT_BYTES) -> bytes | None:
        """Return a version's content, None where it is not kept."""
        ...

    def put_artefact(self, path: Path) -> str:
        """Keep a file, and return its SHA-256 digest in hex; where it is kept already, it only counts as new again.

        Raises InputError for a link, or what is not a regular file.
        """
        ...

    def fetch_artefact(self, digest: str, path: Path) -> None:
        """Write an artefact to a file, which appears whole and verified or not at all.

        Raises MissingKeyError where it is not there, AlteredPieceError where its content has another digest.
        """
        ...

    def has_artefact(self, digest: str) -> bool:
        """Return whether an artefact is there."""
        ...

    def artefacts(self) -> Iterator[ArtefactEntry]:
        """Yield the artefacts in any order."""
        ...

    def delete_artefact(self, entry: ArtefactEntry) -> bool:
        """Delete an artefact, unless it was put again since `entry` was read; say whether it was deleted."""
        ...


def check_name(name: str) -> str:
    """Return the name of a document: up to four parts of letters, digits and `._-`; raises InputError."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r:.100} is not a name of a registry's document: letters, digits and ._- between slashes"
        )
    return name


def check_prefix(prefix: str) -> str:
    """Return what names of documents may begin with; raises InputError."""
    if not _PREFIX.fullmatch(prefix):
        raise InputError(f"{prefix!r:.100} is not a folder of a registry's documents: give NAME/")
    return prefix


def check_digest(digest: str) -> str:
    """Return a SHA-256 digest in hex; raises InputError."""
    if not _DIGEST.fullmatch(digest):
        raise InputError(f"{digest!r:.100} is not a digest of a registry's artefact: give 64 hex digits")
    return digest


def check_size(name: str, data: bytes) -> bytes:
    """Return the content of a document; raises InputError for too much of it."""
    if len(data) > MAX_DOCUMENT_BYTES:
        raise InputError(f"{name} would have {len(data):,} bytes: a registry's document has {MAX_DOCUMENT_BYTES:,}")
    return data


def bounded(name: str, data: bytes, most_bytes: int) -> bytes:
    """Return content that was read, at most one byte more than `most_bytes`; raises InputError for that byte."""
    if len(data) > most_bytes:
        raise InputError(f"{name} has more than {most_bytes:,} bytes: it was not written by a registry")
    return data
