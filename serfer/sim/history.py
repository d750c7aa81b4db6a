"""A load of the past, for a policy to begin with: it sees it, at the level of rates, before its own load begins."""

from __future__ import annotations

from collections.abc import Callable

from serfer.control.policy import Observation, Policy
from serfer.control.scenario import Scenario
from serfer.control.shadow import Shadow
from serfer.sim.rates import PERIOD_S, steps_of
from serfer.sim.traces import Trace

_UNIX_FROM_S = 1e9  # 2001: traces on a clock of their own do not reach it


def see_history(
    policy: Policy,
    scenario: Scenario,
    history: Trace,
    *,
    period_s: float = PERIOD_S,
    until_s: float = 0.0,
    wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Have a policy decide over a load every `period_s` seconds, with the fleet that it would have had.

    On the policy's clock the load ends at `until_s`, unless it is on Unix time itself: that is kept. It is left off
    where it is not `wanted` any more. Raises UsageError for a load of too many steps.
    """
    steps, shadow = steps_of(history, period_s), Shadow(policy, scenario)
    now_s = history.begin_s if history.begin_s >= _UNIX_FROM_S else until_s - history.seconds
    for seconds, rate in zip(steps.durations_s.tolist(), steps.rates.tolist(), strict=True):
        if not wanted():
            return
        now_s += seconds
        shadow.observe(Observation(now_s, seconds, rate))
