"""A registry of format 1 (tests/data/registry-format-1, written by 5cbe0f9c): refused by name, and copied whole."""

import os
import shutil
from pathlib import Path

import pytest

from serfer.core.errors import AlteredPieceError, InputError, UsageError
from serfer.plan_directory import check_artefacts, load_plan
from serfer.registry import open_registry
from serfer.registry.importing import import_registry
from serfer.registry.opening import open_store
from serfer_bench.core.s3_server import S3Server
from tests.registry.records import CREATED

OLD = Path(__file__).parents[1] / "data/registry-format-1"
FILES = 8


@pytest.fixture
def old(tmp_path):
    return shutil.copytree(OLD, tmp_path / "old")


def test_registry_of_format_1_refused_with_the_command_that_copies_it(old):
    with pytest.raises(UsageError, match=f"serfer app import {old} NEW"):
        open_registry(str(old))


def test_import_copies_records_and_files(old, tmp_path):
    new = str(tmp_path / "new")
    before = {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    copied = import_registry(str(old), new)
    assert (copied.documents, copied.artefacts) == (1, FILES)
    assert {path: path.read_bytes() for path in old.rglob("*") if path.is_file()} == before
    registry = open_registry(new)
    assert registry.applications() == ["faces"]  # pets was deleted
    faces = registry.known("faces")
    assert [version.version for version in faces.networks] == [1, 2]
    directory = registry.directory(faces.networks[0].variants[0].artefact, tmp_path / "cache")
    check_artefacts(load_plan(directory), directory)


def test_import_run_again_keeps_what_is_there(old, tmp_path):
    new = str(tmp_path / "new")
    import_registry(str(old), new)
    record = open_registry(new).update("faces", lambda faces: faces.promoted({"net": 2}, CREATED, "me", "try"))
    again = import_registry(str(old), new)
    assert (again.documents, again.artefacts) == (0, 0)
    assert open_registry(new).application("faces") == record
    with pytest.raises(UsageError, match="format 1"):
        import_registry(new, str(tmp_path / "newer"))


def test_import_of_damaged_content_refused(old, tmp_path):
    (artefact,) = (old / "artefacts/78").iterdir()
    whole = artefact.read_bytes()
    artefact.write_bytes(whole[:-1])
    with pytest.raises(AlteredPieceError, match=artefact.name):
        import_registry(str(old), str(tmp_path / "new"))
    artefact.write_bytes(whole)
    (old / "documents/applications/faces.json/000000000003-0123456789abcdef.data").write_bytes(b"{")
    with pytest.raises(InputError, match="faces"):
        import_registry(str(old), str(tmp_path / "new"))


def test_import_of_a_bucket(old, tmp_path, monkeypatch):
    with S3Server() as server:
        for name, value in (server.environment | {"AWS_EC2_METADATA_DISABLED": "true"}).items():
            monkeypatch.setenv(name, value)
        bucket = open_store(f"s3://{server.bucket}/old", create=False).objects
        bucket.put("registry.json", (old / "registry.json").read_bytes())
        for path in (old / "artefacts").glob("??/*"):
            bucket.put(f"artefacts/{path.name}", path.read_bytes())
        (*_, last) = sorted((old / "documents/applications/faces.json").iterdir())
        bucket.put("documents/applications/faces.json", os.urandom(16).hex().encode() + b"\n" + last.read_bytes())
        copied = import_registry(f"s3://{server.bucket}/old", f"s3://{server.bucket}/new")
        assert (copied.documents, copied.artefacts) == (1, FILES)
        faces = open_registry(f"s3://{server.bucket}/new").known("faces")
    import_registry(str(old), str(tmp_path / "new"))
    assert faces == open_registry(str(tmp_path / "new")).known("faces")
