"""Names of what a query leaves in the store, and counts of what it asks of it; a key belongs to one query or result.

    serfer:QUERY:STAGE:TILE          what a tile wrote; stage -1 is the query's input
    serfer:QUERY:STAGE:TILE:in       the inbox of member TILE of the gang that begins with STAGE: borders of its tiles
    serfer:QUERY:STAGE:TILE:rN       the result of the N-th event of a task (the poll driver's)

    serfer:result:OWNER:ID/N/c/...   the chunk of output N that a tile of the last stage wrote for its owner to keep
    serfer:result:OWNER:ID/zarr.json written last, it makes a result whole: without it there is none

Others have prefixes of their own: `serfer:cached:` answers that are given again, `serfer:later:` asynchronous ones.

A query's id in braces is a hash tag: a Redis Cluster keeps all keys of such a query on one slot, so that what a task
reads is one round trip. The keys of a large query are better spread. Who reads a result names an owner and an id,
never a key: the id of another owner's result leads nowhere.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import urandom
from typing import TYPE_CHECKING

from serfer.core.errors import InputError

if TYPE_CHECKING:
    from serfer.core.zarr import ChunkedArray

INPUT_STAGE = -1
NO_QUERY = "0" * 32
"""The id of no query: its keys are requested where only the store is to be reached."""
_QUERY = re.compile(r"[0-9a-f]{32}|\{[0-9a-f]{32}\}")
LOCAL_OWNER = "local"
"""The owner of results of a process that knows no API keys."""
RESULT_TTL_S = 86_400.0
"""The default lifetime of a result, in seconds."""
MOST_RESULT_TTL_S = 30 * 86_400.0
RESULT_MARGIN_S = 900.0
"""Seconds by which chunks outlive their result, so that a download that has begun can end."""
_OWNER = re.compile(r"[0-9a-f]{8,64}|local", re.ASCII)
_RESULT = re.compile(r"[0-9a-f]{32}", re.ASCII)
_OUTPUT = re.compile(rf"serfer:(?:{_QUERY.pattern}):(-1|[0-9]{{1,9}}):[0-9]{{1,9}}", re.ASCII)


def check_query_id(query: str) -> str:
    """Return `query` if it is a query's id, so that nothing else ever becomes part of a key."""
    if not _QUERY.fullmatch(query):
        raise InputError("a query id must be 32 hex digits, in braces or not")
    return query


def query_id(*, one_slot: bool) -> str:
    """Return the id of another query, 32 random hex digits; `one_slot` keeps its keys together in a Redis Cluster."""
    return f"{{{urandom(16).hex()}}}" if one_slot else urandom(16).hex()


def output_key(query: str, stage: int, tile: int) -> str:
    return f"serfer:{query}:{stage}:{tile}"


def stage_of(key: str) -> int | None:
    """Return the stage of the tile that writes what lies under a key, INPUT_STAGE for a crop, None for all else."""
    match = _OUTPUT.fullmatch(key)
    return int(match[1]) if match else None


def input_key(query: str, tile: int) -> str:
    """Return the key of a first-stage tile's crop, if that is too large for a payload."""
    return output_key(query, INPUT_STAGE, tile)


def inbox_key(query: str, stage: int, tile: int) -> str:
    return f"{output_key(query, stage, tile)}:in"


def query_keys(query: str, tiles: Sequence[int], stages: Iterable[int], crops: Iterable[int]) -> list[str]:
    """Return the keys of a query: of the `crops` of these first-stage tiles, and of what all tiles of `stages` wrote.

    Stage k has `tiles[k]` tiles.
    """
    written = (output_key(query, stage, tile) for stage in stages for tile in range(tiles[stage]))
    return [*(input_key(query, tile) for tile in crops), *written]


def reply_key(query: str, stage: int, tile: int, number: int) -> str:
    """Return the key under which the worker of a task's `number`-th event puts its result."""
    return f"{output_key(query, stage, tile)}:r{number}"


@dataclass(frozen=True)
class ResultPlace:
    """Where a query's answer is to lie, and for how many seconds; raises InputError for what cannot be a place."""

    owner: str
    id: str
    ttl: float = RESULT_TTL_S

    def __post_init__(self) -> None:
        if not _OWNER.fullmatch(self.owner):
            raise InputError('a result\'s owner must be 8 to 64 hex digits, or "local"')
        if not _RESULT.fullmatch(self.id):
            raise InputError("a result's id must be 32 hex digits")
        if not 0 < self.ttl <= MOST_RESULT_TTL_S:
            raise InputError(f"a result's lifetime must be above 0 and at most {MOST_RESULT_TTL_S:g} seconds")

    @property
    def manifest_key(self) -> str:
        return self.key("zarr.json")

    @property
    def chunks_ttl(self) -> float:
        return self.ttl + RESULT_MARGIN_S

    def key(self, path: str) -> str:
        """Return the key of what lies at `path` in its group of arrays."""
        return f"serfer:result:{self.owner}:{self.id}/{path}"

    def keys(self, outputs: Sequence[ChunkedArray]) -> list[str]:
        """Return all its keys, the manifest's first: what is deleted in this order leaves nothing that looks whole."""
        chunks = (f"{number}/{chunk.path}" for number, array in enumerate(outputs) for chunk in array.chunks)
        return [self.manifest_key, *map(self.key, chunks)]


NO_RESULT = ResultPlace(LOCAL_OWNER, "0" * 32)
"""No result's place: its keys are requested where only the store is to be reached."""


@dataclass(frozen=True)
class StoreCounts:
    """Bytes moved and operations that succeeded: `gets` counts ranges read, `exists` keys asked for.

    A message sent counts as a put, one received as a range read.
    """

    bytes_put: int = 0
    bytes_get: int = 0
    puts: int = 0
    gets: int = 0
    exists: int = 0

    def __add__(self, other: StoreCounts) -> StoreCounts:
        return StoreCounts(*map(operator.add, vars(self).values(), vars(other).values()))

    def __sub__(self, other: StoreCounts) -> StoreCounts:
        return StoreCounts(*map(operator.sub, vars(self).values(), vars(other).values()))
