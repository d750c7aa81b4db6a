"""Records as documents: JSON with a format number, bounded before it is decoded and checked before it is used."""

from __future__ import annotations

import json
import re
from typing import Any, Final, TypeVar

from serfer.core.dataclass_codec import structure, unstructure
from serfer.core.errors import InputError, UsageError
from serfer.core.variants import FORMAT, NAME, Application, check_application

APPLICATIONS: Final = "applications/"
MAX_DOCUMENT_BYTES: Final = 4 << 20
"""The most bytes that a document may have."""
DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


_R = TypeVar("_R")


def document_name(application: str) -> str:
    if not NAME.fullmatch(application):
        raise UsageError(f"{application!r:.100} cannot name an application: 1 to 64 letters, digits and ._-")
    return f"{APPLICATIONS}{application}.json"


def encode_record(name: str, record: object) -> bytes:
    return check_size(name, json.dumps(unstructure(record), separators=(",", ":"), allow_nan=False).encode())


def decode_record(name: str, data: bytes, kind: type[_R], reads: int) -> _R:
    """Read a document; raises InputError that names it where it is torn, foreign, or of another format."""
    try:
        fields: Any = json.loads(data)
    except (ValueError, RecursionError):
        raise InputError(f"{name} of the registry is torn or not JSON: restore an earlier version of it") from None
    number = fields.get("format") if isinstance(fields, dict) else None
    if type(number) is not int:
        raise InputError(f"{name} of the registry was not written by SerFer: it has no format; restore it")
    if number != reads:
        raise InputError(f"{name} of the registry has format {number}, this SerFer reads {reads}: use another version")
    try:
        return structure(kind, fields, name, error=InputError)
    except RecursionError:
        raise InputError(f"{name} of the registry is nested too deeply") from None


def decode_application(application: str, data: bytes) -> Application:
    name = document_name(application)
    record = decode_record(name, data, Application, FORMAT)
    if record.name != application:
        raise InputError(f"{name} of the registry is about the application {record.name!r:.100}")
    try:
        check_application(record)
    except InputError as error:
        raise InputError(f"{name} of the registry: {error}") from error
    return record


def check_digest(digest: str) -> str:
    if not DIGEST.fullmatch(digest):
        raise InputError(f"{digest!r:.100} is not a digest of a registry's artefact: give 64 hex digits")
    return digest


def check_size(name: str, data: bytes) -> bytes:
    if len(data) > MAX_DOCUMENT_BYTES:
        raise InputError(f"{name} would have {len(data):,} bytes: a registry's document has {MAX_DOCUMENT_BYTES:,}")
    return data
