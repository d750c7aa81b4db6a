"""The record of a registration: what was asked for, what has been done, and who works on it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

from serfer.core.dataclass_codec import Bounds, unstructure
from serfer.core.errors import InputError, UsageError
from serfer.core.variants import Variant, check_variant
from serfer.registry.records import decode_record

if TYPE_CHECKING:
    from serfer.registry.store import Document, RegistryStore

FORMAT: Final = 2
FOLDER: Final = "registrations/"
MAX_STEPS: Final = 1000
MAX_DETAIL: Final = 1000
_ID: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)


class RegistrationState(StrEnum):
    """How far a registration is."""

    RUNNING = "running"
    FAILED = "failed"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class RegistrationRequest:
    """What is to be registered: `source` and `validation` are digests, `settings` whatever else decides the result.

    `validation` is "" where there is none.
    """

    application: str
    network: str
    source: str
    validation: str
    settings: str

    @property
    def id(self) -> str:
        return hashlib.sha256(json.dumps(unstructure(self), sort_keys=True).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class RegistrationStep:
    """A step of a registration, such as the making of one variant, and what came of it.

    `variant` is what a step that is done has made; its name is unique in the registration only, and its version is a
    placeholder: `finish` sets both.
    """

    name: str
    state: RegistrationState
    detail: str = ""
    variant: Variant | None = None


@dataclass(frozen=True, slots=True)
class Registration:
    """A registration; `owner` works on it, "" for none, and `beats` counts what owners have written.

    `version` is the number that the network got in the application, 0 before it is done; `detail` says why it failed.
    """

    id: str
    request: RegistrationRequest
    created: str
    by: str
    owner: str
    state: RegistrationState = RegistrationState.RUNNING
    steps: tuple[RegistrationStep, ...] = ()
    beats: Annotated[int, Bounds(0)] = 0
    version: Annotated[int, Bounds(0)] = 0
    detail: str = ""
    format: int = FORMAT

    @property
    def variants(self) -> tuple[Variant, ...]:
        return tuple(step.variant for step in self.steps if step.variant and step.state is RegistrationState.DONE)

    def step(self, name: str) -> RegistrationStep | None:
        return next((step for step in self.steps if step.name == name), None)

    def with_step(self, recorded: RegistrationStep) -> Registration:
        """Return the registration with a step, in place of one of that name; raises InputError for too many."""
        recorded = replace(recorded, detail=recorded.detail[:MAX_DETAIL])
        if self.step(recorded.name) is None:
            if len(self.steps) >= MAX_STEPS:
                raise InputError(f"registration {self.id} has {MAX_STEPS:,} steps already")
            return replace(self, steps=(*self.steps, recorded))
        return replace(self, steps=tuple(recorded if step.name == recorded.name else step for step in self.steps))


def document_name(registration: str) -> str:
    if not _ID.fullmatch(registration):
        raise UsageError(f"{registration!r:.100} is not the id of a registration: give 32 hex digits")
    return f"{FOLDER}{registration}.json"


def registrations(store: RegistryStore) -> Iterator[tuple[Document, Registration]]:
    for name in store.names(FOLDER):
        document = store.read(name)
        if document is not None:
            yield document, decode_registration(name.removeprefix(FOLDER).removesuffix(".json"), document.data)


def decode_registration(registration: str, data: bytes) -> Registration:
    """Read the document of a registration; raises InputError that names it where it cannot be one."""
    name = document_name(registration)
    record = replace(decode_record(name, data, Registration, FORMAT), format=FORMAT)
    if record.id != registration or record.request.id != registration:
        raise InputError(f"{name} of the registry is about another registration: delete it")
    if len(record.steps) > MAX_STEPS:
        raise InputError(f"{name} of the registry has more than {MAX_STEPS:,} steps")
    for variant in record.variants:
        check_variant(variant)
    return record
