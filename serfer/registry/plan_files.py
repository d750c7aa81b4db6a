"""Plan directories as artefacts: each file by its digest, and a manifest of them, whose digest names the directory.

{"format": 1, "kind": "serfer plan directory", "files": [{"path": "plan.json", "digest": HEX, "bytes": N}, ...]}
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from serfer.core.dataclass_codec import Bounds
from serfer.core.errors import InputError, PlanError, UnavailableError
from serfer.core.plan.layout import COLD_DIRECTORY, EXPLANATION_FILE, PLAN_FILE, is_part
from serfer.files import locked
from serfer.plan_directory import load_cold_plan, load_plan
from serfer.registry.records import MAX_DOCUMENT_BYTES, check_digest, decode_record, encode_record

if TYPE_CHECKING:
    from serfer.registry.store import RegistryStore

FORMAT: Final = 1
KIND: Final = "serfer plan directory"
MAX_FILES: Final = 20_000


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A file of a plan directory: its relative path, SHA-256 and size."""

    path: str
    digest: str
    bytes: Annotated[int, Bounds(0)]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of a plan directory, by path; a plan directory of the same files has the same manifest."""

    files: tuple[PlanFile, ...]
    kind: str = KIND
    format: int = FORMAT


def put_directory(store: RegistryStore, path: Path) -> str:
    if path.is_symlink():
        raise PlanError(f"{path} is a link: give the plan directory itself")
    files = tuple(PlanFile(name, _put(store, path, name, digest), size) for name, digest, size in _named(path))
    data = encode_record("a plan directory's manifest", Manifest(files))
    with tempfile.TemporaryDirectory(prefix="serfer-") as folder:
        manifest = Path(folder) / "manifest.json"
        manifest.write_bytes(data)
        return store.put_artefact(manifest)


def read_manifest(store: RegistryStore, digest: str) -> Manifest | None:
    """Return a manifest, None for an artefact that is something else; raises MissingKeyError for none at all."""
    with tempfile.TemporaryDirectory(prefix="serfer-") as folder:
        path = Path(folder) / "manifest.json"
        store.fetch_artefact(digest, path)
        with path.open("rb") as file:
            data = file.read(MAX_DOCUMENT_BYTES + 1)
    if len(data) > MAX_DOCUMENT_BYTES or KIND.encode() not in data:
        return None
    manifest = decode_record(f"artefact {digest}", data, Manifest, FORMAT)
    _check(manifest, digest)
    return manifest


def fetch_directory(store: RegistryStore, digest: str, cache: Path, *, again: bool = False) -> Path:
    place = cache / check_digest(digest)
    if place.is_dir() and not again:
        return place
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with locked(cache / f".{digest}.lock"):
            if again and place.is_dir():
                shutil.rmtree(place.rename(place.with_name(f".{digest}.{secrets.token_hex(4)}.part")))
            if not place.is_dir():
                _fetch(store, digest, place)
    except OSError as error:
        raise UnavailableError(f"the cache {cache} cannot be written: {error.strerror}") from error
    return place


def fetch_to(store: RegistryStore, digest: str, place: Path) -> None:
    if place.exists():
        raise InputError(f"{place} is there already: choose another place")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        _fetch(store, check_digest(digest), place.absolute())
    except OSError as error:
        raise InputError(f"{place} cannot be written: {error.strerror}") from error


def _fetch(store: RegistryStore, digest: str, place: Path) -> None:
    manifest = read_manifest(store, digest)
    if manifest is None:
        raise InputError(f"artefact {digest} of the registry is not a plan directory")
    for left in place.parent.glob(f".{digest}.*.part"):  # of a process that was killed: the lock is ours
        shutil.rmtree(left, ignore_errors=True)
    part = place.with_name(f".{digest}.{secrets.token_hex(4)}.part")
    try:
        for file in sorted(manifest.files, key=lambda file: file.path != PLAN_FILE):
            (part / file.path).parent.mkdir(parents=True, exist_ok=True)
            store.fetch_artefact(file.digest, part / file.path)
            if file.path == PLAN_FILE:  # before the weights: a plan of another format is not fetched whole
                load_plan(part, f"plan directory {digest} of the registry")
        part.rename(place)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _named(path: Path) -> list[tuple[str, str | None, int]]:
    plan = load_plan(path)
    found: dict[str, tuple[str | None, int]] = {}
    plans = {"": plan}
    if cold := load_cold_plan(path, plan):
        plans[f"{COLD_DIRECTORY}/"] = cold
    for prefix, each in plans.items():
        own = [PLAN_FILE, EXPLANATION_FILE] if each.explained else [PLAN_FILE]
        found |= {prefix + name: (None, _size(path / prefix / name)) for name in own}
        found |= {prefix + file.path: (file.sha256, file.bytes) for file in each.artefacts}
    if len(found) > MAX_FILES:
        raise InputError(f"{path} names {len(found):,} files: a registry keeps {MAX_FILES:,} of a plan directory")
    return [(name, *found[name]) for name in sorted(found)]


def _put(store: RegistryStore, directory: Path, name: str, digest: str | None) -> str:
    path = directory / name
    if any((directory / part).is_symlink() for part in (name, *map(str, Path(name).parents[:-1]))):
        raise PlanError(f"{path} lies behind a link: copy the file itself into the plan, or split the model again")
    try:
        found = store.put_artefact(path)
    except InputError as error:
        raise PlanError(f"{error}; split the model again") from error
    if digest is not None and found != digest:
        raise PlanError(f"{path} was altered: its digest does not match plan.json; split the model again")
    return found


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0


def _check(manifest: Manifest, digest: str) -> None:
    paths = [file.path for file in manifest.files]
    if manifest.kind != KIND or len(paths) > MAX_FILES or len(set(paths)) < len(paths) or PLAN_FILE not in paths:
        raise InputError(f"artefact {digest} of the registry is not a plan directory's manifest")
    for file in manifest.files:
        if not is_part(file.path) or not Path(file.path).suffix:  # folders have none
            raise InputError(f"artefact {digest} of the registry names {file.path!r:.100}, which is not part of a plan")
        check_digest(file.digest)
