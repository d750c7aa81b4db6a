"""The registry's directory: the contract, processes at once, kills at any point, and what else may lie there."""

import json
import os
import signal
import stat
import subprocess
import sys

import pytest

from serfer.core.errors import UnavailableError, UsageError
from serfer.registry.directory import KEPT_VERSIONS, DirectoryStore
from tests.registry.store_contract import NAME, RegistryStoreContract

_WRITER = """
import sys
from pathlib import Path
from serfer.registry.directory import DirectoryStore
store, name, source = DirectoryStore(Path(sys.argv[1])), sys.argv[2], Path(sys.argv[3])
print("ready", flush=True)
number = 0
while number < int(sys.argv[4]):
    document = store.read(name)
    content = (int(document.data.split()[0]) if document else 0) + 1
    if store.compare_and_set(name, document and document.version, b"%d " % content + b"x" * 100_000):
        number += 1
    source.write_bytes(b"%d" % content * 50_000)
    store.put_artefact(source)
"""

_LIMITED = """
import resource, signal, sys
from pathlib import Path
from serfer.core.errors import UnavailableError
from serfer.registry.directory import DirectoryStore
store = DirectoryStore(Path(sys.argv[1]))
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


class TestDirectoryStore(RegistryStoreContract):
    @pytest.fixture
    def root(self, tmp_path):
        return tmp_path / "made" / "registry"

    @pytest.fixture
    def open_store(self, root):
        self._root = root
        return lambda: DirectoryStore(root)

    def damage(self, digest, data):
        (self._root / "artefacts" / digest[:2] / digest).write_bytes(data)

    @pytest.mark.who_may
    def test_only_its_owner_may_read_it(self, store, root, tmp_path):
        store.compare_and_set(NAME, None, b"{}")
        (tmp_path / "a").write_bytes(b"a")
        store.put_artefact(tmp_path / "a")
        modes = {stat.S_IMODE(path.stat().st_mode) for path in [root, *root.rglob("*")]}
        assert modes == {0o600, 0o700}

    def test_a_bounded_number_of_versions_is_kept(self, store, root):
        version = None
        for number in range(KEPT_VERSIONS + 5):
            version = store.compare_and_set(NAME, version, b"%d" % number)
        kept = store.versions(NAME)
        assert len(kept) == KEPT_VERSIONS
        assert store.read_version(NAME, kept[-1].version) == b"5"
        assert len(list((root / "documents" / NAME).iterdir())) == KEPT_VERSIONS

    @pytest.mark.two_at_once
    def test_processes_at_once_lose_no_update(self, store, root, tmp_path):
        writers = [
            subprocess.Popen([sys.executable, "-c", _WRITER, root, NAME, tmp_path / f"{number}", "10"])
            for number in range(3)
        ]
        assert [writer.wait(300) for writer in writers] == [0, 0, 0]
        assert store.read(NAME).data.split()[0] == b"30"

    @pytest.mark.killed
    def test_a_writer_that_is_killed_leaves_whole_versions_and_artefacts(self, store, root, tmp_path):
        seen = 0
        for _ in range(6):
            command = [sys.executable, "-c", _WRITER, root, NAME, tmp_path / "source", "1000000"]
            writer = subprocess.Popen(command, stdout=subprocess.PIPE)
            assert writer.stdout.readline() == b"ready\n"
            while (document := store.read(NAME)) is None or int(document.data.split()[0]) < seen + 5:
                pass
            os.kill(writer.pid, signal.SIGKILL)
            writer.wait(60)
            writer.stdout.close()
            document = DirectoryStore(root).read(NAME)
            assert len(document.data.split()[1]) == 100_000
            seen = int(document.data.split()[0])
            for entry in store.artefacts():
                store.fetch_artefact(entry.digest, tmp_path / "back")
        assert store.compare_and_set(NAME, document.version, b"1 ok")

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
        assert store.read(NAME).data == b"before"
        assert list((root / "parts").iterdir()) == []
        assert list(store.artefacts()) == []
        store.put_artefact(tmp_path / "large")

    @pytest.mark.killed
    def test_what_killed_writers_left_is_removed_a_day_later(self, root):
        DirectoryStore(root)
        part = root / "parts" / "left"
        part.write_bytes(b"half")
        DirectoryStore(root)
        assert part.exists()
        os.utime(part, (1.0, 1.0))
        DirectoryStore(root)
        assert not part.exists()

    def test_a_document_that_was_deleted_a_month_ago_is_forgotten_and_others_are_not(self, store, root):
        for name in (NAME, "applications/pets.json", "applications/birds.json"):
            version = store.compare_and_set(name, None, b"one")
            assert store.delete(name, version)
        store.compare_and_set("applications/pets.json", None, b"again")
        for path in (root / "documents").rglob("*.gone"):
            if "birds" not in str(path):
                os.utime(path, (1.0, 1.0))
        again = DirectoryStore(root)
        assert again.versions(NAME) == []
        assert not (root / "documents" / NAME).exists()
        assert [len(again.versions(f"applications/{name}.json")) for name in ("pets", "birds")] == [2, 1]
        assert again.compare_and_set(NAME, None, b"new")

    def test_a_directory_of_something_else_is_refused_and_untouched(self, tmp_path):
        (tmp_path / "letter.txt").write_text("dear")
        with pytest.raises(UsageError, match="not a registry"):
            DirectoryStore(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]

    def test_who_makes_none_finds_none_and_leaves_nothing(self, root):
        with pytest.raises(UnavailableError, match="no registry"):
            DirectoryStore(root, create=False)
        assert not root.exists()

    def test_a_newer_registry_is_refused(self, store, root):  # noqa: ARG002 - the store makes it
        (root / "registry.json").write_text(json.dumps({"serfer registry": 2}))
        with pytest.raises(UsageError, match="update SerFer"):
            DirectoryStore(root)

    def test_a_directory_that_is_a_file_is_unavailable(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(UnavailableError, match="file"):
            DirectoryStore(tmp_path / "file")

    def test_a_registry_that_has_vanished_is_unavailable(self, store, root, tmp_path):
        root.rename(tmp_path / "elsewhere")
        (tmp_path / "a").write_bytes(b"a")
        calls = [lambda: store.compare_and_set(NAME, None, b"x"), lambda: store.put_artefact(tmp_path / "a")]
        for call in [
            *calls,
            lambda: store.read(NAME),
            lambda: store.names("applications/"),
            lambda: store.versions(NAME),
        ]:
            with pytest.raises(UnavailableError):
                call()

    def test_an_empty_directory_in_its_place_is_unavailable_and_no_registry_without_documents(self, store, root):
        store.compare_and_set(NAME, None, b"x")
        root.rename(root.with_name("unmounted"))
        root.mkdir()
        with pytest.raises(UnavailableError):
            store.read(NAME)
