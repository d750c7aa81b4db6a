"""The commands of the registry: what they print, change and refuse."""

import json
import os

import pytest

from serfer.plan_directory import check_artefacts, load_plan
from serfer.registry import open_registry
from tests.applications.worlds import plan_variant, register, version
from tests.registry.records import application, network


@pytest.fixture
def registry(tmp_path, monkeypatch):
    monkeypatch.setenv("SERFER_REGISTRY", str(tmp_path / "registry"))
    return open_registry(str(tmp_path / "registry"))


@pytest.fixture
def faces(registry):
    record = application("faces", network(), network(version=2), network("other"))
    return registry.update("faces", lambda _: record)


@pytest.mark.usefixtures("faces")
def test_variants_are_listed_with_state_accuracy_and_what_is_predicted(serfer):
    text = serfer("app", "list", "faces").out
    head, titles, *rows, note = text.splitlines()
    assert head == "faces: 10 classes; release 2: net@1, other@1"
    assert titles.split()[:3] == ["variant", "state", "place"]
    assert [row.split()[1] for row in rows] == ["live", "other", "live"]
    first = "net-v1-fp32 live functions 0.9000 0.8256 to 0.9448 40.0 700.0 ~300.0 ~20.0 ~10.0"
    assert rows[0].split() == first.split()
    assert note.startswith("~ predicted")
    assert serfer("app", "list").out == text


@pytest.mark.usefixtures("faces")
def test_variants_as_json_are_an_object_a_line(serfer):
    (line,) = serfer("app", "list", "--json").out.splitlines()
    found = json.loads(line)
    assert (found["application"], found["live"]["networks"]) == ("faces", {"net": 1, "other": 1})
    assert [each["state"] for each in found["networks"]] == ["live", "other", "live"]
    (made,) = found["networks"][0]["variants"]
    assert made["latency_ms"] == {"value": 40.0, "source": "measured"}
    assert made["accuracy"]["low"] < made["accuracy"]["share"] == 0.9 < made["accuracy"]["high"]


@pytest.mark.usefixtures("faces")
def test_a_canary_is_promoted_or_rolled_back(serfer, registry):
    made = serfer(
        "app", "canary", "faces", "net@2", "--share", "0.2", "--window-s", "60", "--queries", "10", "--shadow"
    )
    assert made.out == "faces: release 2: net@1, other@1; canary at 0.2 in the shadow: net@2, other@1\n"
    canary = registry.known("faces").canary
    assert (canary.share, canary.shadow, canary.limits.window_s, canary.limits.queries) == (0.2, True, 60.0, 10)
    assert "shadow" in serfer("app", "list", "faces").out
    assert serfer("app", "rollback", "faces", "--by", "ann").out == "faces: release 2: net@1, other@1\n"
    serfer("app", "canary", "faces", "net@2")
    assert serfer("app", "promote", "faces", "--by", "ann", "--why", "it was better").code == 0
    live = registry.known("faces").live_release
    assert (live.networks, live.by, live.why) == ({"net": 2, "other": 1}, "ann", "it was better")
    assert serfer("app", "rollback", "faces").out == "faces: release 4: net@1, other@1\n"


@pytest.mark.usefixtures("faces")
def test_a_version_is_promoted_retired_and_forgotten(serfer, registry):
    assert serfer("app", "promote", "faces", "net@2").out == "faces: release 3: net@2, other@1\n"
    assert serfer("app", "retire", "faces", "net@1").code == 0
    assert "retired" in serfer("app", "list", "faces").out
    assert serfer("app", "retire", "faces", "net@1", "--forget").code == 0
    assert [each.version for each in registry.known("faces").versions("net")] == [2]
    assert serfer("app", "promote", "faces", "other@1", "--only").out == "faces: release 4: other@1\n"


@pytest.mark.usefixtures("faces")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["app", "list", "face"], "has no application face: it has faces"),
        (["app", "promote", "face", "net@2"], "has no application face: it has faces"),
        (["app", "history", "face"], "has no application face: it has faces"),
        (["app", "rollback", "face"], "it has faces"),
        (["app", "retire", "face", "net@1"], "it has faces"),
        (["app", "promote", "faces", "net@7"], "it has net@1, net@2, other@1"),
        (["app", "promote", "faces", "net"], "give NETWORK@VERSION"),
        (["app", "promote", "faces", "net@1", "net@2"], "two versions of one network"),
        (["app", "promote", "faces"], "has no canary"),
        (["app", "promote", "faces", "net@2", "--why", "a\nb"], "--why should be one line"),
        (["app", "canary", "faces", "net@2", "--share", "0"], "canary.share should be above 0 and at most 1, not 0"),
        (["app", "canary", "faces", "net@2", "--max-latency-ratio", "0.5"], "max_latency_ratio should be 1 to 100"),
        (["app", "canary", "faces", "net@1"], "what the live release has"),
        (["app", "retire", "faces", "net@1"], "answers queries: promote another version first"),
        (["app", "retire", "faces", "net@2", "--forget"], "not retired"),
    ],
)
def test_what_cannot_be_done_is_refused_and_changes_nothing(serfer, registry, arguments, words):
    before = registry.known("faces")
    refused = serfer(*arguments)
    assert refused.code == 2
    assert words in refused.err
    assert registry.known("faces") == before


def test_a_registry_has_to_be_named_and_there(serfer, tmp_path, monkeypatch):
    monkeypatch.delenv("SERFER_REGISTRY", raising=False)
    assert serfer("app", "list").code == 2
    missing = serfer("app", "list", "--registry", str(tmp_path / "none"))
    assert missing.code == 4
    assert "there is no registry" in missing.err
    assert not (tmp_path / "none").exists()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "local")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    assert serfer("app", "list", "--registry", "s3://bucket/registry").code == 4


def test_garbage_is_counted(serfer, registry, tmp_path):
    (tmp_path / "a").write_bytes(b"a" * 2048)
    registry.store.put_artefact(tmp_path / "a")
    assert "deleted 0 files" in serfer("app", "gc").out
    for mark in (tmp_path / "registry/artefacts").glob("*/0*"):
        os.utime(mark, (1.0, 1.0))
    assert "deleted 1 files of 2.0 kB and 0 registrations; 0 files" in serfer("app", "gc").out
    assert json.loads(serfer("app", "gc", "--json").out)["artefacts"] == 0


@pytest.mark.usefixtures("faces")
def test_the_history_is_listed_the_newest_first(serfer):
    serfer("app", "promote", "faces", "net@2", "--by", "ann", "--why", "newer")
    first, second = serfer("app", "history", "faces").out.splitlines()[1:]
    assert first.split()[2:] == ["3", "newer", "ann"]
    assert second.split()[2] == "2"
    lines = serfer("app", "history", "faces", "--json").out.splitlines()
    assert [json.loads(line)["application"]["live"] for line in lines] == [3, 2]


@pytest.mark.hostile
def test_a_damaged_record_is_restored(serfer, registry, faces):
    name = "applications/faces.json"
    registry.store.compare_and_set(name, registry.store.get(name).version, b'{"format": 1, "na')
    assert serfer("app", "list", "faces").code == 3
    first, second = serfer("app", "history", "faces").out.splitlines()[1:]
    assert first.rstrip().endswith("cannot be read")
    assert serfer("app", "restore", "faces", first.split()[1]).code == 3
    assert serfer("app", "restore", "faces", "none").code == 2
    assert serfer("app", "restore", "faces", second.split()[1]).out == "faces: release 2: net@1, other@1\n"
    assert registry.known("faces") == faces


def test_a_variants_plan_directory_is_fetched_once_and_verified(serfer, registry, tmp_path):
    made = plan_variant(registry, tmp_path / "plan", "net.whole", grids=[(1, 1)])
    register(registry, "faces", version("net", 1, made))
    place = tmp_path / "new" / "fetched"
    assert serfer("app", "fetch", "faces", "net.whole", "--out", str(place)).code == 0
    assert load_plan(place).digest == made.plan
    check_artefacts(load_plan(place), place)
    again = serfer("app", "fetch", "faces", "net.whole", "--out", str(place))
    assert (again.code, "is there already" in again.err) == (3, True)
    unknown = serfer("app", "fetch", "faces", "net.none", "--out", str(tmp_path / "other"))
    assert (unknown.code, "net.whole" in unknown.err) == (2, True)
    for file in (tmp_path / "registry" / "artefacts").rglob("*"):
        if file.is_file() and file.stat().st_size > 1000:
            file.chmod(0o600)
            file.write_bytes(b"x" * file.stat().st_size)
    altered = serfer("app", "fetch", "faces", "net.whole", "--out", str(tmp_path / "other"))
    assert altered.code != 0
    assert not (tmp_path / "other").exists()


def test_an_application_is_deleted_only_by_who_says_so_and_can_be_restored(serfer, registry, faces):
    refused = serfer("app", "delete", "faces")
    assert (refused.code, "give --yes" in refused.err) == (2, True)
    assert registry.applications() == ["faces"]
    assert serfer("app", "delete", "dogs", "--yes").code == 2
    deleted = serfer("app", "delete", "faces", "--yes")
    assert (deleted.code, registry.applications()) == (0, [])
    version = serfer("app", "history", "faces").out.splitlines()[-1].split()[1]
    assert serfer("app", "restore", "faces", version).code == 0
    assert registry.application("faces") == faces
