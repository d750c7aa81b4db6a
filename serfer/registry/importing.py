"""Copies a registry of format 1, before 0.2, to a new place.

documents/applications/faces.json/000000000012-9f86d081884c7d65.data     in a directory: version 12 of a document
documents/applications/faces.json/000000000013-60303ae22b998861.gone     it was deleted
documents/applications/faces.json                                        in S3: 32 hex digits, a newline, content
artefacts/9f/9f86d08188...  or  artefacts/9f86d08188...                  an artefact
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from serfer.core.errors import AlteredPieceError, UsageError
from serfer.registry.opening import open_registry, open_store
from serfer.registry.records import APPLICATIONS, MAX_DOCUMENT_BYTES, check_digest, decode_application
from serfer.registry.registration import FOLDER
from serfer.registry.store import NONCE, RegistryStore

_VERSION: Final = re.compile(r"(.+)/(\d{12})-[0-9a-f]{16}\.(data|gone)", re.ASCII)


@dataclass(frozen=True, slots=True)
class ImportReport:
    """How many documents and artefacts were copied; what was there already is not counted."""

    documents: int
    artefacts: int


def import_registry(old: str, new: str) -> ImportReport:
    """Copy the records and artefacts of a registry of format 1 to another place; what is there already stays.

    Killed, it goes on when it is called again. Earlier versions of records stay behind. Raises UsageError for what is
    no such registry, InputError for a record that cannot be read, AlteredPieceError for an artefact that was altered.
    """
    source = open_store(old, create=False)
    if source.format() != 1:
        raise UsageError(f"{source} is not a registry of format 1, which an earlier SerFer wrote: nothing is to import")
    store = open_registry(new).store
    artefacts = sum(_copy_artefact(source, path, store) for path in _list(source, "artefacts"))
    documents = 0
    for name, data in _documents(source):  # after the artefacts that they name
        if name.startswith(APPLICATIONS):
            decode_application(name.removeprefix(APPLICATIONS).removesuffix(".json"), data)
        if name.startswith((APPLICATIONS, FOLDER)) and store.version(name) is None:
            documents += store.compare_and_set(name, None, data) is not None
    return ImportReport(documents, artefacts)


def _list(source: RegistryStore, folder: str) -> Iterator[str]:
    for page in source.objects.list(folder):
        yield from (meta["path"] for meta in page)


def _documents(source: RegistryStore) -> Iterator[tuple[str, bytes]]:
    versions: dict[str, str] = {}
    for path in sorted(_list(source, "documents")):  # of each name the last version is the last
        match = _VERSION.fullmatch(path)
        versions[match[1] if match else path] = path
    for name, path in versions.items():
        if not path.endswith(".gone"):
            data = source.head(path, MAX_DOCUMENT_BYTES + NONCE + 1)
            yield name.removeprefix("documents/"), data if path != name else data[NONCE + 1 :]


def _copy_artefact(source: RegistryStore, path: str, store: RegistryStore) -> bool:
    digest = check_digest(path.rpartition("/")[2])
    if store.has_artefact(digest):
        return False
    with tempfile.TemporaryDirectory(prefix="serfer-") as folder:
        file = Path(folder) / digest
        with file.open("wb") as part:
            for block in source.objects.get(path).stream():
                part.write(block)
        if store.put_artefact(file) != digest:
            raise AlteredPieceError(f"artefact {digest} of the registry {source} was altered")
    return True
