"""A load of the past, for a policy to begin with: it sees it, at the level of rates, before its own load begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from serfer.control.policy import Observation, Policy
from serfer.control.rate_account import AccountedPolicy
from serfer.control.scenario import Scenario
from serfer.sim.rates import PERIOD_S, steps_of
from serfer.sim.traces import Trace

_UNIX_FROM_S = 1e9  # 2001: traces on a clock of their own do not reach it


def place_before(load: Trace, history: Trace) -> Trace:
    """Return a history on the clock of a policy for which a load begins at 0.

    Where both are on Unix time the history keeps its distance from the load, so that hours of the day are the same in
    both. Else, and where it would end later, it ends when the load begins.
    """
    zero_s = load.begin_s if load.begin_s >= _UNIX_FROM_S else None
    return _placed(history, zero_s, 0.0)


def place_until(now_s: float, history: Trace) -> Trace:
    """Return a history on the clock of a policy whose time is Unix time, on which it is `now_s`.

    It keeps its time where it is on Unix time itself. Else, and where it would end later, it ends now.
    """
    return _placed(history, 0.0, now_s)


def _placed(history: Trace, zero_s: float | None, end_s: float) -> Trace:
    """Return a history on a clock whose 0 is `zero_s` on Unix time, None where that is not known."""
    begin_s = end_s - history.seconds
    if zero_s is not None and history.begin_s >= _UNIX_FROM_S:
        begin_s = min(begin_s, history.begin_s - zero_s)
    return replace(history, begin_s=begin_s)


def see_history(
    policy: Policy,
    scenario: Scenario,
    history: Trace,
    *,
    period_s: float = PERIOD_S,
    wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Have a policy decide over a load every `period_s` seconds, with the fleet that it would have had.

    The history is on the policy's clock (`place_before`, `place_until`). It is left off where it is not `wanted` any
    more. Raises UsageError for a load of too many steps.
    """
    steps, accounted = steps_of(history, period_s), AccountedPolicy(policy, scenario)
    now_s = history.begin_s
    for seconds, rate in zip(steps.durations_s.tolist(), steps.rates.tolist(), strict=True):
        if not wanted():
            return
        now_s += seconds
        accounted.observe(Observation(now_s, seconds, rate))
