"""The number of invocations that a scenario's queries account for, from their own reports."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass

from serfer.pipeline.result import Logits, Result

MARGIN = 1.05


@dataclass(frozen=True)
class InvocationBudget:
    """What answered queries needed: `invocations` that would have been enough, and what came on top.

    Tasks that shared an invocation count as the parts of one.
    """

    queries: int = 0
    invocations: float = 0.0
    retries: int = 0
    hedges: int = 0
    restarts: int = 0

    def __add__(self, other: InvocationBudget) -> InvocationBudget:
        return InvocationBudget(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    def limit(self, tasks: int, *, throttled: int = 0, doubled: int = 0, unanswered: int = 0) -> int:
        """Return how many invocations may have started at most, where a query has `tasks` tasks.

        A restart may run all tasks again, and so may a query whose driver died before it answered (`unanswered`). A
        throttled attempt started none. Each of the `doubled` events starts a second one.
        """
        again = tasks * (self.restarts + unanswered)
        return math.floor(MARGIN * (self.invocations + again + self.retries + self.hedges + doubled - throttled))


@dataclass(frozen=True)
class Reply:
    """A query's logits, (N, K), its share of the budget, and the seconds from its first invocation to its answer."""

    logits: Logits
    budget: InvocationBudget
    served_s: float


def reply_of(result: Result) -> Reply:
    answer, overheads = result.answer, result.answer.overheads
    enough = sum(1 / report.shared for stage in answer.stages for report in stage.reports)
    enough += len(overheads.warm_ups)
    starts = [one.started for tile in answer.stages[0].tiles for one in tile.attempts if one.started is not None]
    budget = InvocationBudget(1, enough, overheads.retries, overheads.hedges, overheads.restarts)
    return Reply(result.logits, budget, answer.ended - min(starts, default=answer.ended))
