"""Deletes what nothing refers to: artefacts of no application's variants and of no registration's, by their age.

The artefacts are listed before the references are read, and one that is put again in between is not deleted. So a
registration loses nothing as long as it refers to what it puts within `older_than_s`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serfer.core.errors import MissingKeyError, UsageError
from serfer.registry.plan_files import read_manifest
from serfer.registry.records import APPLICATIONS, decode_application
from serfer.registry.registration import FOLDER, RegistrationState, registrations

if TYPE_CHECKING:
    from serfer.registry.registry import Registry
    from serfer.registry.store import RegistryStore


@dataclass(frozen=True, slots=True)
class CollectionReport:
    """What was deleted, and what is kept: numbers of artefacts and registrations, and bytes."""

    artefacts: int
    bytes: int
    registrations: int
    kept_artefacts: int
    kept_bytes: int


def collect_garbage(registry: Registry, older_than_s: float) -> CollectionReport:
    """Delete the artefacts that no application and no registration refers to, and return what was deleted.

    What was put within `older_than_s` stays: a registration that is running may be about to refer to it. Registrations
    that have not changed for that long are deleted, too. Raises InputError where a record cannot be read.
    """
    store = registry.store
    if not older_than_s >= 0:
        raise UsageError("garbage is older than a number of seconds, 0 or more")
    store.delete_leftovers()
    entries = list(store.artefacts())
    registrations = _delete_registrations(store, older_than_s, time.time())
    kept = _files(store, _references(store))
    deleted = deleted_bytes = 0
    for entry in entries:
        if entry.digest not in kept and entry.age_s >= older_than_s and store.delete_artefact(entry):
            deleted, deleted_bytes = deleted + 1, deleted_bytes + entry.bytes
    total = sum(entry.bytes for entry in entries)
    return CollectionReport(deleted, deleted_bytes, registrations, len(entries) - deleted, total - deleted_bytes)


def _delete_registrations(store: RegistryStore, older_than_s: float, now: float) -> int:
    deleted = 0
    for name in store.names(FOLDER):
        document, versions = store.get(name), store.versions(name)
        if document and versions and now - versions[0].written >= older_than_s:
            deleted += store.delete(name, document.version)
    return deleted


def _references(store: RegistryStore) -> set[str]:
    """Registrations are read before applications: one that is done, so not counted, is in its application by then."""
    found: set[str] = set()
    for _, registration in registrations(store):
        if registration.state is not RegistrationState.DONE:
            found |= {variant.artefact for variant in registration.variants}
    for name in store.names(APPLICATIONS):
        if document := store.get(name):
            application = decode_application(name.removeprefix(APPLICATIONS).removesuffix(".json"), document.value)
            found |= application.artefacts
    return found


def _files(store: RegistryStore, references: Iterable[str]) -> set[str]:
    found = set(references)
    for digest in tuple(found):
        try:
            manifest = read_manifest(store, digest)
        except MissingKeyError:  # such a variant cannot be loaded any more, and nothing is left of it to be kept
            continue
        if manifest:
            found |= {file.digest for file in manifest.files}
    return found
