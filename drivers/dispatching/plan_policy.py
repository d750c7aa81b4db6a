"""Which of two plans of one network a query runs on: the warm plan, or the cold plan while that one has no environment.

The warm plan is usually one function, whose cold start waits for all weights; the functions of the cold plan load a
share each, at the same time. Time comes in as a number, decisions go out as data.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from serfer.core.retry import Backoff
from serfer.drivers.dispatching.environments import Environments, Use

WARM = "Warm environments were expected."
COLD = "No warm environments of the other plan were expected to be free."
NO_ROOM = "No warm environments were expected to be free, but the concurrency had no room for the cold plan."
_LATE_S = 0.5  # later than others, an invocation is taken to wait for a cold start: those take as long at least
_RECENT = 0.2  # the share of the newest query in what a query takes
_RETRY = Backoff(base=1.0, longest=60.0)


@dataclass(frozen=True)
class Terms:
    """What two plans need of an account: `needs` environments of each of the warm plan's functions make one query.

    A query on the cold plan has up to `width` invocations at once, of the `concurrency` of all that runs. A query in
    warm environments is predicted to take `warm_s`, and environments without work stay for `kept_s` seconds.
    """

    needs: Mapping[str, int]
    width: int
    concurrency: int
    warm_s: float
    kept_s: float

    @property
    def least(self) -> int:
        """The concurrency that a query on the cold plan takes with the warm-up that it causes."""
        return self.width + sum(self.needs.values())


@dataclass(frozen=True)
class Decision:
    """A query's plan: the warm one or not, why, and the environments to be started, as functions' names.

    `promised` are the environments that were reserved for it, by function.
    """

    warm: bool
    reason: str
    warm_ups: Sequence[str] = ()
    promised: Mapping[str, list[Use]] = field(default_factory=dict)


class PlanPolicy:
    """Decides for each query of a driver, from the warm plan's `environments`, by function."""

    def __init__(self, terms: Terms) -> None:
        self.environments = {function: Environments(terms.kept_s) for function in terms.needs}
        self._terms = terms
        self._warm_s = terms.warm_s
        self._arrivals: deque[float] = deque()
        self._cold = 0  # queries in flight on the cold plan
        self._failures = 0
        self._not_before = 0.0
        self._problem = ""

    def decide(self, now: float) -> Decision:
        """Decide for a query that starts now; it has to be told when it ends."""
        self._arrivals.append(now)
        while now - self._arrivals[0] > self._warm_s:
            self._arrivals.popleft()
        needs = self._terms.needs
        late_s = self._warm_s + _LATE_S
        if all(self.environments[name].trusted(now, late_s) >= count for name, count in needs.items()):
            promised = {name: self.environments[name].promise(count, now) for name, count in needs.items()}
            return Decision(warm=True, reason=WARM, promised=promised)
        warm_ups = self._warm_ups(now)
        if self._in_use() + self._terms.width + len(warm_ups) > self._terms.concurrency:
            return Decision(warm=True, reason=NO_ROOM)
        self._cold += 1
        return Decision(warm=False, reason=COLD + self._problem, warm_ups=warm_ups)

    def ended(self, decision: Decision, took_s: float | None) -> None:
        for name, promised in decision.promised.items():
            self.environments[name].withdraw(promised)
        if not decision.warm:
            self._cold -= 1
        elif took_s is not None and decision.promised:
            self._warm_s += _RECENT * (took_s - self._warm_s)

    def warmed(self) -> None:
        self._failures, self._not_before, self._problem = 0, 0.0, ""

    def refused(self, problem: str, now: float) -> None:
        """Note why a warm-up has failed: the next ones wait, longer each time."""
        self._failures += 1
        self._not_before = now + _RETRY.wait(self._failures)
        self._problem = f" Its last warm-up failed: {problem}"

    def _in_use(self) -> int:
        return sum(environments.in_use for environments in self.environments.values()) + self._cold * self._terms.width

    def _warm_ups(self, now: float) -> list[str]:
        """For one query at most, and for no more than have come within the time that one takes in warm environments."""
        if now < self._not_before:
            return []
        wanted: list[str] = []
        for name, count in self._terms.needs.items():
            known = self.environments[name].idle(now) + self.environments[name].in_use
            wanted += [name] * min(count, count * len(self._arrivals) - known)
        return wanted
