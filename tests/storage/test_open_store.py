import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from urllib.parse import quote

import pytest

from serfer.core.errors import StoreError, UsageError
from serfer.storage import Store, open_store, redact
from serfer.storage.file.store import FileStore
from serfer.storage.memory import MemoryStore


def test_memory_is_private_unless_named():
    with open_store("memory://") as one, open_store("memory://") as two:
        one.put("k", b"x", 60)
        assert two.exists(["k"]) == [False]
    with open_store("memory://shared") as one:
        one.put("k", b"x", 60)
    with open_store("memory://shared") as two, open_store("memory://other") as three:
        assert two.get("k") == b"x"
        assert three.exists(["k"]) == [False]


def test_file(tmp_path):
    with open_store(f"file://{tmp_path}/deep/er") as store:
        assert isinstance(store, FileStore)
        store.put("k", b"x", 60)
    assert (tmp_path / "deep" / "er" / "k=").read_bytes() == b"x"


@pytest.mark.parametrize("url", ["file://relative/path", "file://", "file:/x"])
def test_file_urls_must_be_absolute(url):
    with pytest.raises(UsageError):
        open_store(url)


@pytest.mark.parametrize("url", ["s4://bucket/prefix", "redis+tls://:hush@host", "memory", "", "bogus://:hush@h"])
def test_unknown_scheme_lists_the_known(url):
    with pytest.raises(UsageError, match=r"file://, memory://, redis://, redis[+]cluster://, rediss://") as caught:
        open_store(url)
    assert "hush" not in str(caught.value)


def test_a_store_of_the_users_own(monkeypatch):
    plugged_in = EntryPoints([EntryPoint("mine", "tests.storage.test_open_store:open_mine", "serfer.stores")])
    monkeypatch.setattr("serfer.plug_ins.entry_points", lambda group: plugged_in.select(group=group))
    assert open_store("mine://somewhere").url == "mine://somewhere"
    with pytest.raises(UsageError, match="mine://"):
        open_store("yours://")


def test_a_store_of_the_users_own_that_cannot_be_loaded_is_named(monkeypatch):
    plugged_in = EntryPoints([EntryPoint("mine", "my_store:open_mine", "serfer.stores")])
    monkeypatch.setattr("serfer.plug_ins.entry_points", lambda group: plugged_in.select(group=group))
    with pytest.raises(UsageError, match=r"mine .* cannot be loaded from 'my_store:open_mine': .*No module"):
        open_store("mine://somewhere")


def test_a_store_without_coordination_refuses_when_it_is_used():
    class Old(Store):
        pass

    coordination = Old().coordination()
    for ask in (
        lambda: coordination.compare_and_set("k", None, b"x", 60),
        lambda: coordination.get("k"),
        lambda: coordination.delete(["k"]),
    ):
        with pytest.raises(StoreError, match=r"Old has no compare-and-set, .*'k'.*--store"):
            ask()


class Mine(MemoryStore):
    pass


def open_mine(url):
    store = Mine()
    store.url = url
    return store


def test_only_the_backend_in_use_is_imported():
    code = (
        "import sys; from serfer import storage; storage.open_store('memory://');"
        "print('serfer.storage.redis' in sys.modules, 'fcntl' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False False\n"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:hush@host:1/0", "redis://:***@host:1/0"),
        ("rediss://me:hush@host", "rediss://me:***@host"),
        ("redis://:hu@sh/h:ush@host:1/0", "redis://:***@host:1/0"),
        ("redis://host/0?password=hush&db=1", "redis://host/0?password=***&db=1"),
        ("redis://host:1/0", "redis://host:1/0"),
        ("file:///a/b@c", "file:///a/b@c"),
        ("memory://", "memory://"),
        (
            "delay://?store=redis%3A%2F%2F%3Ahush%40host%3A1%2F0&put_ms=2",
            "delay://?store=redis%3A%2F%2F%3A***%40host%3A1%2F0&put_ms=2",
        ),
        (
            "fail://?fail=0.1&store=redis%3a%2f%2fme%3ahu%2540sh%40host",
            "fail://?fail=0.1&store=redis%3A%2F%2Fme%3A***%40host",
        ),
        ("delay://?store=redis://:hush@host:1", "delay://?store=redis%3A***%40host%3A1"),
        ("redis://:hu?store=sh@host", "redis://:***@host"),
        (
            f"delay://?store={quote('fail://?store=' + quote('redis://h?password=hush', safe=''), safe='')}",
            f"delay://?store={quote('fail://?store=' + quote('redis://h?password=***', safe='*'), safe='*')}",
        ),
    ],
)
def test_redact(url, shown):
    assert redact(url) == shown
