"""Compare-and-set on a Redis server or cluster, by a script of one key."""

from serfer.storage.redis.node import Commands, milliseconds
from serfer.storage.store import Store, check_keys
from serfer.storage.versioned_values import VERSION_BYTES, PrefixedVersions

# A value that begins with the new version was written by this very call, whose reply was lost: so it may be sent again.
_COMPARE_AND_SET = f"""
local there = redis.call('GETRANGE', KEYS[1], 0, {VERSION_BYTES - 1})
if there ~= ARGV[1] and there ~= string.sub(ARGV[2], 1, {VERSION_BYTES}) then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
"""


class RedisCoordination(PrefixedVersions):
    """Coordination over the connections of a store, which its `commands` go over."""

    def __init__(self, store: Store, commands: Commands) -> None:
        super().__init__(store)
        self._execute = commands.execute

    def _read(self, key: str) -> bytes | None:
        check_keys((key,))
        [value] = self._execute([("GET", key)])
        return None if value is None else bytes(value)

    def _write(self, key: str, expected: bytes, framed: bytes, ttl: float) -> bool:
        [written] = self._execute([("EVAL", _COMPARE_AND_SET, 1, key, expected, framed, milliseconds(ttl))])
        return bool(written)
