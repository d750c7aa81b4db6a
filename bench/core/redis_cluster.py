"""A Redis Cluster on loopback: several of the embedded servers that share the slots, for tests and trials."""

import secrets
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from serfer.core.errors import SerferError, UnavailableError
from serfer.local.server import free_port
from serfer.local.servers.redis import RedisServer
from serfer.storage.redis.cluster import SLOTS
from serfer.storage.redis.store import RedisStore

_TRIES = 5
_READY_S = 20.0
_POLL_S = 0.02
_BUS = 10_000  # what a node adds to its port for the other nodes
_CONFIG = """\
cluster-enabled yes
cluster-config-file {folder}/nodes-{port}.conf
cluster-node-timeout {timeout_ms}
"""


class RedisCluster:
    """Primaries without replicas, each with an even share of the slots; all of it ends by `stop` or `with`.

    Nodes call one another dead after `node_timeout_s`. `announced` are the ports of something before the nodes, one
    for each, to which they send clients instead of to their own. Every node is a RedisServer, with all that it
    promises; the folder of their tables of nodes lies where temporary files do.

    Raises:
        UnavailableError: no server is installed, or a node or the cluster does not start.
    """

    def __init__(self, nodes: int = 3, *, node_timeout_s: float = 2.0, announced: Sequence[int] = ()) -> None:
        self._password = secrets.token_hex(16)
        self._timeout_ms = round(node_timeout_s * 1000)
        with ExitStack() as parts:
            folder = Path(parts.enter_context(tempfile.TemporaryDirectory(prefix="serfer-redis-cluster-")))
            self.nodes = tuple(
                parts.enter_context(self._start_node(folder, *announced[number : number + 1]))
                for number in range(nodes)
            )
            self._join()
            self._parts = parts.pop_all()

    @property
    def url(self) -> str:
        return f"redis+cluster://:{self._password}@{','.join(f'127.0.0.1:{node.port}' for node in self.nodes)}"

    def client(self, node: int) -> RedisStore:
        return RedisStore(self.nodes[node].url)

    def stop(self) -> None:
        self._parts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start_node(self, folder: Path, announced: int | None = None) -> RedisServer:
        for tries_left in reversed(range(_TRIES)):
            port = free_port(also=_BUS)
            config = _CONFIG.format(folder=folder, port=port, timeout_ms=self._timeout_ms)
            if announced:
                config += f"cluster-announce-port {announced}\ncluster-announce-bus-port {port + _BUS}\n"
            try:
                return RedisServer(port, password=self._password, config=config)
            except UnavailableError:  # the port, or that of the bus, was taken meanwhile
                if not tries_left:
                    raise
        raise AssertionError

    def _join(self) -> None:
        with ExitStack() as stack:
            clients = [stack.enter_context(self.client(number)) for number in range(len(self.nodes))]
            try:
                for number, client in enumerate(clients):
                    first, end = (SLOTS * n // len(clients) for n in (number, number + 1))
                    client.execute([("CLUSTER", "SET-CONFIG-EPOCH", number + 1)])
                    client.execute([("CLUSTER", "ADDSLOTS", *range(first, end))])
                clients[0].execute([("CLUSTER", "MEET", "127.0.0.1", node.port) for node in self.nodes[1:]])
                self._wait(clients)
            except SerferError as error:
                raise UnavailableError(f"the local Redis cluster did not come together: {error}") from error

    def _wait(self, clients: list[RedisStore]) -> None:
        deadline = time.monotonic() + _READY_S
        while not all(_is_whole(client, len(clients)) for client in clients):
            if time.monotonic() > deadline:
                raise UnavailableError(f"the local Redis cluster did not come together within {_READY_S:g} s")
            time.sleep(_POLL_S)


def _is_whole(client: RedisStore, nodes: int) -> bool:
    [info] = client.execute([("CLUSTER", "INFO")])
    return {b"cluster_state:ok", b"cluster_size:%d" % nodes} <= {*info.split()}
