"""The best policy that knows an MMPP's parameters: what no policy can beat that sees the load's past alone.

A Markov-modulated Poisson process has no memory but its state, so of each capacity level only the state (low or high)
and the instance (off, booting for so many steps, serving) matter:

    state x instance ──> on or off ──> what the next step costs, and the next state: the least average cost

That is a Markov decision process of some fifty states a level, which policy iteration solves exactly (Puterman, *Markov
Decision Processes*, 1994, chapter 6; a discount so close to 1 that average costs decide). Levels add up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from serfer.control.policies.ski_rental import level_loads, levels_of
from serfer.control.policy import InstanceGroup, Observation, ProvisioningPlan, on_demand, paid_for
from serfer.control.scenario import Scenario

Floats = NDArray[np.float64]
Actions = NDArray[np.bool_]
NAME: Final = "mmpp-optimum"
_DISCOUNT: Final = 1 - 1e-7  # a step
_SPREAD: Final = 6  # standard deviations of a row's count that are looked at
_OFF, _SERVES = 0, 1  # of an instance; 1 + n: it boots for another n steps


class MemorylessOptimum:
    """Switches each level by the MMPP's state, which the rate shows, and by what its instance does."""

    name = NAME

    def __init__(self, scenario: Scenario, process: Mapping[str, float], factor: float, period_s: float) -> None:
        """Solve for a process (the generator's parameters) whose rates are multiplied by `factor`.

        Decisions come every `period_s` seconds, or with each row where those are shorter.
        """
        step_s = min(period_s, process["row_s"])
        self._kind = scenario.instance
        self._boots = math.ceil(self._kind.boot_s / step_s - 1e-9)
        low, high = process["low"] * factor, process["high"] * factor
        self._between = (low + high) / 2
        counts = [_counts(process[name] * process["row_s"]) for name in ("low", "high")]
        levels = levels_of(scenario, float(counts[1][0][-1]) / process["row_s"] * factor)
        loads = np.array([_mean_loads(scenario, *each, process["row_s"] / factor, levels) for each in counts])
        units = loads * scenario.serverless.usd_per_query / self._kind.usd_per_s
        moves = _moves(process["low_s"], process["high_s"], step_s)
        self._on = [least_cost_actions(each, moves, self._boots) for each in units.T]
        self._instances = [_OFF] * len(self._on)

    def observe(self, seen: Observation) -> ProvisioningPlan:
        state = int(seen.rate > self._between)
        for level, instance in enumerate(self._instances):
            passed = max(_SERVES, instance - 1) if instance else _OFF
            wanted = bool(self._on[level][state, passed])
            self._instances[level] = _next(passed, self._boots) if wanted else _OFF
        wanted_on = sum(each != _OFF for each in self._instances)
        return on_demand(self._kind, wanted_on, f"the process is {'high' if state else 'low'}")

    def resume(self, fleet: Sequence[InstanceGroup]) -> None:
        for level in range(min(paid_for(fleet), len(self._instances))):
            self._instances[level] = _SERVES


def least_cost_actions(units: Floats, moves: Floats, boots: int) -> Actions:
    """Return whether to be on, by the process's state and the instance's, (2, boots + 2), at the least average cost.

    `units` (2,) is what Lambda costs in a step in each state, an instance being 1, and `moves` (2, 2) the chances of
    the next state by the last one. An instance boots for `boots` steps.
    """
    count = boots + 2
    ahead = moves @ units  # what Lambda will cost in the next step
    started = np.array([_next(instance, boots) for instance in range(count)])
    after = np.maximum(started - 1, _SERVES)
    cost = np.stack([np.repeat(ahead[:, None], count, 1), 1.0 + ahead[:, None] * (started > _SERVES)])
    on: Actions = np.repeat(units[:, None] > 1.0, count, 1)
    while True:
        value = _value(on, cost, moves, after)
        later = np.stack([np.repeat((moves @ value[:, _OFF])[:, None], count, 1), moves @ value[:, after]])
        choices = cost + _DISCOUNT * later
        better = np.where(np.abs(choices[1] - choices[0]) > 1e-9 * np.abs(choices[0]), choices[1] < choices[0], on)
        if np.array_equal(better, on):
            return on
        on = better


def _value(on: Actions, cost: Floats, moves: Floats, after: NDArray[np.int64]) -> Floats:
    """Return what a policy pays from each state on, discounted: (2, instances)."""
    states, count = on.shape
    step = np.zeros((states, count, states, count))
    for state in range(states):
        for instance in range(count):
            step[state, instance, :, after[instance] if on[state, instance] else _OFF] = moves[state]
    size = states * count
    paid = np.where(on, cost[1], cost[0]).reshape(size)
    return np.linalg.solve(np.eye(size) - _DISCOUNT * step.reshape(size, size), paid).reshape(states, count)


def _next(instance: int, boots: int) -> int:
    return instance if instance != _OFF else _SERVES + boots


def _moves(low_s: float, high_s: float, step_s: float) -> Floats:
    """Return the chances of the state after a step, by the state before, of a process that stays so long on average."""
    away, back = 1 / low_s, 1 / high_s
    left = 1 - math.exp(-(away + back) * step_s)
    up, down = left * away / (away + back), left * back / (away + back)
    return np.array([[1 - up, up], [down, 1 - down]])


def _counts(mean: float) -> tuple[Floats, Floats]:
    """Return the counts that a row of so many queries on average has, and their chances; more than nothing."""
    spread = _SPREAD * math.sqrt(mean) + _SPREAD
    counts = np.arange(max(0, math.floor(mean - spread)), math.ceil(mean + spread) + 1, dtype=np.float64)
    logs = [(count * math.log(mean) if count else 0.0) - mean - math.lgamma(count + 1) for count in counts.tolist()]
    return counts, np.exp(logs)


def _mean_loads(scenario: Scenario, counts: Floats, chances: Floats, seconds: float, levels: int) -> Floats:
    loads: Floats = chances @ np.array([level_loads(scenario, count / seconds, levels) for count in counts.tolist()])
    return loads
