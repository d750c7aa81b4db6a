"""A store on a Redis Cluster (ElastiCache in cluster mode, ElastiCache Serverless, MemoryDB)."""

from binascii import crc_hqx
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Any, TypeAlias

from serfer.core.errors import SerferError, StoreUnavailableError
from serfer.storage.redis.errors import RedirectionError, ResponseError
from serfer.storage.redis.node import Command, RedisNode
from serfer.storage.redis.store import RedisCommands
from serfer.storage.redis.url import cluster_options
from serfer.storage.store import check_keys

SLOTS = 16_384
_HOPS = 8  # nodes to which a command is sent, one after the other, while its slot moves
_KEY_AT = {"EVAL": 3, "XREAD": -2}  # behind a script and the number of its keys; before its cursor

Address: TypeAlias = tuple[str, int]


@dataclass(frozen=True)
class _Hop:
    """A command, the `index`-th of a batch, and the node it goes to where that is not the owner of its slot."""

    index: int
    command: Command
    slot: int
    redirected: Address | None = None
    asking: bool = False

    @property
    def commands(self) -> list[Command]:
        return [("ASKING",), self.command] if self.asking else [self.command]


class RedisClusterStore(RedisCommands):
    """Values on the nodes of a cluster; a method is one round trip of one pipeline to each node that holds its keys.

    A hash tag, `{...}` in a key, keeps keys on one node.
    """

    def __init__(self, url: str) -> None:
        seeds, options = cluster_options(url)
        super().__init__(partial(RedisCluster, seeds, options), options["socket_timeout"])

    def delete(self, keys: Sequence[str]) -> None:
        check_keys(keys)
        self.execute([("DEL", key) for key in keys])  # apart, for while a slot moves its keys may be on two nodes


class RedisCluster:
    """Sends commands to the nodes that have their keys.

    Which node has which slot is looked up when first needed and again when a node says that a slot has moved or does
    not answer. Replicas are not read: they may lag behind. `unbounded` is a RedisNode's.
    """

    def __init__(self, seeds: Sequence[Address], options: dict[str, Any], *, unbounded: bool = False) -> None:
        self._seeds, self._options, self._unbounded = seeds, options, unbounded
        self._lock = Lock()
        self._nodes: dict[Address, RedisNode] = {}
        self._owners: Sequence[Address | None] = ()

    def close(self) -> None:
        for node in tuple(self._nodes.values()):
            node.close()

    def execute(self, commands: Sequence[Command]) -> list[Any]:
        replies: dict[int, Any] = {}
        hops = [_Hop(index, command, key_slot(_key(command))) for index, command in enumerate(commands)]
        for _ in range(_HOPS):
            if not hops:
                return [replies[index] for index in range(len(commands))]
            hops = self._send_round(hops, replies)
        raise StoreUnavailableError(f"the Redis cluster at {self._seed} redirects without end: try again later")

    def _send_round(self, hops: Sequence[_Hop], replies: dict[int, Any]) -> list[_Hop]:
        owners = self._owners or self._look_up(())
        batches: dict[Address, list[_Hop]] = defaultdict(list)
        for hop in hops:
            batches[hop.redirected or self._owner(owners, hop.slot)].append(hop)
        try:
            answers = self._send_and_read(batches)
        except StoreUnavailableError:
            if not self._has_moved(hops, owners, batches):
                raise
            return [replace(hop, redirected=None, asking=False) for hop in hops]
        again = []
        for address, hop, answer in answers:
            if isinstance(answer, ResponseError):
                again.append(self._next(hop, answer, address, owners))
            else:
                replies[hop.index] = answer
        return again

    def _send_and_read(self, batches: Mapping[Address, Sequence[_Hop]]) -> list[tuple[Address, _Hop, Any]]:
        with ExitStack() as stack:
            reads = []
            for address in sorted(batches):
                commands = [command for hop in batches[address] for command in hop.commands]
                reads.append((address, stack.enter_context(self._node(address).sent(commands))))
            answered = [(address, iter(read())) for address, read in reads]
        return [
            (address, hop, [next(answers) for _ in hop.commands][-1])
            for address, answers in answered
            for hop in batches[address]
        ]

    def _next(self, hop: _Hop, refusal: ResponseError, address: Address, owners: Sequence[Address | None]) -> _Hop:
        """MOVED: the slot belongs to another node now; ASK: it is moving there, and this key has gone ahead."""
        if not isinstance(refusal, RedirectionError):
            raise self._node(address).refusal(refusal, hop.command)
        target = (refusal.host or address[0], refusal.port)
        if refusal.moved:
            with suppress(SerferError):  # the command finds its way without
                self._look_up(owners, first=[target])
        return replace(hop, redirected=target, asking=not refusal.moved)

    def _has_moved(self, hops: Iterable[_Hop], owners: Sequence[Address | None], failed: Iterable[Address]) -> bool:
        failed = set(failed)
        try:
            now = self._look_up(owners, first=[address for address in self._addresses() if address not in failed])
        except SerferError:
            return False
        return any(now[hop.slot] != owners[hop.slot] for hop in hops)

    def _look_up(self, seen: Sequence[Address | None], first: Iterable[Address] = ()) -> Sequence[Address | None]:
        with self._lock:
            if self._owners is not seen and self._owners:
                return self._owners
            for address in (order := list(dict.fromkeys([*first, *self._addresses()]))):
                try:
                    self._owners = _owners(self._node(address).execute([("CLUSTER", "SLOTS")])[0], address)
                    break
                except SerferError:
                    if address == order[-1]:
                        raise
            return self._owners

    def _owner(self, owners: Sequence[Address | None], slot: int) -> Address:
        owner = owners[slot]
        if owner is None:
            self._owners = ()  # another node may be about to take it
            raise StoreUnavailableError(
                f"no node of the Redis cluster at {self._seed} has slot {slot}: repair it, or name another with --store"
            )
        return owner

    def _node(self, address: Address) -> RedisNode:
        if address not in self._nodes:
            host, port = address
            options = {**self._options, "host": host, "port": port}
            node = RedisNode(options, kind=" (a node of a cluster)", unbounded=self._unbounded)
            self._nodes.setdefault(address, node)
        return self._nodes[address]

    def _addresses(self) -> list[Address]:
        return [*self._nodes, *self._seeds]

    @property
    def _seed(self) -> str:
        return "{}:{}".format(*self._seeds[0])


def key_slot(key: str) -> int:
    """Return a key's slot: CRC-16/XMODEM, of the first `{...}` in it that is not empty where it has one."""
    _, _, rest = key.partition("{")
    tag, closed, _ = rest.partition("}")
    return crc_hqx((tag if tag and closed else key).encode(), 0) % SLOTS


def _key(command: Command) -> str:
    key: str = command[_KEY_AT.get(command[0], 1)]
    return key


def _owners(reply: Any, address: Address) -> list[Address | None]:  # noqa: ANN401  what the network brings
    """Return each slot's primary from the reply to CLUSTER SLOTS: [first, last, [host, port, ...], replica...], ..."""
    owners: list[Address | None] = [None] * SLOTS
    try:
        for first, last, (host, port, *_), *_ in reply:
            owner = (host.decode() if host not in (None, b"", b"?") else address[0], int(port))
            for slot in range(max(first, 0), min(last + 1, len(owners))):
                owners[slot] = owner
    except (TypeError, ValueError, AttributeError):
        raise StoreUnavailableError(f"Redis at {address[0]}:{address[1]} does not say who owns which slot") from None
    return owners
