"""Run in a process of its own, in `partition/` of a checkout of Gillis or MPHB: their planner, on one network.

    python partition_script.py NETWORK.onnx ANSWER.json

NETWORK's weights have shapes and no values. Neither program is modified on disk. Changed in memory are: MXNet, which
both import and their dynamic programmes do not call, is an empty module; the coefficients are those of AWS Lambda; the
expectation of the communication time is memoised. MPHB's planner gets a limit of stages that the network's runs of
layers keep, and one function's milliseconds and dollars of 1, by which it divides: its choice does not depend on them.
This file imports nothing of SerFer.
"""

from __future__ import annotations

import functools
import importlib
import json
import logging
import sys
import types
from pathlib import Path
from typing import Any

_BACKEND, _BACKEND_NUMBER = "lambda", 0
_VCPUS_BY_MB = {2048: 0.5, 3072: 0.75, 4096: 1.0, 6144: 1.5, 8192: 2.0}


def their_modules() -> tuple[Any, Any, Any]:
    """Import `layer_graph`, `parallel_util` and `policy_dp` of the directory, with the coefficients of AWS Lambda."""
    mxnet, arrays = types.ModuleType("mxnet"), types.ModuleType("mxnet.ndarray")
    mxnet.ndarray = arrays  # type: ignore[attr-defined]
    sys.modules.update({"mxnet": mxnet, "mxnet.ndarray": arrays})
    sys.path.insert(0, str(Path.cwd()))
    logging.disable(logging.CRITICAL)
    utils: Any = importlib.import_module("utils")
    utils.backend_no, utils.selected_backend = _BACKEND_NUMBER, _BACKEND
    for name in utils.config.options(_BACKEND):
        setattr(utils, name, utils.config.getfloat(_BACKEND, name))
    layer_graph = importlib.import_module("layer_graph")
    layer_graph.comm_latency.getExp = functools.cache(layer_graph.comm_latency.getExp)
    return layer_graph, importlib.import_module("parallel_util"), importlib.import_module("policy_dp")


def main(network: str, answer: str) -> None:
    """Plan a network and write its number of layers, and the plan with the milliseconds and cost that it predicts."""
    layer_graph, parallel_util, policy_dp = their_modules()
    graph = layer_graph.LayerInfoGraph(layer_graph.load_onnx_model(network))
    if hasattr(parallel_util, "set_baseline"):
        parallel_util.set_baseline("memory", {0.5: 1.0}, {0.5: 1.0}, _VCPUS_BY_MB)
        runs = len(parallel_util.gen_physical_stage_dag(graph))
        policy_dp.MAX_STAGES = parallel_util.MAX_STAGES = max(runs, parallel_util.MAX_STAGES)
    layers = len(graph.get_hybrid_nodes())
    plan = policy_dp.gen_plan(graph)
    stages = []
    for stage in plan.stage_list:
        of_maps = isinstance(stage.partition_shape, tuple)
        rows, cols = stage.partition_shape if of_maps else (1, stage.partition_shape)
        layers_of = {"start": int(stage.name[0]), "stop": int(stage.name[1]) + 1}
        columns = not of_maps and cols > 1
        stages.append({**layers_of, "rows": rows, "cols": cols, "columns": columns, "here": 0 in stage.func_ids})
    found = {"layers": layers, "ms": float(plan.cal_latency()), "cost": float(plan.cal_cost()), "stages": stages}
    Path(answer).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
