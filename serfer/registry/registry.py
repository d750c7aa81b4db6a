"""The registry as its users see it: applications' records, and the plan directories of their variants."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from serfer.core.errors import InputError, UnavailableError, UsageError
from serfer.core.retry import retry
from serfer.core.variants import Application
from serfer.registry.plan_files import fetch_directory, fetch_to, put_directory
from serfer.registry.records import APPLICATIONS, decode_application, document_name, encode_record
from serfer.storage.coordination import CHANGES, ContendedError, change

if TYPE_CHECKING:
    from serfer.registry.store import RegistryStore

_CHANGES: Final = replace(CHANGES, name="registry")


@dataclass(frozen=True, slots=True)
class ApplicationVersion:
    """A version of an application's record that is kept: its token, when it was written (Unix seconds), the record.

    `application` is None for a version that cannot be read.
    """

    version: str
    written: float
    application: Application | None


@dataclass(frozen=True, slots=True)
class Latest:
    """An application's record as it was read, and the token of its version."""

    version: str
    application: Application


class Registry:
    """The records and artefacts of a backend; methods block, and may be called by several threads at once.

    All raise UnavailableError where the backend cannot be reached, and InputError for a record that is torn, foreign or
    of a newer format, by its name.
    """

    def __init__(self, store: RegistryStore, sleep: Callable[[float], None] = time.sleep) -> None:
        self.store = store
        self._sleep = sleep

    def __str__(self) -> str:
        return str(self.store)

    def applications(self) -> list[str]:
        names = self.store.names(APPLICATIONS)
        return [name.removeprefix(APPLICATIONS).removesuffix(".json") for name in names if name.endswith(".json")]

    def application(self, name: str) -> Application | None:
        latest = self.latest(name)
        return latest.application if latest else None

    def latest(self, name: str, known: Latest | None = None) -> Latest | None:
        """Return the record of an application with its version; `known` itself where that is it still.

        What looks every few seconds pays for a list of the versions alone.
        """
        if known is not None and self.store.version(document_name(name)) == known.version:
            return known
        document = self.store.get(document_name(name))
        if document is None:
            return None
        return Latest(document.version, decode_application(name, document.value))

    def known(self, name: str) -> Application:
        return self.application(name) or self._unknown(name)

    def update(self, name: str, step: Callable[[Application | None], Application | None]) -> Application:
        """Replace the record of an application by what `step` makes of it, and return the new one.

        `step` is called again where another writer came first, so it has to be a pure function; it gets None where
        there is no such application. Where it returns None or what it got, nothing is written. Raises what `step`
        raises; UsageError where there is no application in the end.
        """
        document = document_name(name)

        def changed(data: bytes | None) -> bytes | None:
            before = None if data is None else decode_application(name, data)
            after = step(before)
            if after is None or after == before:
                return None
            if after.name != name:
                raise UsageError(f"the record of {name} cannot become that of {after.name!r:.100}")
            written = encode_record(document, after)
            decode_application(name, written)  # what cannot be read again is not written
            return written

        data = self.change(document, changed)
        return self._unknown(name) if data is None else decode_application(name, data)

    def delete(self, name: str) -> None:
        if not self.remove(document_name(name)):
            self._unknown(name)

    def change(self, document: str, f: Callable[[bytes | None], bytes | None]) -> bytes | None:
        """Replace a document by what `f` makes of it, as `change` of the stores does, and return what then is there."""
        with self._contended(document):
            entry = change(self.store, document, f, math.inf, policy=_CHANGES, sleep=self._sleep)
        return entry.value if entry else None

    def remove(self, document: str) -> bool:
        def removed() -> bool:
            read = self.store.get(document)
            if read and not self.store.delete(document, read.version):
                raise ContendedError(document)
            return read is not None

        with self._contended(document):
            return retry(removed, _CHANGES, self._sleep)

    def history(self, name: str) -> Iterator[ApplicationVersion]:
        """Yield the versions of an application's record that are kept, a deleted one's too, the newest first."""
        document = document_name(name)
        for kept in self.store.versions(document):
            data = self.store.read_version(document, kept.version)
            if data is not None:
                with suppress(InputError):
                    yield ApplicationVersion(kept.version, kept.written, decode_application(name, data))
                    continue
                yield ApplicationVersion(kept.version, kept.written, None)

    def restore(self, name: str, version: str) -> Application:
        """Write a version of an application's record that is kept in place of the last one, whatever that is.

        Raises UsageError for a version that is not kept; InputError for one that cannot be read. Where garbage was
        collected since, its variants may be without their files.
        """
        document = document_name(name)
        data = self.store.read_version(document, version)
        if data is None:
            raise UsageError(f"the registry {self} keeps no version {version!r:.100} of {name}")
        restored = decode_application(name, data)
        self.change(document, lambda _: data)
        return restored

    def put_directory(self, path: Path) -> str:
        """Keep the files that a plan directory names, those that are there already not sent again; returns its digest.

        Raises PlanError for a directory that is not whole, holds links, or was altered.
        """
        return put_directory(self.store, path)

    def directory(self, digest: str, cache: Path, *, again: bool = False) -> Path:
        """Return a plan directory by its digest, below `cache`, where it is fetched to once and verified.

        With `again` it takes the place of what is there. Raises MissingKeyError where it is not kept, AlteredPieceError
        where it was altered.
        """
        return fetch_directory(self.store, digest, cache, again=again)

    def copy_directory(self, digest: str, place: Path) -> None:
        """Write a plan directory to a place of the user's; raises as `directory`, InputError for a place that is there.

        InputError, too, for one that cannot be written.
        """
        fetch_to(self.store, digest, place)

    @contextmanager
    def _contended(self, document: str) -> Iterator[None]:
        try:
            yield
        except ContendedError as error:
            raise UnavailableError(f"the registry {self}: others change {document} all the time; try again") from error

    def _unknown(self, name: str) -> Application:
        known = ", ".join(self.applications()) or "none"
        raise UsageError(f"the registry {self.store} has no application {name}: it has {known}")
