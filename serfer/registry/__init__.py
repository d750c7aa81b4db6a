"""The registry: applications' records and the artefacts of their variants, in a directory or a bucket of S3.

    applications/APP.json       the record of an application (serfer/core/variants), replaced by compare-and-set
    registrations/ID.json       what the registration of a network has done so far, and who works on it
    artefacts, by SHA-256       the files of plan directories, and their manifests; shared between variants

Nothing in it expires: `Registry.collect_garbage` deletes the artefacts that no record refers to.
"""

from __future__ import annotations

from serfer.registry.garbage import CollectionReport
from serfer.registry.importing import ImportReport, import_registry
from serfer.registry.opening import check_apart, open_registry
from serfer.registry.registration import (
    HEARTBEAT_S,
    TAKEOVER_S,
    Registration,
    RegistrationRequest,
    Registrations,
    RegistrationState,
    RegistrationStep,
)
from serfer.registry.registry import ApplicationVersion, Latest, Registry
from serfer.registry.store import ArtefactEntry, Document, DocumentVersion, RegistryStore

__all__ = [
    "HEARTBEAT_S",
    "TAKEOVER_S",
    "ApplicationVersion",
    "ArtefactEntry",
    "CollectionReport",
    "Document",
    "DocumentVersion",
    "ImportReport",
    "Latest",
    "Registration",
    "RegistrationRequest",
    "RegistrationState",
    "RegistrationStep",
    "Registrations",
    "Registry",
    "RegistryStore",
    "check_apart",
    "import_registry",
    "open_registry",
]
