"""The registry's records and plan directories: updates at once, foreign data, whole directories, garbage."""

import json
import multiprocessing
from dataclasses import replace

import pytest

from serfer.core.dataclass_codec import unstructure
from serfer.core.errors import AlteredPieceError, InputError, MissingKeyError, PlanError, UnavailableError, UsageError
from serfer.core.plan import codec, sealed
from serfer.core.variants import Canary
from serfer.plan_directory import check_artefacts, load_cold_plan, load_plan
from serfer.registry import check_apart, collect_garbage
from serfer.registry.opening import open_registry
from serfer.registry.registration import RegistrationRequest, Registrations, RegistrationState, RegistrationStep
from tests.core.plans import small_plan, write_plan
from tests.registry.records import CREATED, DIGEST, application, network, variant

NAME = "applications/faces.json"


@pytest.fixture
def root(tmp_path):
    return tmp_path / "registry"


@pytest.fixture
def registry(root):
    return open_registry(str(root))


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "plan"
    path.mkdir()
    return write_plan(path)


def made(registry, record=None):
    return registry.update("faces", lambda _: record or application())


def test_a_record_comes_back_as_it_was_written(registry, root):
    record = application("faces", network(), network(version=2), network("other"))
    record = record.with_canary(Canary({"net": 2, "other": 1}, 0.1, CREATED, "test", shadow=True))
    assert registry.application("faces") is None
    assert registry.applications() == []
    assert made(registry, record) == record
    again = open_registry(f"file://{root}")
    assert again.application("faces") == record
    assert again.applications() == ["faces"]


def test_a_record_that_has_not_changed_is_not_decoded_again(registry):
    assert registry.latest("faces") is None
    made(registry)
    known = registry.latest("faces")
    assert registry.latest("faces", known) is known
    changed = registry.update("faces", lambda record: record.with_version(network("other")))
    assert registry.latest("faces", known).application == changed
    registry.delete("faces")
    assert registry.latest("faces", known) is None


def test_an_update_that_changes_nothing_writes_nothing(registry):
    record = made(registry)
    assert registry.update("faces", lambda _: None) == record
    assert registry.update("faces", lambda found: found) == record
    assert len(list(registry.history("faces"))) == 1


def test_an_unknown_application_is_named_with_those_that_there_are(registry):
    made(registry)
    for call in (
        lambda: registry.known("face"),
        lambda: registry.update("face", lambda _: None),
        lambda: registry.delete("face"),
    ):
        with pytest.raises(UsageError, match=r"no application face: it has faces"):
            call()


def test_an_update_gives_up_where_others_always_come_first(registry):
    made(registry)
    waits = []
    registry._sleep = waits.append
    registry.store.compare_and_set = lambda *_: None
    with pytest.raises(UnavailableError, match="others change applications/faces"):
        registry.update("faces", lambda record: record.with_version(network("other")))
    assert 10 < len(waits) < 100


def test_a_record_that_could_not_be_read_again_is_not_written(registry):
    before = made(registry)
    with pytest.raises(InputError, match=r"applications/faces.json.*live release 7"):
        registry.update("faces", lambda record: replace(record, live=7))
    assert registry.application("faces") == before


def test_earlier_records_are_kept_a_deleted_ones_too(registry):
    first = made(registry)
    second = registry.update("faces", lambda record: record.with_version(network(version=2)))
    registry.delete("faces")
    assert registry.applications() == []
    versions = list(registry.history("faces"))
    assert [each.application for each in versions] == [second, first]
    assert registry.restore("faces", versions[1].version) == first
    assert registry.application("faces") == first


def damaged(change):
    fields = unstructure(application())
    change(fields)
    return json.dumps(fields).encode()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "torn or not JSON"),
        (damaged(lambda _: None)[:-10], "torn or not JSON"),
        (b"[" * 100_000, "torn or not JSON"),
        (b"\xff\xfe", "torn or not JSON"),
        (b"[]", "not written by SerFer"),
        (b"{}", "not written by SerFer"),
        (damaged(lambda fields: fields.update(format=True)), "not written by SerFer"),
        (damaged(lambda fields: fields.update(format=1)), "format 1, this SerFer reads 2"),
        (damaged(lambda fields: fields.update(format=3)), "format 3, this SerFer reads 2"),
        (damaged(lambda fields: fields.update(name="other")), "about the application 'other'"),
        (damaged(lambda fields: fields.update(colour="red")), "unknown 'colour'"),
        (damaged(lambda fields: fields.pop("networks") and fields.update(networks=[{}])), r"networks\[0\] lacks"),
        (damaged(lambda fields: fields.update(live=3)), "live release 3 is not there"),
        (damaged(lambda fields: fields["releases"][0].update(networks={"net": 2})), "has no net@2"),
        (damaged(lambda fields: fields["releases"][0].update(networks={})), "needs a network"),
        (damaged(lambda fields: fields["networks"].append(fields["networks"][0])), "one name and number"),
        (damaged(lambda fields: fields["networks"][0]["variants"][0].update(version=2)), "is of net@2, not of net"),
        (damaged(lambda fields: fields["networks"][0]["variants"][0].update(precision="fp8")), "precision 'fp8'"),
        (damaged(lambda fields: fields["networks"][0]["variants"][0]["accuracy"].update(correct=101)), "more correct"),
        (damaged(lambda fields: fields["networks"][0]["variants"][0].update(name="a/b")), "cannot be the name"),
        (damaged(lambda fields: fields["networks"][0]["variants"][0].update(measured_on=["a b"])), "measured on 'a b'"),
    ],
)
def test_a_foreign_or_torn_record_is_refused_by_name_and_not_replaced(registry, data, words):
    version = registry.store.compare_and_set(NAME, None, data)
    for call in (lambda: registry.application("faces"), lambda: registry.update("faces", lambda _: application())):
        with pytest.raises(InputError, match=words) as raised:
            call()
        assert NAME in str(raised.value)
    with pytest.raises(InputError, match=NAME):
        collect_garbage(registry, 0.0)
    assert registry.store.get(NAME).version == version


@pytest.mark.parametrize("name", ["", "a/b", "../x", "a b", "a" * 65])
def test_what_cannot_name_an_application_is_refused(registry, name):
    with pytest.raises(UsageError, match="cannot name an application"):
        registry.application(name)


def test_a_plan_directory_comes_back_whole(registry, plan, tmp_path):
    (plan / "notes.txt").write_text("not part of the plan")
    digest = registry.put_directory(plan)
    back = registry.directory(digest, tmp_path / "cache")
    assert load_plan(back) == small_plan()
    check_artefacts(load_plan(back), back)
    files = {"explanation.json", "plan.json", "unsplit.onnx", "stage-0", "stage-1"}
    assert {path.name for path in back.iterdir()} == files
    assert registry.directory(digest, tmp_path / "cache") == back
    assert registry.put_directory(plan) == digest


def test_a_plan_of_an_older_format_is_refused_by_its_digest_before_its_other_files_are_fetched(
    registry, plan, tmp_path, monkeypatch
):
    with monkeypatch.context() as before:
        before.setattr(codec, "FORMAT", codec.FORMAT - 1)
        write_plan(plan, sealed(small_plan()))
        digest = registry.put_directory(plan)
    fetched, fetch = [], registry.store.fetch_artefact
    registry.store.fetch_artefact = lambda *both: (fetched.append(both), fetch(*both))
    with pytest.raises(
        PlanError, match=f"directory {digest} of the registry has format 10, .* reads 11: .*serfer split"
    ):
        registry.directory(digest, tmp_path / "cache")
    assert len(fetched) == 2  # the manifest and plan.json
    assert not any(path.is_dir() for path in (tmp_path / "cache").iterdir())


def test_a_cold_plan_is_kept_too(registry, plan, tmp_path):
    (plan / "cold").mkdir()
    write_plan(plan / "cold", sealed(replace(small_plan(), store="s3", memory_per_vcpu=1770.0)))
    back = registry.directory(registry.put_directory(plan), tmp_path / "cache")
    assert load_cold_plan(back, load_plan(back)).store == "s3"
    check_artefacts(load_cold_plan(back, load_plan(back)), back / "cold")


def test_files_that_two_directories_share_are_kept_once(registry, plan):
    registry.put_directory(plan)
    before = {entry.digest for entry in registry.store.artefacts()}
    write_plan(plan, sealed(replace(small_plan(), memory_per_vcpu=1770.0)))
    registry.put_directory(plan)
    new = {entry.digest for entry in registry.store.artefacts()} - before
    assert len(new) == 3  # plan.json, explanation.json and the manifest


def link(path, target):
    path.rename(target)
    path.symlink_to(target)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda plan: (plan / "stage-0" / "a.onnx").write_bytes(b"graph b"), "altered"),
        (lambda plan: (plan / "stage-0" / "a.onnx").unlink(), "cannot be kept"),
        (lambda plan: (plan / "plan.json").unlink(), "not a plan directory"),
        (lambda plan: link(plan / "stage-0" / "a.onnx", plan / "x"), "behind a link"),
        (lambda plan: link(plan / "stage-0", plan / "x"), "behind a link"),
    ],
)
def test_a_directory_that_is_not_whole_or_has_links_is_refused(registry, plan, change, words):
    change(plan)
    with pytest.raises(PlanError, match=words):
        registry.put_directory(plan)


def test_a_directory_that_is_not_kept_or_altered_leaves_nothing_in_the_cache(registry, root, plan, tmp_path):
    digest = registry.put_directory(plan)
    (tmp_path / "other").write_bytes(b"no manifest")
    other = registry.store.put_artefact(tmp_path / "other")
    (weights,) = [file for file in (root / "artefacts").glob("*/*") if file.read_bytes() == b"weights 0"]
    weights.write_bytes(b"weights 1")
    for wanted, error in ((digest, AlteredPieceError), (DIGEST, MissingKeyError), (other, InputError)):
        with pytest.raises(error):
            registry.directory(wanted, tmp_path / "cache")
    assert [path for path in (tmp_path / "cache").iterdir() if path.suffix != ".lock"] == []


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "stage-0/../../x", "notes.txt", "stage-0"])
def test_a_manifest_that_leads_out_of_its_directory_is_refused(registry, tmp_path, path):
    fields = {
        "format": 1,
        "kind": "serfer plan directory",
        "files": [{"path": name, "digest": DIGEST, "bytes": 1} for name in ("plan.json", path)],
    }
    (tmp_path / "manifest").write_text(json.dumps(fields))
    digest = registry.store.put_artefact(tmp_path / "manifest")
    with pytest.raises(InputError, match="not part of a plan"):
        registry.directory(digest, tmp_path / "cache" / "deep")
    assert not (tmp_path / "x").exists()


def _fetch(arguments):
    root, digest, cache = arguments
    registry = open_registry(str(root))
    fetched = []
    whole = registry.store.fetch_artefact
    registry.store.fetch_artefact = lambda *each: (fetched.append(each), whole(*each))
    return registry.directory(digest, cache), len(fetched)


@pytest.mark.two_at_once
def test_of_processes_at_once_one_fetches_a_directory(registry, root, plan, tmp_path):
    digest = registry.put_directory(plan)
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        results = pool.map(_fetch, [(root, digest, tmp_path / "cache")] * 3)
    assert {path for path, _ in results} == {tmp_path / "cache" / digest}
    assert sorted(fetched for _, fetched in results) == [0, 0, 8]
    check_artefacts(small_plan(), tmp_path / "cache" / digest)


def test_garbage_is_what_no_record_refers_to(registry, plan, tmp_path):
    kept = registry.put_directory(plan)
    (tmp_path / "stray").write_bytes(b"stray")
    registry.store.put_artefact(tmp_path / "stray")
    made(registry, application("faces", network(variants=[variant(artefact=kept)])))
    collected = collect_garbage(registry, 0.0)
    assert (collected.artefacts, collected.bytes, collected.kept_artefacts) == (1, 5, 8)
    check_artefacts(small_plan(), registry.directory(kept, tmp_path / "cache"))
    registry.delete("faces")
    assert collect_garbage(registry, 0.0).kept_artefacts == 0


def test_what_was_put_lately_is_not_garbage(registry, plan):
    registry.put_directory(plan)
    assert collect_garbage(registry, 3600.0).artefacts == 0
    assert collect_garbage(registry, 0.0).artefacts == 8


def test_an_artefact_that_is_put_while_garbage_is_collected_stays(registry, plan, tmp_path):
    registry.put_directory(plan)
    names = registry.store.names

    def put_meanwhile(prefix):
        registry.put_directory(plan)
        return names(prefix)

    registry.store.names = put_meanwhile
    assert collect_garbage(registry, 0.0).artefacts == 0
    check_artefacts(small_plan(), registry.directory(registry.put_directory(plan), tmp_path / "cache"))


def test_what_a_running_registration_has_made_is_not_garbage(registry, plan):
    digest = registry.put_directory(plan)
    mine = Registrations(registry, "me")
    claimed = mine.claim(RegistrationRequest("faces", "net", DIGEST, "", "{}"), "test")
    mine.record(claimed.id, RegistrationStep("a", RegistrationState.DONE, variant=variant(artefact=digest)))
    ages = registry.store.artefacts
    registry.store.artefacts = lambda: (replace(entry, age_s=7200.0) for entry in ages())
    assert collect_garbage(registry, 3600.0).artefacts == 0
    mine.fail(claimed.id, "no room")
    assert collect_garbage(registry, 3600.0).artefacts == 0
    assert collect_garbage(registry, 0.0).registrations == 1
    assert list(ages()) == []


@pytest.mark.parametrize(
    "url",
    [
        *("", "a\0b", "redis://host/0", "memory://", "file://host/x", "file:///x?y=1"),
        *("s3://", "s3://A_B/c", "s3://bucket/p?q=1", "s3://bucket/../x", "s3://bucket/a//b"),
    ],
)
def test_a_url_that_is_not_a_registry_is_refused(url):
    with pytest.raises(UsageError, match="not a registry"):
        open_registry(url)


def test_a_registry_in_the_store_of_activations_is_refused():
    for url, store in [
        ("s3://bucket/store/registry", "s3://bucket/store"),
        ("s3://bucket/registry", "s3://bucket"),
        ("/srv/store/registry", "file:///srv/store"),
    ]:
        with pytest.raises(UsageError, match="inside the store"):
            check_apart(url, store)
    check_apart("s3://bucket/registry", "s3://bucket/store")
    check_apart("/srv/registry", "redis://127.0.0.1:6379/0")
