"""The registry's directory: the contract, processes at once, kills at any point, and what else may lie there."""

import os
import stat
import subprocess
import sys

import pytest

from serfer.core.errors import UnavailableError, UsageError
from serfer.registry.opening import open_registry
from serfer.registry.store import KEPT_VERSIONS
from tests.registry.store_contract import NAME, RegistryStoreContract

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
        part = root / "parts" / "left"
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

    def test_a_directory_of_something_else_is_refused_and_untouched(self, tmp_path):
        (tmp_path / "letter.txt").write_text("dear")
        with pytest.raises(UsageError, match="not a registry"):
            open_registry(str(tmp_path))
        assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]

    def test_who_makes_none_finds_none_and_leaves_nothing(self, root):
        with pytest.raises(UnavailableError, match="no registry"):
            open_registry(str(root), create=False)
        assert not root.exists()

    def test_a_directory_that_is_a_file_is_unavailable(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(UnavailableError, match="file"):
            open_registry(str(tmp_path / "file"))

    def test_a_registry_that_has_vanished_is_unavailable(self, store, root, tmp_path):
        root.rename(tmp_path / "elsewhere")
        (tmp_path / "a").write_bytes(b"a")
        calls = [lambda: store.compare_and_set(NAME, None, b"x"), lambda: store.put_artefact(tmp_path / "a")]
        for call in [
            *calls,
            lambda: store.get(NAME),
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
            store.get(NAME)
