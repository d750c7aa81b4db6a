"""Public traces fetched, converted here, and held against the digests of what pages of results were made from."""

from __future__ import annotations

import hashlib
import http.client
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from serfer.core.errors import InputError, SerferError, UnavailableError, UsageError
from serfer.files import write_whole
from serfer_bench.study.loads.catalogue import MAX_SOURCE_BYTES, PublicTrace, catalogue

HOST: Final = "https://raw.githubusercontent.com"
MAX_S: Final = 120.0
"""Seconds that a download may take."""
_QUIET_S: Final = 20.0
_AT_ONCE: Final = 1 << 16


@dataclass(frozen=True)
class FetchedTrace:
    """What became of a trace; `why` says it of what is missing."""

    name: str
    state: Literal["written", "kept", "missing"]
    why: str = ""


def chosen(names: Sequence[str]) -> dict[str, PublicTrace]:
    known = catalogue()
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"there is no trace {unknown[0][:80]!r}: there are {', '.join(known)}")
    return {name: known[name] for name in names or known}


def fetch(
    traces: Mapping[str, PublicTrace], out: Path, given: Path | None, host: str, progress: Callable[[str], None]
) -> Iterator[FetchedTrace]:
    """Write traces' CSV files into a directory and yield what became of each; what is there already is kept.

    `given` is a source, or a folder of them, that takes the place of downloads from `host`; `progress` is told of each
    that is fetched or read. Raises UsageError where it
    is one source and the traces have several, InputError where `out` is not a directory, nor can be made.
    """
    addresses = {one.address(host) for one in traces.values()}
    if given is not None and given.is_file() and len(addresses) > 1:
        raise UsageError(f"--from {given} is one file: name the traces that it is the source of")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {str(out)!r} is not a directory, nor can it be made: {error.strerror}") from error
    sources: dict[str, bytes] = {}
    for name, trace in traces.items():
        file = out / f"{name}.csv"
        try:
            if _is_there(file, trace):
                yield FetchedTrace(name, "kept")
                continue
            address = trace.address(host)
            if address not in sources:
                progress(f"reading {trace.path} of {given}" if given else f"fetching {address}")
                sources[address] = _read(given, trace) if given else download(address)
            write_whole(file, _checked(trace, sources[address]))
            yield FetchedTrace(name, "written")
        except SerferError as error:
            yield FetchedTrace(name, "missing", str(error))


def download(address: str) -> bytes:
    data, until = bytearray(), time.monotonic() + MAX_S
    try:
        with urllib.request.urlopen(address, timeout=_QUIET_S) as response:  # noqa: S310 - the command checks schemes
            while piece := response.read1(_AT_ONCE):
                data += piece
                if len(data) > MAX_SOURCE_BYTES:
                    raise UnavailableError(f"{address} has more than {MAX_SOURCE_BYTES:,} bytes: it is another file")
                if time.monotonic() > until:
                    raise UnavailableError(f"{address} takes more than {MAX_S:g} s: try again, or download it: --from")
            if response.length:
                raise http.client.IncompleteRead(b"", response.length)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise UnavailableError(f"{address} cannot be downloaded: {error}; or give --from") from error
    return bytes(data)


def _is_there(file: Path, trace: PublicTrace) -> bool:
    if not file.exists():
        return False
    try:
        with file.open("rb") as opened:  # of any size
            found = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{str(file)!r} cannot be read: {error.strerror}") from error
    if found == trace.sha256:
        return True
    raise InputError(f"{file} is there already and is not this trace: move it away, or give another --out")


def _read(given: Path, trace: PublicTrace) -> bytes:
    project = trace.repository.partition("/")[2]
    places = [given] if given.is_file() else [given / trace.path, given / project / trace.path]
    place = next((one for one in places if one.is_file()), None)
    if place is None:
        raise InputError(f"--from {given}: there is no {trace.path} of {trace.repository}, nor {project}/{trace.path}")
    try:
        with place.open("rb") as file:
            return file.read(MAX_SOURCE_BYTES + 1)
    except OSError as error:
        raise InputError(f"{str(place)!r} cannot be read: {error.strerror}") from error


def _checked(trace: PublicTrace, source: bytes) -> bytes:
    data = trace.converted(source)
    if (found := hashlib.sha256(data).hexdigest()) != trace.sha256:
        raise InputError(
            f"{trace.path} of {trace.repository} has changed: converted it has the SHA-256 {found}, not "
            f"{trace.sha256}: nothing was written"
        )
    return data
