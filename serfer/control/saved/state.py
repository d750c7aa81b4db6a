"""What a policy has learnt, as it is kept between runs of a service: a line that says whose it is, and the snapshot.

{"format": "serfer policy state", "version": 1, "model": NAME, "policy": NAME, "scenario": DIGEST, "saved": UNIX
 SECONDS, "bytes": N, "sha256": HEX}
the snapshot, N bytes of JSON
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from serfer.control.saved.fields import Snapshot
from serfer.control.saved.plain_json import MAX_SNAPSHOT_BYTES, read_json, write_json
from serfer.core.errors import InputError
from serfer.core.structure import structure, unstructure

FORMAT: Final = "serfer policy state"
VERSION: Final = 1
_MAX_HEADER_BYTES: Final = 4096
MAX_STATE_BYTES: Final = MAX_SNAPSHOT_BYTES + _MAX_HEADER_BYTES


@dataclass(frozen=True)
class StateOwner:
    """Whose knowledge it is: the policy's, about the load of a model, with the prices and speeds of a scenario."""

    model: str
    policy: str
    scenario: str


@dataclass(frozen=True)
class _Header:
    format: str
    version: int
    model: str
    policy: str
    scenario: str
    saved: float
    bytes: int
    sha256: str


def encode_state(owner: StateOwner, saved_s: float, snapshot: Snapshot) -> bytes:
    """Return what is kept, as of `saved_s` in Unix time; raises ValueError for what is too large or no JSON."""
    body = write_json(snapshot)
    if len(body) > MAX_SNAPSHOT_BYTES:
        raise ValueError(f"a state of {len(body):,} bytes is larger than {MAX_SNAPSHOT_BYTES:,}")
    digest = hashlib.sha256(body).hexdigest()
    header = _Header(FORMAT, VERSION, owner.model, owner.policy, owner.scenario, saved_s, len(body), digest)
    return write_json(unstructure(header)) + b"\n" + body


def decode_state(data: bytes, owner: StateOwner) -> Snapshot:
    """Return the snapshot; raises InputError that says why it cannot be taken: damaged, newer, or another owner's."""
    first, found, body = data[:_MAX_HEADER_BYTES].partition(b"\n")
    fields = read_json(first, "its first line") if found else None
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise InputError("it is not a policy's state")
    version = fields.get("version")
    if version != VERSION:
        age = "a newer" if isinstance(version, int) and version > VERSION else "another"
        raise InputError(f"it is of {age} version, {version!r:.20}: this SerFer reads {VERSION}")
    header = structure(_Header, fields, "its first line", error=InputError)
    body = data[len(first) + 1 :]
    if len(body) != header.bytes:
        raise InputError(f"it is torn: {len(body):,} bytes of {header.bytes:,} are there")
    if hashlib.sha256(body).hexdigest() != header.sha256:
        raise InputError("it is damaged: its SHA-256 is not that of its first line")
    _check_owner(StateOwner(header.model, header.policy, header.scenario), owner)
    snapshot = read_json(body, "the snapshot")
    if not isinstance(snapshot, dict):
        raise InputError("the snapshot should be an object")
    return snapshot


def _check_owner(found: StateOwner, owner: StateOwner) -> None:
    if found.model != owner.model:
        raise InputError(f"it is about the load of {found.model!r:.80}, not of {owner.model!r:.80}")
    if found.policy != owner.policy:
        raise InputError(f"it is of the policy {found.policy!r:.80}, not of {owner.policy!r:.80}")
    if found.scenario != owner.scenario:
        raise InputError("it was learnt with other prices or speeds than the scenario has")
