"""What queries took, from what their answers say of themselves, and how many invocations that allows."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass

from serfer.pipeline.pipeline import Logits, Result

MARGIN = 1.05


@dataclass(frozen=True)
class Reply:
    """A query's logits, (N, K), what it took, and the seconds from its first invocation's start to its answer."""

    logits: Logits
    account: Account
    served_s: float


@dataclass(frozen=True)
class Account:
    """What answered queries took: `invocations` that would have been enough, and what came on top.

    Tasks that shared an invocation count as the parts of one.
    """

    queries: int = 0
    invocations: float = 0.0
    retries: int = 0
    hedges: int = 0
    restarts: int = 0

    def __add__(self, other: Account) -> Account:
        return Account(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    def allowed(self, tasks: int, *, throttled: int = 0, doubled: int = 0, unanswered: int = 0) -> int:
        """Return how many invocations may have started at most, where a query has `tasks` tasks.

        A new beginning may have all tasks made again, and so may a query whose driver died before it answered
        (`unanswered`). An attempt that was throttled started none. `doubled` events start a second one each.
        """
        again = tasks * (self.restarts + unanswered)
        return math.floor(MARGIN * (self.invocations + again + self.retries + self.hedges + doubled - throttled))


def reply_of(result: Result) -> Reply:
    """Read what a query ended with."""
    answer, spent = result.answer, result.answer.overheads
    enough = sum(1 / report.shared for stage in answer.stages for report in stage.reports)
    began = [one.started for tile in answer.stages[0].tiles for one in tile.attempts if one.started is not None]
    account = Account(1, enough, spent.retries, spent.hedges, spent.restarts)
    return Reply(result.logits, account, answer.ended - min(began, default=answer.ended))
