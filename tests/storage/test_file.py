import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from serfer.core.errors import StoreUnavailableError, UsageError
from serfer.storage.contract import CoordinationContract, ExchangeContract, StoreContract
from serfer.storage.exchange import START, Message
from serfer.storage.file.store import FileStore
from tests.storage.file_process import SHARED, claimed


@contextmanager
def processes(root, work):
    """Start a process for each (role, rounds); the body calls what it gets to let all go, and gets codes and errors."""
    script = str(Path(__file__).with_name("file_process.py"))
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, script, str(root), role, str(number), str(rounds)],
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            for number, (role, rounds) in enumerate(work)
        ]
        for process in started:
            assert process.stdout.readline() == "ready\n"

        def go():
            for process in started:
                process.stdin.write("go\n")
                process.stdin.flush()
            return [(process.returncode, errors) for process in started for _, errors in [process.communicate()]]

        yield go


def names(folder):
    return sorted(path.name for path in folder.iterdir())


class RawFiles:
    """The files of a store, named as its module describes."""

    def __init__(self, root, clock):
        self.root, self.clock = root, clock

    def path(self, key):
        name = key.replace("/", "%")
        parts = [name[i : i + 200] for i in range(0, len(name), 200)]
        return self.root.joinpath(*(f"{part}+" for part in parts[:-1]), f"{parts[-1]}=")

    def get(self, key):
        return self.path(key).read_bytes(), self.path(key).stat().st_mtime - self.clock()

    def put(self, key, value, ttl):
        path = self.path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(value)
        os.utime(path, (self.clock() + ttl,) * 2)


class TestFile(StoreContract, CoordinationContract, ExchangeContract):
    @pytest.fixture
    def store(self, tmp_path, clock):
        with FileStore(tmp_path / "store", clock) as store:
            yield store

    @pytest.fixture
    def url(self, tmp_path):
        return f"file://{tmp_path}/store"

    @pytest.fixture
    def raw(self, tmp_path, clock):
        return RawFiles(tmp_path / "store", clock)

    def test_sweep_removes_the_expired_and_keeps_the_rest(self, store, clock, tmp_path):
        store.put("old/" + "x" * 300, b"x", 1)
        store.put("old", b"x", 1)
        store.put("kept", b"x", 1000)
        clock.ahead += 40
        store.put("new", b"x", 60)
        assert names(tmp_path / "store") == ["#lock", "kept=", "new="]

    @pytest.mark.who_may
    def test_only_its_owner_may_read_it(self, store, exchange, tmp_path):
        store.put("x" * 300, b"x", 60)
        exchange.send([Message("y" * 300, b"x")], 60)
        modes = {path.is_dir(): path.stat().st_mode & 0o777 for path in [*(tmp_path / "store").rglob("*")]}
        assert modes == {False: 0o600, True: 0o700}
        assert (tmp_path / "store").stat().st_mode & 0o777 == 0o700
        (tmp_path / "given").mkdir(0o750)
        FileStore(tmp_path / "given")
        assert (tmp_path / "given").stat().st_mode & 0o777 == 0o750

    @pytest.mark.killed
    def test_sweep_removes_a_killed_writers_files(self, clock, tmp_path):
        FileStore(tmp_path, clock)
        (tmp_path / "#0123456789abcdef").write_bytes(b"half a val")
        FileStore(tmp_path, clock)
        assert (tmp_path / "#0123456789abcdef").exists()
        clock.ahead += 3601
        FileStore(tmp_path, clock)
        assert not (tmp_path / "#0123456789abcdef").exists()

    def test_sweep_removes_expired_inboxes_and_keeps_the_rest(self, store, exchange, clock, tmp_path):
        exchange.send([Message("old/" + "x" * 300, b"x"), Message("old", b"x")], 1)
        exchange.send([Message("kept", b"x")], 1000)
        clock.ahead += 40
        exchange.send([Message("new", b"x")], 1)
        assert names(tmp_path / "store" / "inbox+") == ["kept==", "new=="]
        clock.ahead += 1000
        store.put("new", b"x", 60)
        assert names(tmp_path / "store") == ["#lock", "new="]

    @pytest.mark.killed
    @pytest.mark.parametrize("left", [b"", b"half a head", bytes(40)])
    def test_a_first_send_that_was_killed_is_no_message(self, exchange, tmp_path, left):
        (tmp_path / "store" / "inbox+").mkdir()
        (tmp_path / "store" / "inbox+" / "k==").write_bytes(left)
        assert exchange.receive("k", START, 0) == []
        exchange.send([Message("k", b"x")], 60)
        assert [message.value for message in exchange.receive("k", START, 0)] == [b"x"]

    @pytest.mark.parametrize("value", [b"short", bytes(5000)])
    def test_a_torn_append_is_never_read_and_the_next_overwrites_it(self, exchange, tmp_path, value):
        exchange.send([Message("k", b"first")], 60)
        inbox = tmp_path / "store" / "inbox+" / "k=="
        whole = inbox.read_bytes()
        exchange.send([Message("k", value)], 60)
        inbox.write_bytes(whole + inbox.read_bytes()[len(whole) : -1])  # killed before the head was written
        assert [message.value for message in exchange.receive("k", START, 0)] == [b"first"]
        exchange.send([Message("k", b"second")], 60)
        assert [message.value for message in exchange.receive("k", START, 0)] == [b"first", b"second"]

    @pytest.mark.parametrize("damage", [lambda data: data[:-3], lambda data: data[:-1] + b"?", lambda data: data[:-10]])
    def test_a_message_that_does_not_fit_its_check_is_not_there_yet(self, exchange, tmp_path, damage):
        exchange.send([Message("k", b"first"), Message("k", b"second")], 60)
        inbox = tmp_path / "store" / "inbox+" / "k=="
        whole = inbox.read_bytes()
        inbox.write_bytes(damage(whole))
        [first] = exchange.receive("k", START, 0)
        assert exchange.receive("k", first.cursor, 0.01) == []
        inbox.write_bytes(whole)
        assert [message.value for message in exchange.receive("k", first.cursor, 0)] == [b"second"]

    def test_a_wait_whose_directory_is_swept_goes_on(self, store, exchange, clock):
        exchange.send([Message("k", b"old")], 1)
        with ThreadPoolExecutor(1) as thread:
            clock.ahead += 2
            waiting = thread.submit(exchange.receive, "k", START, 30)
            for _ in range(5):
                time.sleep(0.02)  # until it waits
                store._directory.sweep()
            exchange.send([Message("k", b"new")], 60)
            assert [message.value for message in waiting.result()] == [b"new"]

    def test_without_inotify_a_wait_looks_now_and_then(self, exchange, monkeypatch):
        monkeypatch.setattr("serfer.storage.file.exchange.ctypes.CDLL", lambda *_, **__: None)
        with ThreadPoolExecutor(1) as thread:
            assert exchange.receive("k", START, 0.05) == []
            waiting = thread.submit(exchange.receive, "k", START, 30)
            time.sleep(0.05)  # until it waits
            exchange.send([Message("k", b"x")], 60)
            assert [message.value for message in waiting.result()] == [b"x"]

    def test_waits_open_no_more_files_than_there_are_at_once_and_closing_closes_them(self, exchange):
        before = len(names(Path("/proc/self/fd")))
        for _ in range(3):
            assert exchange.receive("k", START, 0.01) == []
        assert len(names(Path("/proc/self/fd"))) == before + 1
        exchange.close()
        assert len(names(Path("/proc/self/fd"))) == before
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(exchange.receive, "k", START, 0.2)
            time.sleep(0.1)  # until it waits
            exchange.close()
            assert waiting.result() == []
        assert len(names(Path("/proc/self/fd"))) == before

    def test_many_processes_send_receive_and_sweep(self, tmp_path):
        work = [("tell", 200)] * 3 + [("listen", 600)] * 3 + [("sweep", 100)]
        with processes(tmp_path / "store", work) as all_ready:
            assert all_ready() == [(0, "")] * len(work)

    @pytest.mark.two_at_once
    def test_many_processes_overwrite_read_delete_and_sweep(self, tmp_path):
        work = [("churn", 400)] * 3 + [("keep", 100)] * 2 + [("sweep", 300)] * 2
        with processes(tmp_path / "store", work) as all_ready:
            outcomes = all_ready()
        assert outcomes == [(0, "")] * len(work)
        with FileStore(tmp_path / "store") as store:
            store.delete(SHARED)
        assert not [name for name in names(tmp_path / "store") if re.fullmatch("#[0-9a-f]{16}", name)]

    def test_of_many_processes_one_sets_a_key_also_in_place_of_an_expired_value(self, tmp_path):
        with FileStore(tmp_path / "store", lambda: time.time() - 100) as past:
            for turn in range(0, 200, 3):
                past.coordination().compare_and_set(claimed(turn), None, b"old", 50)
        with processes(tmp_path / "store", [("claim", 200)] * 4 + [("sweep", 100)]) as all_ready:
            assert all_ready() == [(0, "")] * 5
        with FileStore(tmp_path / "store") as store:
            for turn in range(200):
                won = [b"%d" % number for number in range(4) if store.exists([f"won:{number}:{turn}"]) == [True]]
                assert won == [store.coordination().get(claimed(turn)).value]

    def test_a_version_that_is_not_written_leaves_nothing(self, store, tmp_path):
        assert store.coordination().compare_and_set("k", None, b"x", 60)
        assert not store.coordination().compare_and_set("k", None, b"y", 60)
        assert names(tmp_path / "store") == ["#lock", "k="]

    @pytest.mark.two_at_once
    def test_many_processes_open_a_new_directory_at_once(self, tmp_path):
        with processes(tmp_path, [("start", 60)] * 4) as all_ready:
            assert all_ready() == [(0, "")] * 4
        assert names(tmp_path / "new59") == ["#lock", "k0=", "k1=", "k2=", "k3="]

    def test_directory_that_cannot_be_made(self, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(StoreUnavailableError, match=r"file/store"):
            FileStore(tmp_path / "file" / "store")

    def test_directory_gone(self, store, tmp_path):
        (tmp_path / "store" / "#lock").unlink()
        (tmp_path / "store").rmdir()
        with pytest.raises(StoreUnavailableError, match="No such file"):
            store.put("k", b"x", 1)
        with pytest.raises(StoreUnavailableError, match="No such file"):
            store.exchange().send([Message("k", b"x")], 60)
        with pytest.raises(StoreUnavailableError, match="No such file"):
            store.exchange().receive("k", START, 0.1)


def test_a_directory_with_other_files_is_refused_and_left_alone(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "thesis.txt").write_text("years of work")
    os.utime(tmp_path / "thesis.txt", (1, 1))
    with pytest.raises(UsageError, match="not empty"):
        FileStore(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"empty", "thesis.txt"}


def test_a_sweep_removes_nothing_but_the_stores_own_files(tmp_path):
    FileStore(tmp_path)
    foreign = [tmp_path / name for name in ("thesis.txt", "sub/photo.jpg", "#notes", "sub/a=")]
    for path in foreign:
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
        os.utime(path, (1, 1))
    (tmp_path / "empty").mkdir()
    FileStore(tmp_path)
    assert all(path.exists() for path in foreign)
    assert (tmp_path / "empty").is_dir()
