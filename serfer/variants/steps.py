"""A registration step by step: steps that are done are not done again, and only one process does them.

Processes of one user and machine are one worker of the registry, and a lock says which of them works: the kernel frees
it when that one is killed, so that the next goes on at once. Workers elsewhere wait for the registry's own time.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from serfer.core.dataclass_codec import structure, unstructure
from serfer.core.errors import InputError, RegistrationLostError, UnavailableError
from serfer.core.variants import Variant
from serfer.files import locked, read_text, write_whole
from serfer.registry.registration import (
    HEARTBEAT_S,
    MAX_DETAIL,
    Registration,
    RegistrationRequest,
    Registrations,
    RegistrationState,
    RegistrationStep,
)

_LOG = logging.getLogger("serfer.variants")
T = TypeVar("T")
Progress = Callable[[str], None]
_POLL_S: Final = 0.5
_MAX_OWNER_BYTES: Final = 100


class Steps:
    """The steps of a registration that this process works on; `planned` is how many there will be, as far as known."""

    def __init__(self, registrations: Registrations, registration: Registration, progress: Progress) -> None:
        self.planned = 1
        self._registrations = registrations
        self._registration = registration
        self._progress = progress
        self._number = 0

    def done(self, kind: type[T], name: str, what: str, do: Callable[[], T]) -> T:
        """Return what a step comes to: as it was recorded, or else what `do` returns now, a dataclass of `kind`.

        Raises RegistrationLostError where another worker has taken the registration over.
        """
        self._number += 1
        recorded = self._recorded(kind, name)
        if recorded is not None:
            return recorded
        self._progress(f"step {self._number} of {max(self._number, self.planned)}: {what}")
        self._record(RegistrationStep(name, RegistrationState.RUNNING, what))
        result = do()
        detail = json.dumps(unstructure(result), separators=(",", ":"), allow_nan=False)
        if len(detail) > MAX_DETAIL:
            raise AssertionError(f"step {name} has too much to say: {len(detail)} characters")
        self._record(RegistrationStep(name, RegistrationState.DONE, detail))
        return result

    def _recorded(self, kind: type[T], name: str) -> T | None:
        step = self._registration.step(name)
        if step is None or step.state is not RegistrationState.DONE:
            return None
        try:
            return structure(kind, json.loads(step.detail), f"step {name}", error=InputError)
        except (InputError, ValueError):
            return None

    def variant(self, variant: Variant) -> None:
        name = f"variant {variant.name}"
        recorded = self._registration.step(name)
        if recorded is None or recorded.variant != variant:
            self._record(RegistrationStep(name, RegistrationState.DONE, variant=variant))

    def _record(self, step: RegistrationStep) -> None:
        self._registration = self._registrations.record(self._registration.id, step)


def owner_name(folder: Path) -> str:
    path = folder / "owner"
    with locked(folder / "owner.lock"):
        if not path.exists():
            write_whole(path, uuid.uuid4().hex.encode())
        return read_text(path, _MAX_OWNER_BYTES).strip()


@contextmanager
def alone(folder: Path, registration: str, progress: Progress) -> Iterator[None]:
    """Wait until no other process of this machine works on a registration, and keep others out meanwhile."""
    descriptor = os.open(folder / f"{registration}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("another process registers this network: waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.utime(descriptor)  # the folder is cleared of what was not used in a week
        yield
    finally:
        os.close(descriptor)


def claimed(
    registrations: Registrations,
    request: RegistrationRequest,
    by: str,
    progress: Progress,
    sleep: Callable[[float], None] = time.sleep,
) -> Registration:
    """Return a registration that is this worker's, or done: by now or by another worker, which is waited for."""
    while True:
        found = registrations.claim(request, by)
        if registrations.holds(found) or found.state is RegistrationState.DONE:
            return found
        progress(f"a worker elsewhere registers this network: waiting for it, {len(found.steps)} steps so far")
        sleep(_POLL_S)


@contextmanager
def heartbeats(registrations: Registrations, registration: str) -> Iterator[None]:
    over = threading.Event()

    def beat() -> None:
        while not over.wait(HEARTBEAT_S):
            try:
                registrations.heartbeat(registration)
            except (UnavailableError, RegistrationLostError):  # the next step says so, where it lasts
                continue
            except Exception:  # noqa: BLE001 - a worker elsewhere would take it for dead
                _LOG.exception("heartbeat of a registration")

    thread = threading.Thread(target=beat, name="serfer-heartbeats", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
