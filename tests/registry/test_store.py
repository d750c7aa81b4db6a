"""What every backend of a registry has to do, and what a directory and S3 (SeaweedFS) do beside that."""

import hashlib
import itertools
import os
import signal
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from obstore.exceptions import GenericError

from serfer.core.errors import AlteredPieceError, InputError, MissingKeyError, UnavailableError, UsageError
from serfer.registry import open_registry
from serfer.registry.opening import open_store
from serfer.registry.records import MAX_DOCUMENT_BYTES
from serfer.registry.store import KEPT_VERSIONS
from serfer_bench.core.s3_server import S3Server

NAME = "applications/faces.json"
NO_DIGEST = "0" * 64


_WRITER = """
import sys
from pathlib import Path
from serfer.registry import open_registry
store, name, source = open_registry(sys.argv[1]).store, sys.argv[2], Path(sys.argv[3])
print("ready", flush=True)
number = 0
while number < int(sys.argv[4]):
    document = store.get(name)
    content = (int(document.value.split()[0]) if document else 0) + 1
    if store.compare_and_set(name, document and document.version, b"%d " % content + b"x" * 100_000):
        number += 1
    source.write_bytes(b"%d" % content * 50_000)
    store.put_artefact(source)
"""


class RegistryStoreContract:
    @pytest.fixture
    def open_store(self, url):
        return lambda: open_registry(url).store

    @pytest.fixture
    def store(self, open_store):
        return open_store()

    def damage(self, digest, data):
        raise NotImplementedError

    @pytest.mark.parametrize("data", [b'{"serfer registry": 1}', b'{"serfer registry": 3}', b"{}", b"hello"])
    def test_registry_of_another_format_refused(self, store, open_store, data):
        store.objects.put("registry.json", data)
        with pytest.raises(UsageError, match="not a registry that this version of SerFer reads"):
            open_store()

    def test_what_was_written_is_read_with_its_version(self, store, open_store):
        assert store.get(NAME) is None
        version = store.compare_and_set(NAME, None, b"one")
        for each in (store, open_store()):
            document = each.get(NAME)
            assert (document.value, document.version) == (b"one", version)

    def test_a_write_in_place_of_another_version_writes_nothing(self, store):
        first = store.compare_and_set(NAME, None, b"one")
        assert store.compare_and_set(NAME, None, b"other") is None
        second = store.compare_and_set(NAME, first, b"two")
        third = store.compare_and_set(NAME, second, b"one")
        assert len({first, second, third}) == 3  # equal content, too, has another version each time
        assert store.compare_and_set(NAME, first, b"three") is None
        assert store.compare_and_set("applications/none.json", first, b"x") is None
        document = store.get(NAME)
        assert (document.value, document.version) == (b"one", third)

    def test_a_deleted_document_is_gone_and_its_versions_are_kept(self, store):
        first = store.compare_and_set(NAME, None, b"one")
        second = store.compare_and_set(NAME, first, b"two")
        assert not store.delete(NAME, first)
        assert store.delete(NAME, second)
        assert not store.delete(NAME, second)
        assert store.get(NAME) is None
        assert store.names("") == []
        assert store.compare_and_set(NAME, second, b"x") is None
        assert [store.read_version(NAME, each.version) for each in store.versions(NAME)] == [b"two", b"one"]
        assert store.compare_and_set(NAME, None, b"three") not in {first, second}
        assert store.get(NAME).value == b"three"

    def test_versions_are_listed_the_newest_first_with_size_and_time(self, store):
        assert store.versions(NAME) == []
        version, written = None, []
        for length in range(1, 6):
            version = store.compare_and_set(NAME, version, b"x" * length)
            written.append(version)
        versions = store.versions(NAME)
        assert [each.version for each in versions] == written[::-1]
        assert [each.bytes for each in versions] == [5, 4, 3, 2, 1]
        assert versions[0].written >= versions[-1].written > 1e9
        assert store.read_version(NAME, written[1]) == b"xx"
        assert store.read_version(NAME, "no-such-version") is None

    def test_names_are_listed_by_folder(self, store):
        for name in ("applications/b.json", "applications/a.json", "registrations/c.json", "applications-2/d.json"):
            assert store.compare_and_set(name, None, b"{}")
        assert store.names("applications/") == ["applications/a.json", "applications/b.json"]
        assert store.names("none/") == []
        assert len(store.names("")) == 4

    @pytest.mark.parametrize(
        "name", ["", "..", "a/../b", "/a", "a/", "a//b", "a\\b", "a\n", "-a", ".a", "a b", "a" * 81, "a/b/c/d/e", "ä"]
    )
    def test_a_name_that_cannot_be_one_is_refused(self, store, name):
        for call in (
            lambda: store.get(name),
            lambda: store.compare_and_set(name, None, b""),
            lambda: store.delete(name, "1"),
            lambda: store.versions(name),
            lambda: store.read_version(name, "1"),
        ):
            with pytest.raises(InputError, match="not a name"):
                call()

    @pytest.mark.parametrize("prefix", ["..", "../", "a", "/", "a/b", "a/../"])
    def test_a_folder_that_cannot_be_one_is_refused(self, store, prefix):
        with pytest.raises(InputError, match="not a folder"):
            store.names(prefix)

    def test_a_document_is_bounded_when_it_is_written_and_read(self, store):
        with pytest.raises(InputError, match="4,194,304"):
            store.compare_and_set(NAME, None, b"x" * (MAX_DOCUMENT_BYTES + 1))
        version = store.compare_and_set(NAME, None, b"x" * 1000)
        assert len(store.get(NAME, 1000).value) == 1000
        for read in (lambda: store.get(NAME, 999), lambda: store.read_version(NAME, version, 999)):
            with pytest.raises(InputError, match="more than 999 bytes"):
                read()

    @pytest.mark.two_at_once
    def test_of_writers_at_once_exactly_one_wins_each_version(self, store, open_store):
        writers, rounds = 4, 5
        start = threading.Barrier(writers)

        def write(writer):
            own, won = open_store(), 0
            start.wait(60)
            while won < rounds:
                document = own.get(NAME)
                number = int(document.value) if document else 0
                won += own.compare_and_set(NAME, document and document.version, b"%d" % (number + 1)) is not None
            return writer

        with ThreadPoolExecutor(writers) as threads:
            assert list(threads.map(write, range(writers))) == list(range(writers))
        assert store.get(NAME).value == b"%d" % (writers * rounds)

    @pytest.mark.two_at_once
    def test_processes_at_once_lose_no_update(self, store, url, tmp_path):
        writers = [
            subprocess.Popen([sys.executable, "-c", _WRITER, url, NAME, tmp_path / f"{number}", "10"])
            for number in range(3)
        ]
        assert [writer.wait(300) for writer in writers] == [0, 0, 0]
        assert store.get(NAME).value.split()[0] == b"30"

    @pytest.mark.killed
    def test_a_writer_that_is_killed_leaves_whole_versions_and_artefacts(self, store, url, tmp_path):
        seen = 0
        for _ in range(6):
            command = [sys.executable, "-c", _WRITER, url, NAME, tmp_path / "source", "1000000"]
            writer = subprocess.Popen(command, stdout=subprocess.PIPE)
            assert writer.stdout.readline() == b"ready\n"
            while (document := store.get(NAME)) is None or int(document.value.split()[0]) < seen + 5:
                pass
            os.kill(writer.pid, signal.SIGKILL)
            writer.wait(60)
            writer.stdout.close()
            document = open_registry(url).store.get(NAME)
            assert len(document.value.split()[1]) == 100_000
            seen = int(document.value.split()[0])
            for entry in store.artefacts():
                store.fetch_artefact(entry.digest, tmp_path / "back")
        assert store.compare_and_set(NAME, document.version, b"1 ok")

    @pytest.mark.two_at_once
    def test_a_stale_writer_wins_no_number_that_old_versions_left_free(self, store, open_store):
        stale, version = open_store(), store.compare_and_set(NAME, None, b"0")
        before = stale._folder(f"documents/{NAME}")
        for number in range(KEPT_VERSIONS + 1):
            version = store.compare_and_set(NAME, version, b"%d" % number)
        look, looks = stale._folder, [before]
        stale._folder = lambda name: looks.pop() if looks else look(name)
        with pytest.raises(UnavailableError, match="all the time"):
            stale.compare_and_set(NAME, f"{1:012}", b"stale")
        assert store.get(NAME).value == b"%d" % KEPT_VERSIONS
        assert b"stale" not in [store.read_version(NAME, kept.version) for kept in store.versions(NAME)]

    @pytest.mark.parametrize("size", [0, 1, 3_000_000])
    def test_an_artefact_comes_back_by_its_digest(self, store, tmp_path, size):
        data = bytes(index % 251 for index in range(size))
        (tmp_path / "weights").write_bytes(data)
        digest = store.put_artefact(tmp_path / "weights")
        assert digest == hashlib.sha256(data).hexdigest()
        store.fetch_artefact(digest, tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == data
        (tmp_path / "weights").rename(tmp_path / "again")
        assert store.put_artefact(tmp_path / "again") == digest
        (entry,) = store.artefacts()
        assert (entry.digest, entry.bytes) == (digest, size)
        assert -5 < entry.age_s < 600

    def test_a_missing_artefact_leaves_no_file(self, store, tmp_path):
        with pytest.raises(MissingKeyError, match=NO_DIGEST):
            store.fetch_artefact(NO_DIGEST, tmp_path / "back")
        assert list(tmp_path.glob("*back*")) == []

    def test_an_altered_artefact_is_refused_and_leaves_no_file(self, store, tmp_path):
        (tmp_path / "a").write_bytes(b"a" * 1000)
        digest = store.put_artefact(tmp_path / "a")
        self.damage(digest, b"a" * 999 + b"b")
        with pytest.raises(AlteredPieceError, match=digest):
            store.fetch_artefact(digest, tmp_path / "back")
        assert list(tmp_path.glob("*back*")) == []

    @pytest.mark.parametrize("digest", ["", "0" * 63, "0" * 63 + "G", "../" + "0" * 61])
    def test_a_digest_that_cannot_be_one_is_refused(self, store, tmp_path, digest):
        with pytest.raises(InputError, match="not a digest"):
            store.fetch_artefact(digest, tmp_path / "x")

    def test_only_regular_files_become_artefacts(self, store, tmp_path):
        (tmp_path / "a").write_bytes(b"a")
        (tmp_path / "link").symlink_to(tmp_path / "a")
        for path in (tmp_path / "link", tmp_path, tmp_path / "none"):
            with pytest.raises(InputError, match="cannot be kept"):
                store.put_artefact(path)

    def test_an_artefact_that_was_put_again_is_not_deleted_by_what_was_seen_before(self, store, tmp_path):
        (tmp_path / "a").write_bytes(b"a")
        store.put_artefact(tmp_path / "a")
        (before,) = store.artefacts()
        digest = store.put_artefact(tmp_path / "a")
        (after,) = store.artefacts()
        assert not store.delete_artefact(before)
        store.fetch_artefact(digest, tmp_path / "kept")
        assert store.delete_artefact(after)
        assert not store.delete_artefact(after)
        assert list(store.artefacts()) == []
        assert store.put_artefact(tmp_path / "a") == digest
        store.fetch_artefact(digest, tmp_path / "back")

    @pytest.mark.two_at_once
    def test_a_stale_put_of_an_artefact_that_was_deleted_since_sends_it_again(self, store, open_store, tmp_path):
        (tmp_path / "a").write_bytes(b"a")
        digest = store.put_artefact(tmp_path / "a")
        stale = open_store()
        looks, look = [stale._folder(f"artefacts/{digest}")], stale._folder
        for _ in range(2):
            store.put_artefact(tmp_path / "a")
            assert store.delete_artefact(*store.artefacts())
        stale._folder = lambda name: looks.pop() if looks else look(name)
        assert stale.put_artefact(tmp_path / "a") == digest
        store.fetch_artefact(digest, tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == b"a"


_LIMITED = """
import resource, signal, sys
from pathlib import Path
from serfer.core.errors import UnavailableError
from serfer.registry import open_registry
store = open_registry(sys.argv[1]).store
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
document = lambda: store.compare_and_set(*sys.argv[2:4], b"x" * 2_000_000)
artefact = lambda: store.put_artefact(Path(sys.argv[4]))
for write in (document, artefact):
    try:
        write()
    except UnavailableError as error:
        print(error)
"""


class TestDirectory(RegistryStoreContract):
    @pytest.fixture
    def root(self, tmp_path):
        return tmp_path / "made" / "registry"

    @pytest.fixture
    def url(self, root):
        self._root = root
        return str(root)

    def damage(self, digest, data):
        (self._root / "artefacts" / digest / "data-000000000000").write_bytes(data)

    @pytest.mark.who_may
    def test_only_its_owner_may_read_it(self, store, root, tmp_path):
        store.compare_and_set(NAME, None, b"{}")
        (tmp_path / "a").write_bytes(b"a")
        store.put_artefact(tmp_path / "a")
        modes = {
            stat.S_IMODE(path.stat().st_mode) for path in (root, *root.rglob("*")) if path == root or path.is_file()
        }
        assert modes == {0o600, 0o700}

    def test_directory_keeps_its_mode_and_files_that_are_not_parts(self, root):
        (root / "parts").mkdir(parents=True)
        for name in ("photo.jpg", "0" * 32):
            (root / "parts" / name).touch()
            os.utime(root / "parts" / name, (1, 1))
        root.chmod(0o750)
        open_registry(str(root), create=True)
        assert {path.name for path in (root / "parts").iterdir()} == {"photo.jpg"}
        assert stat.S_IMODE(root.stat().st_mode) == 0o750

    def test_a_bounded_number_of_versions_is_kept(self, store, root):
        version = None
        for number in range(KEPT_VERSIONS + 5):
            version = store.compare_and_set(NAME, version, b"%d" % number)
        kept = store.versions(NAME)
        assert len(kept) == KEPT_VERSIONS
        assert store.read_version(NAME, kept[-1].version) == b"5"
        assert len(list((root / "documents" / NAME).iterdir())) == KEPT_VERSIONS

    def test_a_full_disk_is_unavailable_and_leaves_what_was_there(self, store, root, tmp_path):
        version = store.compare_and_set(NAME, None, b"before")
        (tmp_path / "large").write_bytes(b"x" * 3_000_000)
        limited = subprocess.run(
            [sys.executable, "-c", _LIMITED, root, NAME, version, tmp_path / "large"],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        assert limited.stdout.count("File too large") == 2
        assert store.get(NAME).value == b"before"
        assert list((root / "parts").iterdir()) == []
        assert list(store.artefacts()) == []
        store.put_artefact(tmp_path / "large")

    @pytest.mark.killed
    def test_what_killed_writers_left_is_removed_a_day_later(self, root):
        open_registry(str(root))
        part = root / "parts" / ("1" * 32)
        part.write_bytes(b"half")
        open_registry(str(root))
        assert part.exists()
        os.utime(part, (1.0, 1.0))
        open_registry(str(root))
        assert not part.exists()

    def test_a_document_that_was_deleted_a_month_ago_is_forgotten_and_others_are_not(self, store, root):
        for name in (NAME, "applications/pets.json", "applications/birds.json"):
            version = store.compare_and_set(name, None, b"one")
            assert store.delete(name, version)
        store.compare_and_set("applications/pets.json", None, b"again")
        for path in (root / "documents").rglob("0*2"):
            if "birds" not in str(path):
                os.utime(path, (1.0, 1.0))
        again = open_registry(str(root)).store
        again.delete_leftovers()
        assert again.versions(NAME) == []
        assert [path.name for path in (root / "documents" / NAME).iterdir()] == ["000000000002"]
        assert [len(again.versions(f"applications/{name}.json")) for name in ("pets", "birds")] == [2, 1]
        assert again.compare_and_set(NAME, None, b"new")

    def test_what_is_not_a_registry_is_refused_and_untouched(self, root, tmp_path):
        letter = tmp_path / "letter.txt"
        letter.write_text("dear")
        with pytest.raises(UsageError, match="not a registry"):
            open_registry(str(tmp_path))
        with pytest.raises(UnavailableError, match="letter"):
            open_registry(str(letter))
        with pytest.raises(UnavailableError, match="no registry"):
            open_registry(str(root), create=False)
        with pytest.raises(UnavailableError, match="cannot be written"):
            open_registry(str(letter / "registry"), create=False)
        assert [*tmp_path.iterdir()] == [letter]

    @pytest.mark.parametrize("is_unmounted", [False, True])
    def test_a_registry_that_has_vanished_is_unavailable(self, store, root, tmp_path, is_unmounted):
        store.compare_and_set(NAME, None, b"x")
        root.rename(tmp_path / "elsewhere")
        if is_unmounted:  # an empty directory is in its place
            root.mkdir()
        (tmp_path / "a").write_bytes(b"a")
        for call in (
            lambda: store.compare_and_set(NAME, None, b"x"),
            lambda: store.put_artefact(tmp_path / "a"),
            lambda: store.get(NAME),
            lambda: store.names("applications/"),
            lambda: store.versions(NAME),
        ):
            with pytest.raises(UnavailableError):
                call()


NUMBER = itertools.count()


class Faulty:
    """A client of obstore's whose puts are sent so many times, without some options, and fail in the end."""

    def __init__(self, objects, *, times=1, ignores=(), fails=True):
        self._objects, self._times, self._ignores, self._fails = objects, times, ignores, fails

    def __getattr__(self, name):
        return getattr(self._objects, name)

    def put(self, *args, **options):
        for _ in range(self._times):
            self._objects.put(*args, **{key: value for key, value in options.items() if key not in self._ignores})
        if self._fails:
            raise GenericError("Generic S3 error: the connection was closed")


class TestSeaweed(RegistryStoreContract):
    @pytest.fixture(scope="class")
    @classmethod
    def server(cls):
        with S3Server() as running:
            yield running

    @pytest.fixture
    def url(self, server, monkeypatch):
        for name, value in (server.environment | {"AWS_EC2_METADATA_DISABLED": "true"}).items():
            monkeypatch.setenv(name, value)
        self._url = f"s3://{server.bucket}/r{next(NUMBER)}"
        return self._url

    def damage(self, digest, data):
        open_store(self._url, create=False).objects.put(f"artefacts/{digest}/data-000000000000", data)

    @pytest.mark.parametrize("size", [5 << 20, 12_000_001])
    def test_a_large_artefact_is_sent_in_parts(self, store, tmp_path, monkeypatch, size):
        monkeypatch.setattr("serfer.registry.store._PART_BYTES", 5 << 20)
        data = bytes(range(256)) * (size // 256 + 1)
        (tmp_path / "weights").write_bytes(data[:size])
        digest = store.put_artefact(tmp_path / "weights")
        store.fetch_artefact(digest, tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == data[:size]
        tag = store.objects.head(f"artefacts/{digest}/data-000000000000")["e_tag"].strip('"')
        assert tag.endswith("-3") == (size > 10 << 20)

    def test_a_file_that_changes_while_it_is_sent_is_refused_and_leaves_nothing(self, store, tmp_path, monkeypatch):
        path = tmp_path / "weights"
        path.write_bytes(b"a" * (3 << 20))
        folder = store._folder
        monkeypatch.setattr(store, "_folder", lambda name: path.write_bytes(b"b" * (3 << 20)) and folder(name))
        with pytest.raises(InputError, match="changed"):
            store.put_artefact(path)
        assert [meta for page in store.objects.list("artefacts") for meta in page] == []

    def test_a_write_whose_response_was_lost_is_recognised(self, store):
        sound = store.objects
        version = None
        for times, value in ((1, b"one"), (1, b"two"), (2, b"three")):  # the third is repeated by the client
            store.objects = Faulty(sound, times=times)
            version = store.compare_and_set(NAME, version, value)
            document = store.get(NAME)
            assert (document.value, document.version) == (value, version)
        store.objects = Faulty(sound, times=0)
        with pytest.raises(UnavailableError):
            store.compare_and_set(NAME, version, b"four")
        assert store.get(NAME).value == b"three"

    def test_a_foreign_object_is_refused_by_name(self, store):
        store.objects.put(f"documents/{NAME}/000000000001", b"{}" * 50)
        with pytest.raises(InputError, match=NAME):
            store.get(NAME)

    def test_a_prefix_beside_it_is_another_registry(self, store, server, url):
        store.compare_and_set(NAME, None, b"one")
        assert open_registry(f"{url}/inner").store.names("") == []
        assert open_registry(f"s3://{server.bucket}").store.get(NAME) is None

    @pytest.mark.usefixtures("url")
    def test_a_bucket_that_is_not_there_is_unavailable(self):
        with pytest.raises(UnavailableError, match="its bucket does not exist"):
            open_registry("s3://no-such-bucket/registry")

    def test_a_server_that_ignores_conditions_is_refused_and_nothing_is_left(self, url):
        opened = open_store(url, create=True)
        opened.objects = Faulty(opened.objects, ignores=("mode",), fails=False)
        with pytest.raises(UsageError, match="updates would be lost"):
            opened.open(create=True)
        assert [meta for page in opened.objects.list() for meta in page] == []


def test_a_server_that_does_not_answer_is_unavailable(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "key")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    with pytest.raises(UnavailableError, match="s3://bucket/registry"):
        open_registry("s3://bucket/registry")
