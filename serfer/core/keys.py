"""Names of what a query leaves in the store; every key belongs to one query.

    serfer:QUERY:STAGE:TILE          what a tile wrote; stage -1 is the query's input
    serfer:QUERY:STAGE:TILE:in       the inbox of member TILE of the gang that begins with STAGE: borders of its tiles
    serfer:QUERY:STAGE:TILE:rN       the result of the N-th event of a task (the poll driver's)

A query's id in braces is a hash tag: a Redis Cluster keeps all keys of such a query on one slot, so that what a task
reads is one round trip. The keys of a large query are better spread.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from serfer.core.errors import InputError

INPUT_STAGE = -1
NO_QUERY = "0" * 32
"""The id of no query: its keys are requested where only the store is to be reached."""
_QUERY = re.compile(r"[0-9a-f]{32}|\{[0-9a-f]{32}\}")
_OUTPUT = re.compile(rf"serfer:(?:{_QUERY.pattern}):(-1|[0-9]{{1,9}}):[0-9]{{1,9}}", re.ASCII)


def check_query_id(query: str) -> str:
    """Return `query` if it is a query's id, so that nothing else ever becomes part of a key."""
    if not _QUERY.fullmatch(query):
        raise InputError("a query id must be 32 hex digits, in braces or not")
    return query


def query_id(digits: str, *, one_slot: bool) -> str:
    """Return the id of a query from 32 random hex digits; `one_slot` keeps its keys together in a Redis Cluster."""
    return check_query_id(f"{{{digits}}}" if one_slot else digits)


def output_key(query: str, stage: int, tile: int) -> str:
    """Return the key of a tile's output."""
    return f"serfer:{query}:{stage}:{tile}"


def stage_of(key: str) -> int | None:
    """Return the stage of the tile that writes what lies under a key, INPUT_STAGE for a crop, None for all else."""
    match = _OUTPUT.fullmatch(key)
    return int(match[1]) if match else None


def input_key(query: str, tile: int) -> str:
    """Return the key of a first-stage tile's crop, if that is too large for a payload."""
    return output_key(query, INPUT_STAGE, tile)


def inbox_key(query: str, stage: int, tile: int) -> str:
    """Return the key of the inbox of a member of the gang that begins with a stage."""
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
