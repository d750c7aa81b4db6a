"""A load of the past, for a policy to begin with: it sees it, at the level of rates, before its own load begins."""

from __future__ import annotations

from dataclasses import replace

from serfer.control.policy import Observation, Policy
from serfer.control.scenario import Scenario
from serfer.cost.loads.steps import PERIOD_S, steps_of
from serfer.cost.loads.trace import Trace
from serfer_bench.study.policies.rate_account import AccountedPolicy

_UNIX_FROM_S = 1e9  # 2001: traces on a clock of their own do not reach it


def place_before(load: Trace, history: Trace) -> Trace:
    """Return a history on the clock of a policy for which a load begins at 0.

    Where both are on Unix time the history keeps its distance from the load, so that hours of the day are the same in
    both. Else, and where it would end later, it ends when the load begins.
    """
    begin_s = -history.seconds
    if min(load.begin_s, history.begin_s) >= _UNIX_FROM_S:
        begin_s = min(begin_s, history.begin_s - load.begin_s)
    return replace(history, begin_s=begin_s)


def see_history(
    policy: Policy,
    scenario: Scenario,
    history: Trace,
    *,
    period_s: float = PERIOD_S,
) -> None:
    """Have a policy decide over a load every `period_s` seconds, with the fleet that it would have had.

    The history is on the policy's clock (`place_before`).
    """
    steps, accounted = steps_of(history, period_s), AccountedPolicy(policy, scenario)
    now_s = history.begin_s
    for seconds, rate in zip(steps.durations_s.tolist(), steps.rates.tolist(), strict=True):
        now_s += seconds
        accounted.observe(Observation(now_s, seconds, rate))
