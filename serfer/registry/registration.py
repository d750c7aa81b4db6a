"""Registrations of networks: what has been done, what is left, and who works on it, so that one resumes after a kill.

    claim ──── record, record, heartbeat, record ──── finish      the application's record has the network version
       │                                        └──── fail        claimed again, it goes on after what is done
       └── another's: claim again later; its owner is judged by change, on the claimant's own clock

The id of a registration is a digest of what was asked for, so that the same request twice is one registration: the
second claimant follows the first, or takes over where that one has been silent for TAKEOVER_S.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from serfer.core.errors import InputError, RegistrationLostError, UsageError
from serfer.core.variants import NAME, Application, NetworkVersion, Validation, check_variant
from serfer.registry.records import encode_record
from serfer.registry.registration_record import (
    MAX_DETAIL,
    Registration,
    RegistrationRequest,
    RegistrationState,
    RegistrationStep,
    decode_registration,
    document_name,
)
from serfer.registry.registry import Registry

HEARTBEAT_S: Final = 10.0
"""Seconds between two heartbeats of an owner."""
TAKEOVER_S: Final = 40.0
"""Seconds without a change after which a registration counts as left by its owner."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


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
        document = self.registry.store.read(document_name(registration))
        return decode_registration(registration, document.data) if document else None

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


def _check_request(request: RegistrationRequest) -> None:
    for name in (request.application, request.network):
        if not NAME.fullmatch(name):
            raise UsageError(f"{name!r:.100} cannot name an application or a network: 1 to 64 letters, digits and ._-")
    for digest in filter(None, (request.source, request.validation)):
        if not _DIGEST.fullmatch(digest):
            raise UsageError(f"{digest!r:.100} is not a digest: give a SHA-256 in hex")


def _version_of(application: Application, registration: str) -> NetworkVersion | None:
    made = (each for each in application.networks if each.registration == registration and not each.retired)
    return next(made, None)


def _network_version(
    application: Application, held: Registration, validation: Validation | None, remarks: tuple[str, ...]
) -> NetworkVersion:
    network = held.request.network
    number = 1 + max((each.version for each in application.versions(network)), default=0)
    variants = tuple(
        replace(each, name=f"{network}-v{number}-{each.name}", network=network, version=number)
        for each in held.variants
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
