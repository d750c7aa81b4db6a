"""Registrations of networks: what has been done, what is left, and who works on it, so that one resumes after a kill.

    claim ──── record, record, heartbeat, record ──── finish      the application's record has the network version
       │                                        └──── fail        claimed again, it goes on after what is done
       └── another's: claim again later; its owner is judged by change, on the claimant's own clock

The id of a registration is a digest of what was asked for, so that the same request twice is one registration: the
second claimant follows the first, or takes over where that one has been silent for TAKEOVER_S.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

from serfer.core.dataclass_codec import Bounds, unstructure
from serfer.core.errors import InputError, RegistrationLostError, UsageError
from serfer.core.variants import NAME, Application, NetworkVersion, Validation, Variant, check_variant
from serfer.registry.records import check_digest, decode_record, encode_record
from serfer.registry.registry import Registry

if TYPE_CHECKING:
    from serfer.registry.store import RegistryStore
    from serfer.storage.coordination import Entry

FORMAT: Final = 2
FOLDER: Final = "registrations/"
MAX_STEPS: Final = 1000
MAX_DETAIL: Final = 1000
HEARTBEAT_S: Final = 10.0
"""Seconds between two heartbeats of an owner."""
TAKEOVER_S: Final = 40.0
"""Seconds without a change after which a registration counts as left by its owner."""
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
        recorded = replace(recorded, detail=recorded.detail[:MAX_DETAIL])
        if self.step(recorded.name) is None:
            if len(self.steps) >= MAX_STEPS:
                raise InputError(f"registration {self.id} has {MAX_STEPS:,} steps already")
            return replace(self, steps=(*self.steps, recorded))
        return replace(self, steps=tuple(recorded if step.name == recorded.name else step for step in self.steps))


@dataclass
class Registrations:
    """One worker's access to a registry's registrations; `owner` is a name that no other worker has.

    Every method may be called by several threads at once: one makes the variants, another sends heartbeats. Those that
    change a registration raise RegistrationLostError where another worker has taken it over. `clock` counts seconds,
    `unix` seconds since the epoch.
    """

    registry: Registry
    owner: str
    clock: Callable[[], float] = time.monotonic
    unix: Callable[[], float] = time.time
    _seen: dict[str, tuple[Registration, float]] = field(default_factory=dict, init=False)  # as it was, and since when

    def read(self, registration: str) -> Registration | None:
        document = self.registry.store.get(document_name(registration))
        return decode_registration(registration, document.value) if document else None

    def holds(self, registration: Registration) -> bool:
        return registration.state is RegistrationState.RUNNING and registration.owner == self.owner

    def claim(self, request: RegistrationRequest, by: str) -> Registration:
        """Return the registration of a request, which is this worker's to go on with where it `holds` it.

        Otherwise it is done, and its version in the application; or another worker is at it: then claim again every few
        seconds, which takes it over once it has not changed for TAKEOVER_S. A registration that failed, or whose
        network version was retired since, begins again; steps that are done need not be repeated unless it was retired.
        """
        _check_request(request)

        def claimed(found: Registration | None) -> Registration | None:
            return self._taken(found, request, by) if found is None or self._is_free(found) else None

        return self._change(request.id, claimed)

    def heartbeat(self, registration: str) -> Registration:
        """Say that this worker is still at it, at least every HEARTBEAT_S."""
        return self._change_own(registration, lambda found: found)

    def record(self, registration: str, step: RegistrationStep) -> Registration:
        """Record a step, in place of one of that name; raises InputError for a variant that cannot be."""
        if step.variant:
            check_variant(step.variant)
        return self._change_own(registration, lambda found: found.with_step(step))

    def fail(self, registration: str, detail: str) -> Registration:
        """End a registration as failed; what is done of it is kept, and it can be claimed again."""
        failed = RegistrationState.FAILED
        return self._change_own(
            registration, lambda found: replace(found, state=failed, owner="", detail=detail[:MAX_DETAIL])
        )

    def abandon(self, registration: str) -> Registration:
        return self._change_own(registration, lambda found: replace(found, owner=""))

    def finish(
        self,
        registration: str,
        *,
        classes: int,
        labels: str,
        validation: Validation | None = None,
        remarks: tuple[str, ...] = (),
    ) -> Registration:
        """Add the network version with the variants of the steps to its application, and end the registration as done.

        The application is made where there is none. The version is the next one of the network, and variants are
        renamed to NETWORK-vVERSION-NAME. Finished twice (its worker was killed in between), it adds one version. Raises
        InputError where the application has other classes or labels, or no room.
        """
        held = self.heartbeat(registration)

        def added(application: Application | None) -> Application:
            application = application or Application(held.request.application, classes, labels)
            _check_classes(application, held.request.network, classes, labels)
            if _version_of(application, registration) is not None:
                return application
            return application.with_version(_network_version(application, held, validation, remarks))

        finished = _version_of(self.registry.update(held.request.application, added), registration)
        number = finished.version if finished else 0
        done = RegistrationState.DONE
        return self._change_own(registration, lambda found: replace(found, state=done, owner="", version=number))

    def _is_free(self, found: Registration) -> bool:
        if found.state is RegistrationState.DONE:
            application = self.registry.application(found.request.application)
            return application is None or _version_of(application, found.id) is None
        if found.state is RegistrationState.FAILED or found.owner in {"", self.owner}:
            return True
        now, seen = self.clock(), self._seen.get(found.id)
        if seen is None or seen[0] != found:
            self._seen[found.id] = seen = found, now
        return now - seen[1] >= TAKEOVER_S

    def _taken(self, found: Registration | None, request: RegistrationRequest, by: str) -> Registration:
        if found is None or found.state is RegistrationState.DONE:
            created = datetime.fromtimestamp(self.unix(), UTC).isoformat(timespec="seconds")
            beats = found.beats + 1 if found else 0
            return Registration(request.id, request, created, by, self.owner, beats=beats)
        steps = tuple(step for step in found.steps if step.state is RegistrationState.DONE)
        running = RegistrationState.RUNNING
        return replace(found, owner=self.owner, state=running, steps=steps, beats=found.beats + 1, detail="")

    def _change_own(self, registration: str, step: Callable[[Registration], Registration]) -> Registration:
        def changed(found: Registration | None) -> Registration:
            if found is None or not self.holds(found):
                raise RegistrationLostError(f"registration {registration} is another worker's now, or has ended")
            return replace(step(found), beats=found.beats + 1)

        return self._change(registration, changed)

    def _change(self, registration: str, step: Callable[[Registration | None], Registration | None]) -> Registration:
        name = document_name(registration)

        def changed(data: bytes | None) -> bytes | None:
            after = step(None if data is None else decode_registration(registration, data))
            return None if after is None else encode_record(name, after)

        data = self.registry.change(name, changed)
        if data is None:
            raise RegistrationLostError(f"there is no registration {registration}")
        return decode_registration(registration, data)


def document_name(registration: str) -> str:
    if not _ID.fullmatch(registration):
        raise UsageError(f"{registration!r:.100} is not the id of a registration: give 32 hex digits")
    return f"{FOLDER}{registration}.json"


def registrations(store: RegistryStore) -> Iterator[tuple[Entry, Registration]]:
    for name in store.names(FOLDER):
        document = store.get(name)
        if document is not None:
            yield document, decode_registration(name.removeprefix(FOLDER).removesuffix(".json"), document.value)


def decode_registration(registration: str, data: bytes) -> Registration:
    name = document_name(registration)
    record = decode_record(name, data, Registration, FORMAT)
    if record.id != registration or record.request.id != registration:
        raise InputError(f"{name} of the registry is about another registration: delete it")
    if len(record.steps) > MAX_STEPS:
        raise InputError(f"{name} of the registry has more than {MAX_STEPS:,} steps")
    for variant in record.variants:
        check_variant(variant)
    return record


def _check_request(request: RegistrationRequest) -> None:
    for name in (request.application, request.network):
        if not NAME.fullmatch(name):
            raise UsageError(f"{name!r:.100} cannot name an application or a network: 1 to 64 letters, digits and ._-")
    for digest in filter(None, (request.source, request.validation)):
        check_digest(digest)


def _version_of(application: Application, registration: str) -> NetworkVersion | None:
    made = (version for version in application.networks if version.registration == registration and not version.retired)
    return next(made, None)


def _network_version(
    application: Application, held: Registration, validation: Validation | None, remarks: tuple[str, ...]
) -> NetworkVersion:
    network = held.request.network
    number = 1 + max((version.version for version in application.versions(network)), default=0)
    variants = tuple(
        replace(variant, name=f"{network}-v{number}-{variant.name}", network=network, version=number)
        for variant in held.variants
    )
    return NetworkVersion(
        network, number, held.request.source, held.created, held.by, validation, variants, remarks, registration=held.id
    )


def _check_classes(application: Application, network: str, classes: int, labels: str) -> None:
    if application.classes != classes:
        raise InputError(
            f"application {application.name} has {application.classes} classes, {network} has {classes}: register it "
            "in another application"
        )
    if application.labels != labels:
        raise InputError(
            f"{network} has other labels than application {application.name}: register it in another application"
        )
