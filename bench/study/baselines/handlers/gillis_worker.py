"""Gillis's worker: one part of a group, its activations in and out inside the payloads."""

from __future__ import annotations

from typing import Any

from serfer.core.errors import InputError
from serfer_bench.study.baselines.handlers.environment import Environment
from serfer_bench.study.baselines.handlers.payload import from_json, to_json


def work(event: Any, environment: Environment) -> dict[str, Any]:  # noqa: ANN401 - whatever a master sent
    match event:
        case {"stage": int(stage), "tile": int(tile), "tensors": [*tensors]}:
            outputs = environment.compute(stage, tile, [from_json(tensor) for tensor in tensors])
            return {"tensors": [to_json(output) for output in outputs]}
    raise InputError("the payload has no stage, tile and tensors")
