"""One of several processes that use the same file store at once: `file_process.py ROOT ROLE NUMBER ROUNDS`."""

import random
import sys
from pathlib import Path

from serfer.core.errors import MissingKeyError
from serfer.storage import Range
from serfer.storage.exchange import START, Message
from serfer.storage.file.store import FileStore

SHARED = ["shared:0", "shared:1", "deep/" + "x" * 300, "deep/" + "y" * 450]


def churn(store, number, rounds):
    """Overwrite, read, look for and delete keys that others do the same to; every value read must be a whole one."""
    chance = random.Random(number)  # noqa: S311  a test must repeat
    for _ in range(rounds):
        key = chance.choice(SHARED)
        what = chance.randrange(4)
        if what == 0:
            store.put(key, bytes([number]) * chance.randrange(1, 200_000), chance.choice([0.0001, 60]))
        elif what == 1:
            check_whole(store, key)
        elif what == 2:
            assert store.exists([key]) in ([True], [False])
        else:
            store.delete([key])


def check_whole(store, key):
    try:
        value, head = store.get_many([Range(key), Range(key, 0, 1)])
    except MissingKeyError:
        return
    assert value
    assert len(set(value)) == 1, "a mixture of two values"
    assert head


def keep(store, number, rounds):
    """Let a value of a key of one's own expire, put the next one, and find it, while others sweep."""
    for key in (f"own:{number}", f"own/{number}/" + "z" * 300):
        for turn in range(rounds):
            store.put(key, b"old", 0.0001)
            while store.exists([key]) == [True]:
                pass
            value = b"%d" % turn
            store.put(key, value, 60)
            assert store.get(key) == value, "a put is lost"


def claim(store, number, rounds):
    """Set keys without a value that others set too, and note which were set."""
    for turn in range(rounds):
        if store.coordination().compare_and_set(claimed(turn), None, b"%d" % number, 60):
            store.put(f"won:{number}:{turn}", b"", 60)


def claimed(turn):
    return f"claimed/{turn}" if turn % 2 else f"claimed/{'z' * 300}/{turn}"


def tell(store, number, rounds):
    """Send messages of any size to an inbox that others send to as well, and to one that expires and is deleted."""
    chance, exchange = random.Random(number), store.exchange()  # noqa: S311  a test must repeat
    for turn in range(rounds):
        value = b"%d:%d:" % (number, turn) + b"x" * chance.randrange(50_000)
        exchange.send([Message("told", value), Message("passing", value)], 60)
        exchange.send([Message("passing", value)], 0.0001)
        if chance.randrange(4) == 0:
            store.delete(["passing"])


def listen(store, _number, rounds):
    """Receive every message of `tell` once, each process's in order; of the other inbox, only whole ones."""
    exchange, cursor, others, turns = store.exchange(), START, START, {}
    while sum(turns.values()) < rounds:
        for received in exchange.receive("told", cursor, 30):
            cursor = received.cursor
            number, turn, _ = received.value.split(b":")
            assert int(turn) == turns.get(number, 0), "lost, twice or out of order"
            turns[number] = int(turn) + 1
        for received in exchange.receive("passing", others, 0):
            others = received.cursor
            assert received.value.split(b":")[2].strip(b"x") == b""
    exchange.close()


def sweep(store, _number, rounds):
    """Remove what has expired, again and again, as a store that is opened does."""
    for _ in range(rounds):
        store._directory.sweep()


def start(root, number, rounds):
    """Open stores in new directories, at the same time as others."""
    for turn in range(rounds):
        with FileStore(root / f"new{turn}") as store:
            store.put(f"k{number}", b"x", 60)
            assert store.get(f"k{number}") == b"x"


def main(root, role, number, rounds):
    print("ready", flush=True)  # noqa: T201  the test waits for it
    sys.stdin.readline()
    if role == "start":
        start(Path(root), int(number), int(rounds))
    else:
        with FileStore(Path(root)) as store:
            {"churn": churn, "keep": keep, "claim": claim, "tell": tell, "listen": listen, "sweep": sweep}[role](
                store, int(number), int(rounds)
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
