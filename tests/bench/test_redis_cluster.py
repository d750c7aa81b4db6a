from pathlib import Path

import pytest

from serfer.core.errors import UnavailableError
from serfer.storage import open_store
from serfer_bench.core import redis_cluster
from serfer_bench.core.redis_cluster import RedisCluster
from tests.support.processes import said_before_kill

PARENT = """
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
        keys = [f"k{number}" for number in range(40)]
        for key in keys:
            store.put(key, b"x", 60)
        sizes = []
        for number in range(2):
            with cluster.client(number) as client:
                sizes.append(client.dbsize())
        assert sum(sizes) == 40
        assert all(sizes)
        pids = [node.pid for node in cluster.nodes]
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert list(tmp_path.iterdir()) == []
    cluster.stop()


@pytest.mark.killed
def test_nodes_die_with_a_parent_that_is_killed(tmp_path):
    nodes = said_before_kill(PARENT, TMPDIR=str(tmp_path))  # nobody is left to remove the folder
    assert len(nodes) == 2


def test_a_cluster_that_fails_to_form_is_reported_and_cleaned_up(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(redis_cluster, "_READY_S", 0.0)
    monkeypatch.setattr(redis_cluster, "_is_whole", lambda *_: False)
    with pytest.raises(UnavailableError, match="did not come together within 0 s"):
        RedisCluster(nodes=2)
    assert list(tmp_path.iterdir()) == []
