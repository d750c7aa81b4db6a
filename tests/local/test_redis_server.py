import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from serfer.core.errors import UnavailableError
from serfer.local import die_with_parent
from serfer.local import server as module
from serfer.local.servers.redis import RedisServer
from serfer.storage import open_store
from tests.support.processes import check_gone, said_before_kill, use_temporary_folder, wait_for_end

PARENT = """
import sys
from serfer.local.servers.redis import RedisServer
server = RedisServer()
print(server.pid, flush=True)
sys.stdin.read()
"""


def test_serves_and_leaves_nothing_behind(tmp_path, monkeypatch):
    use_temporary_folder(monkeypatch, tmp_path)
    with RedisServer() as server, open_store(server.url) as store:
        store.put("k", b"x", 60)
        assert store.get("k") == b"x"
        process = os.pidfd_open(server.pid)
        pid = server.pid
    wait_for_end(process)
    check_gone(pid, tmp_path)
    server.stop()


def test_a_server_that_is_started_again_is_found_at_its_old_url_empty():
    with RedisServer() as server, open_store(server.url) as store:
        store.put("k", b"x", 60)
        server.stop()
        password = server.url.removeprefix("redis://:").partition("@")[0]
        with RedisServer(server.port, password) as again:
            assert again.url == server.url
            store.put("other", b"y", 60)
            assert store.exists(["k", "other"]) == [False, True]


def test_keeps_nothing_on_disk_and_hides_its_password():
    with RedisServer() as server, open_store(server.url) as store:
        settings = [store.execute([("CONFIG", "GET", name)])[0][1] for name in ("save", "appendonly", "maxmemory")]
        assert settings == [b"", b"no", b"0"]
        password = server.url.removeprefix("redis://:").partition("@")[0]
        assert password not in Path(f"/proc/{server.pid}/cmdline").read_text()
        assert password not in Path(f"/proc/{server.pid}/environ").read_text()
        assert password not in repr(server)


@pytest.mark.killed
def test_the_server_ignores_the_terminals_interrupt():
    with RedisServer() as server:
        assert os.getsid(server.pid) == server.pid != os.getsid(0)


def test_listens_on_loopback_only_and_wants_its_password():
    with RedisServer() as server, socket.create_connection(("127.0.0.1", server.port), timeout=5) as stranger:
        stranger.sendall(b"PING\r\n")
        assert stranger.recv(100).startswith(b"-NOAUTH")


@pytest.mark.killed
def test_dies_with_a_parent_that_is_killed():
    said_before_kill(PARENT)


def test_port_that_is_taken_is_named_or_another_tried():
    with RedisServer() as first:
        with pytest.raises(UnavailableError, match=f"port {first.port} is taken"):
            RedisServer(first.port)
        port = first.port
    with RedisServer(port) as again:
        assert again.port == port
    with pytest.raises(UnavailableError, match="did not start"):
        RedisServer(port=70_000)


def test_another_port_is_tried_where_a_free_one_was_snatched(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as snatcher:
        ports = [snatcher.getsockname()[1], module.free_port()]
        monkeypatch.setattr(module, "free_port", iter(ports).__next__)
        with RedisServer() as server:
            assert server.port == ports[1]


@pytest.mark.killed
def test_the_helper_exits_if_its_parent_has_died():
    command = [sys.executable, "-I", "-S", die_with_parent.__file__, "1", "/bin/true"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert run.stderr == "parent 1 is gone\n"
