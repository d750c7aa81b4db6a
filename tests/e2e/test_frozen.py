"""Local environments that stand still between invocations, as Lambda's do, while servers close their connections."""

from urllib.parse import urlsplit

import numpy as np
import psutil
import pytest

import serfer
from serfer.core.errors import TaskFailedError
from serfer.core.exactness import difference
from serfer.local.servers.redis import RedisServer
from serfer.pipeline.reference import unsplit
from serfer.plan_directory import load_plan
from serfer.storage import open_store
from tests.e2e.conftest import PATIENCE, eventually
from tests.e2e.gangs import Invocations
from tests.e2e.small import batch, put_weights_in, split_small
from tests.storage.tls_front import Authority, TlsFront


@pytest.fixture
def server():
    with RedisServer() as server:
        yield server


@pytest.fixture(params=["redis", "rediss"])
def url(request, server, tmp_path):
    if request.param == "redis":
        yield server.url
        return
    authority = Authority(tmp_path / "authority")
    with TlsFront(server.port, authority.context("localhost")) as front:
        password = server.url.partition("://:")[2].partition("@")[0]
        yield f"rediss://:{password}@localhost:{front.port}?ssl_ca_certs={authority.file}"


def connections(store):
    [info] = store.execute([("INFO", "stats")])
    return int(info.partition(b"total_connections_received:")[2].split()[0])


def workers():
    return [each for each in psutil.Process().children() if "bootstrap.py" in " ".join(each.cmdline())]


def stand_still(processes):
    return all(each.status() == psutil.STATUS_STOPPED for each in processes)


def told(processes, url):
    """Return whether the server at a URL has closed all connections of some processes."""
    to_it = [
        one
        for each in processes
        for one in each.net_connections("tcp")
        if one.raddr and one.raddr.port == urlsplit(url).port
    ]
    return all(one.status == psutil.CONN_CLOSE_WAIT for one in to_it)


def test_connections_that_are_closed_meanwhile_cost_one_reconnect_each_and_no_task(lean, settings, server, url):
    frozen = settings.model_copy(update={"local_freeze": True})
    with open_store(server.url) as store, serfer.open(lean, store=url, workers="local", settings=frozen) as pipeline:
        expected = pipeline.run(batch())
        started = workers()
        assert len(started) == 3
        eventually(lambda: stand_still(started), "all environments stand still")
        killed = store.execute([("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")])[0]
        eventually(lambda: told(started, url), "the environments' connections are closed, through TLS too", every=0.1)
        before = connections(store)
        assert np.array_equal(pipeline.run(batch()), expected)
        report = pipeline.last_report
        assert (report.retries, report.hedges, [stage.cold for stage in report.stages]) == (0, 0, [0, 0])
        assert 0 < connections(store) - before <= killed


@pytest.fixture(scope="module")
def fetching(tmp_path_factory):
    directory = split_small(tmp_path_factory.mktemp("fetching"), grids=[(1, 1)])
    put_weights_in(directory, "fetched")
    return directory


def killed_while_it_starts(directory, settings, invocations, bytes_per_s=20_000.0):
    """Run a query whose first environment is killed before it has its weights, which come slowly; return its result."""
    slow = settings.model_copy(update={"local_freeze": True, "local_fetch_rate": bytes_per_s})
    with serfer.open(directory, workers="local", settings=slow) as pipeline:
        future = pipeline.submit(batch())
        eventually(lambda: invocations.kill(load_plan(directory).function(0, 0)), "its environment starts")
        return future.result(PATIENCE)


@pytest.mark.killed
def test_a_killed_worker_with_slow_weights_starts_again_in_its_functions_own_time(fetching, settings, monkeypatch):
    result = killed_while_it_starts(fetching, settings, Invocations(monkeypatch))
    assert result.report.retries == 1
    assert difference(result.logits, unsplit(load_plan(fetching), fetching)(batch())).exact


def test_one_whose_function_has_not_the_time_to_start_again_says_so(fetching, settings, monkeypatch):
    monkeypatch.setattr("serfer.wiring.local.TASK_TIMEOUT_S", 1.0)
    with pytest.raises(TaskFailedError, match=r"timed out after 1\.00 seconds"):
        killed_while_it_starts(fetching, settings, Invocations(monkeypatch), bytes_per_s=2_000.0)  # for some 4 s
