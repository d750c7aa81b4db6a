"""A task of one of SerFer's lambda layers: read the tile that the driver cut, compute it, write it whole."""

from __future__ import annotations

from typing import Any

from serfer.core.errors import InputError
from serfer.core.keys import check_query_id
from serfer.storage.store import Store
from serfer_bench.study.baselines.handlers.environment import Environment
from serfer_bench.study.baselines.handlers.objects import TTL_S, View, decode, encode, read_key, written_key


def run_task(event: Any, environment: Environment, store: Store) -> None:  # noqa: ANN401 - whatever was sent
    match event:
        case {"query": str(query), "stage": int(stage), "tile": int(tile)}:
            check_query_id(query)
        case _:
            raise InputError("the event names no query, stage and tile")
    read = decode(store.get(read_key(query, stage, tile)))
    outputs = environment.compute(stage, tile, [view.array for view in read])
    store.put(written_key(query, stage, tile), encode([View.of(output) for output in outputs]), TTL_S)
