"""Run in a process of its own, in `partition/` of a checkout of Gillis or MPHB: their planners, on one network.

    python partition_script.py NETWORK.onnx ANSWER.json [[POLICY, SLO_MS, SEED], ...]

NETWORK's weights have shapes and no values. POLICY is `fastest`, the dynamic programme of both, or one of Gillis's that
give the cheapest plan within SLO_MS: `learnt` (policy_rl.py), `best tried` of its learning, `bayesian`, and `brute
force` (policy_bf.py). Neither program is modified on disk, and nothing is written to its folder. Changed in memory are:

- The coefficients are those of AWS Lambda. The time of communication, and what plans take, are memoised.
- MXNet is an empty module for `fastest`, which does not call it; the others need MXNet 1.9.1.
- MPHB's planner gets a limit of stages that the network's runs of layers keep, and one function's milliseconds and
  dollars of 1, by which it divides: its choice does not depend on them.
- `learnt` draws the same actions and descends the same sum of losses, for all layers at once in place of one by one,
  which was checked over 25 steps.
- `bayesian` gets the value of SciPy's `minimize` as an array of one, as in the SciPy of then.
- `brute force` goes through the choices of the last layers, with no group that ends before them, as theirs does.

This file imports nothing of SerFer.
"""

from __future__ import annotations

import functools
import importlib
import json
import logging
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Theirs = Any
"""A module or an object of theirs, or of MXNet."""
_BACKEND, _BACKEND_NUMBER = "lambda", 0
_VCPUS_BY_MB = {2048: 0.5, 3072: 0.75, 4096: 1.0, 6144: 1.5, 8192: 2.0}
_FASTEST = "fastest"
_LEARNING_STEPS = 1500  # policy_rl.py's own
_SEARCHED_LAYERS = 7  # four choices each; ten, as in policy_bf.py, take 64 times as long


def _imported(name: str) -> Theirs:
    return importlib.import_module(name)


def main(network: str, answer: str, asked: str) -> None:
    """Write the network's number of layers, and the plans with the milliseconds and costs that they are predicted.

    A plan is null where its policy ends without one.
    """
    asks = json.loads(asked)
    only_fastest = all(policy == _FASTEST for policy, _, _ in asks)
    their_modules(stub=only_fastest)
    graph_module, util = _imported("layer_graph"), _imported("parallel_util")
    graph = graph_module.LayerInfoGraph(graph_module.load_onnx_model(network))
    if not only_fastest:
        util.get_info_graph = lambda _: graph
        memoise(util, graph_module.predictor)
    plans = []
    for policy, slo_ms, seed in asks:
        np.random.seed(seed)  # noqa: NPY002 - which they draw from
        plan = _SLO_AWARE[policy](network, util, slo_ms, seed) if policy != _FASTEST else fastest(graph, util)
        plans.append(plan and described(plan))
    layers = len(graph.get_hybrid_nodes())
    Path(answer).write_text(json.dumps({"layers": layers, "plans": plans}), encoding="utf-8")


def their_modules(*, stub: bool) -> None:
    if stub:
        mxnet, arrays = types.ModuleType("mxnet"), types.ModuleType("mxnet.ndarray")
        mxnet.ndarray = arrays  # type: ignore[attr-defined]
        sys.modules.update({"mxnet": mxnet, "mxnet.ndarray": arrays})
    sys.path.insert(0, str(Path.cwd()))
    logging.disable(logging.CRITICAL)
    utils = _imported("utils")
    utils.backend_no, utils.selected_backend = _BACKEND_NUMBER, _BACKEND
    for name in utils.config.options(_BACKEND):
        setattr(utils, name, utils.config.getfloat(_BACKEND, name))
    latency = _imported("layer_graph").comm_latency
    latency.getExp = functools.cache(latency.getExp)


def described(plan: Theirs) -> dict[str, Any]:
    """Return a plan for JSON; a stage with one model is undivided, whatever its shape."""
    stages = []
    for stage in plan.stage_list:
        of_maps = isinstance(stage.partition_shape, tuple)
        rows, cols = stage.partition_shape if of_maps else (1, stage.partition_shape)
        if len(stage.func_ids) == 1:
            rows = cols = 1
        layers_of = {"start": int(stage.name[0]), "stop": int(stage.name[1]) + 1}
        columns = not of_maps and cols > 1
        stages.append({**layers_of, "rows": rows, "cols": cols, "columns": columns, "here": 0 in stage.func_ids})
    return {"ms": float(plan.cal_latency()), "cost": float(plan.cal_cost()), "stages": stages}


def fastest(graph: Theirs, util: Theirs) -> Theirs:
    programme = _imported("policy_dp")
    if hasattr(util, "set_baseline"):
        util.set_baseline("memory", {0.5: 1.0}, {0.5: 1.0}, _VCPUS_BY_MB)
        runs = len(util.gen_physical_stage_dag(graph))
        programme.MAX_STAGES = util.MAX_STAGES = max(runs, util.MAX_STAGES)
    return programme.gen_plan(graph)


def plan_of(module: Theirs, util: Theirs, action: Theirs) -> Theirs:
    """Return the plan of an action: a choice for each layer, and where memory is scarce one for each stage."""
    choices, outside = action if isinstance(action, tuple) else (action, [])
    sizes = module.aggre_stage_layer_sizes, module.aggre_layer_sizes
    ranges = util.gen_stage_range([*choices], module.phy_stages, *sizes)
    outside = outside or [0] * len(ranges)
    return util.get_plan(module.info_graph, module.hybrid_layers, util.modify_stage_range(ranges, outside))


@functools.cache
def prepared(name: str, network: str, util: Theirs) -> Theirs:
    module = _imported(name)
    module.embeddings, module.info_graph, module.hybrid_layers, module.phy_stages, *sizes = util.get_graph_metrics(
        network
    )
    module.aggre_stage_layer_sizes, module.aggre_layer_sizes = sizes
    module.layer_size = len(module.hybrid_layers)
    module.require_mem_limit = module.info_graph.get_model_size() > util.hyper_params["func_limit"]
    module.get_plan = figures_of(util.get_plan)
    return module


def memoise(util: Theirs, predictor: Theirs) -> None:
    """Memoise groups with several parts, and what groups take and cost; those of one part are merged in place."""

    def memoised(function: Theirs, key_of: Theirs) -> Theirs:
        known: dict[tuple[Any, ...], Any] = {}

        def answer(*given: Any) -> Theirs:  # noqa: ANN401
            key = key_of(*given)
            if key in known:
                return known[key]
            found = function(*given)
            if len(getattr(found, "models", ())) != 1:
                known[key] = found
            return found

        return answer

    util.attr_partition = memoised(
        util.attr_partition, lambda _, layers, *rest: (layers[0].name, layers[-1].name, *rest)
    )
    util.param_partition = memoised(util.param_partition, lambda layer, *rest: (layer.name, *rest))
    for name in ("_stage_latency", "_stage_cost"):
        setattr(
            predictor, name, memoised(getattr(predictor, name), lambda s: (*s.name, s.partition_shape, *s.func_ids))
        )


def figures_of(get_plan: Theirs) -> Theirs:
    known: dict[tuple[Any, ...], Any] = {}

    def figures(graph: Theirs, layers: Theirs, ranges: Theirs) -> Theirs:
        key = tuple(map(tuple, ranges))
        if key not in known:
            plan = get_plan(graph, layers, ranges)
            known[key] = plan and (plan.cal_latency(), plan.cal_cost(), plan.cal_size())
        if not known[key]:
            return None
        ms, cost, size = known[key]
        return types.SimpleNamespace(cal_latency=lambda: ms, cal_cost=lambda: cost, cal_size=lambda: size)

    return figures


def learnt(network: str, util: Theirs, slo_ms: float, seed: int) -> Theirs:
    """Return the cheapest plan within a time of 20 that the trained policy draws, as its gen_plan_with_model does."""
    rl, policy, random_state = trained(network, util, slo_ms, seed)
    np.random.set_state(random_state)  # noqa: NPY002
    actions, ranges = policy.choose_actions()
    priced = [rl.get_reward(rl.info_graph, rl.hybrid_layers, each, slo_ms, rl.require_mem_limit)[1:] for each in ranges]
    kept = [(cost, at) for at, (ms, cost) in enumerate(priced) if ms is not None and ms < slo_ms]
    return plan_of(rl, util, actions[min(kept)[1]]) if kept else None


def best_tried(network: str, util: Theirs, slo_ms: float, seed: int) -> Theirs:
    """Return the cheapest plan within a time of all that learning tried, which their program does not keep."""
    rl, policy, _ = trained(network, util, slo_ms, seed)
    return plan_of(rl, util, policy.best_action) if policy.best_action else None


@functools.cache
def trained(network: str, util: Theirs, slo_ms: float, seed: int) -> tuple[Theirs, Theirs, Theirs]:
    """Return their module, the policy after training, and the state of the random numbers then."""
    _imported("mxnet").random.seed(seed)
    rl = prepared("policy_rl", network, util)
    rl.budget = rl.get_cost(rl.model_latency(rl.info_graph)) * 10
    rl.penalty = -rl.budget
    limited = rl.require_mem_limit
    with tempfile.TemporaryDirectory() as home:
        policy = at_once(rl)(rl.embeddings, home, require_mem_limit=limited)
        graph = rl.info_graph, rl.hybrid_layers
        rl.train_policy_iters(policy, *graph, slo_ms, home, iter=_LEARNING_STEPS, require_mem_limit=limited)
    return rl, policy, np.random.get_state()  # noqa: NPY002


def at_once(rl: Theirs) -> Theirs:
    """Return their policy of a small network for each layer, computed for all layers and actions together."""
    arrays = _imported("mxnet.ndarray")
    autograd = _imported("mxnet.autograd")

    def drawn(probabilities: Theirs) -> list[int]:
        cumulated = probabilities.astype(np.float64).cumsum(axis=1)
        draws = np.random.random_sample((len(cumulated), 1))  # noqa: NPY002
        return [int(choice) for choice in (cumulated / cumulated[:, -1:] <= draws).sum(axis=1)]

    class AtOnce(rl.NetPolicyGradient):  # type: ignore[misc]
        best_reward = 0.0  # a plan within the time has a positive reward, others a negative one
        best_action: Theirs = None
        actions: list[Any]
        rewards: list[Any]
        outputs: list[Any]

        def store_reward(self, rewards: Theirs) -> None:
            super().store_reward(rewards)
            last = [reward[-1] for reward in rewards]
            if max(last) > self.best_reward:
                self.best_reward = max(last)
                self.best_action = self.actions[last.index(self.best_reward)]

        def choose_actions(self) -> tuple[Theirs, Theirs]:
            layers = self.layer_embeddings.reshape((self.layer_size, -1))
            probabilities = arrays.softmax(self.partition_net(layers)).asnumpy()
            found = []
            for _ in range(self.batch_size):
                choices = drawn(probabilities)
                ranges = rl.gen_stage_range(choices, rl.phy_stages, rl.aggre_stage_layer_sizes, rl.aggre_layer_sizes)
                self.actions.append(choices)
                if self.require_mem_limit:
                    stages = rl.gen_stage_embedding(ranges, self.layer_size)
                    outside = drawn(arrays.softmax(self.mem_net(stages)).asnumpy())
                    ranges = rl.modify_stage_range(ranges, outside)
                    self.outputs.append(stages)
                    self.actions[-1] = choices, outside
                found.append(ranges)
            return self.actions, found

        def learn(self) -> float:
            rewards = arrays.array([self.discount_and_norm_rewards(reward) for reward in self.rewards])
            limited = self.require_mem_limit
            choices = [action[0] for action in self.actions] if limited else self.actions
            layers = self.layer_embeddings.reshape((self.layer_size, -1))
            with autograd.record():
                outputs = arrays.log_softmax(self.partition_net(layers)).expand_dims(0)
                outputs = outputs.broadcast_to((self.batch_size, *outputs.shape[1:]))
                loss = -(arrays.pick(outputs, arrays.array(choices), axis=2) * rewards).sum()
            loss.backward()
            self.partition_net_optimizer.step(self.batch_size)
            if limited:
                outside = [choice for action in self.actions for choice in action[1]]
                ends = zip(self.actions, self.rewards, strict=True)
                by_stage = ([*[0] * (len(action[1]) - 1), reward[-1]] for action, reward in ends)
                weights = [weight for reward in by_stage for weight in self.discount_and_norm_rewards(reward)]
                with autograd.record():
                    outputs = arrays.log_softmax(self.mem_net(arrays.concat(*self.outputs, dim=0)))
                    loss = -(arrays.pick(outputs, arrays.array(outside)) * arrays.array(weights)).sum()
                loss.backward()
                self.mem_net_optimizer.step(self.batch_size)
            self.actions, self.rewards, self.outputs = [], [], []
            return float(loss.asscalar())

    return AtOnce


def bayesian(network: str, util: Theirs, slo_ms: float, _: int) -> Theirs:
    module = prepared("policy_bayesian", network, util)
    theirs = _imported("scipy.optimize").minimize

    def minimize(*given: Theirs, **named: Theirs) -> Theirs:
        result = theirs(*given, **named)
        result.fun = np.atleast_1d(result.fun)  # an array of one in the SciPy of then
        return result

    module.minimize = minimize
    ms, _cost, action = module.bayesian_optimization(slo_ms)
    return plan_of(module, util, action) if np.isfinite(ms) else None


def brute_force(network: str, util: Theirs, slo_ms: float, _: int) -> Theirs:
    module = prepared("policy_bf", network, util)
    first = [0] * (module.layer_size - _SEARCHED_LAYERS)
    sizes = module.aggre_stage_layer_sizes, module.aggre_layer_sizes
    graph = module.info_graph, module.hybrid_layers, module.phy_stages
    action = module.gen_opt_action_recursive(first, *graph, *sizes, slo_ms)[2]
    return plan_of(module, util, action) if action else None


_SLO_AWARE: dict[str, Callable[[str, Theirs, float, int], Theirs]] = {
    "learnt": learnt,
    "best tried": best_tried,
    "bayesian": bayesian,
    "brute force": brute_force,
}


if __name__ == "__main__":
    main(*sys.argv[1:])
