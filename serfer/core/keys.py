"""Names of what a query leaves in the store; every key belongs to one query."""

from __future__ import annotations

import re

from serfer.core.errors import InputError

INPUT_STAGE = -1
_QUERY = re.compile(r"[0-9a-f]{32}")


def check_query_id(query: str) -> str:
    """Return `query` if it is a query's id (32 hex digits), so that nothing else ever becomes part of a key."""
    if not _QUERY.fullmatch(query):
        raise InputError("a query id must be 32 hex digits")
    return query


def output_key(query: str, stage: int, tile: int) -> str:
    """Return the key of a tile's output."""
    return f"serfer:{query}:{stage}:{tile}"


def input_key(query: str, tile: int) -> str:
    """Return the key of a first-stage tile's crop, for crops that are too large to ride along."""
    return output_key(query, INPUT_STAGE, tile)
