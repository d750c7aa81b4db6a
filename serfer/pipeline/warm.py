"""Keeping functions warm (SerFer, section 9.1): requests that are held at the same time find environments of their own.

The paper's pings keep one environment of a function; a query needs as many as its stage has tiles, and several queries
at once need that many times over. A warm-up request also builds the sessions, so that nothing of a cold start is left.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from serfer.core.errors import InputError, UnavailableError
from serfer.core.plan import Plan
from serfer.core.run_machine import Failure
from serfer.core.wire import WarmUp, WarmUpAnswer

HOLD_S = 0.5
MOST_AT_ONCE = 1000
_PING = "serfer_ping"


class Warmer(Protocol):
    """Sends warm-up requests."""

    def called(self, function: str) -> str: ...

    async def warm(self, function: str, request: WarmUp) -> WarmUpAnswer | Failure: ...


@dataclass(frozen=True)
class Warmth:
    """The result of a function's warm-up: how many environments were asked for, are warm, and were started for it.

    `slowest_start_ms` is the longest of those starts; `problem` says why a request failed, where one did.
    """

    function: str
    asked: int
    warm: int
    started: int
    slowest_start_ms: float
    problem: str | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


async def warm(plan: Plan, warmer: Warmer, queries: int, hold_s: float = HOLD_S) -> list[Warmth]:
    """Get every function of a plan ready for so many queries at once; a function after another, its requests together.

    Each request keeps an environment busy for `hold_s` seconds, which has to be longer than the requests take to be
    sent: one that comes when another has ended finds the same environment.
    """
    warmths = []
    for (stage, part), count in environments(plan, queries).items():
        request = WarmUp(plan.digest, stage, part, hold_s)
        name = plan.function(stage, part)
        answers = await asyncio.gather(*(warmer.warm(name, request) for _ in range(count)))
        warmed = [answer for answer in answers if isinstance(answer, WarmUpAnswer)]
        starts = [answer.init_ms for answer in warmed if answer.init_ms > 0]
        slowest_ms = max(starts, default=0.0)
        there = len({answer.environment for answer in warmed})
        failed = [f"{answer.kind.value}: {answer.message}" for answer in answers if isinstance(answer, Failure)]
        problem = failed[0] if failed else None
        warmths.append(Warmth(warmer.called(name), count, there, len(starts), slowest_ms, problem))
    return warmths


async def keep_warm(plan: Plan, warmer: Warmer, queries: int) -> None:
    """Do the same for a controller; raises UnavailableError that names the first function whose requests failed."""
    for warmth in await warm(plan, warmer, queries):
        if warmth.problem:
            raise UnavailableError(f"{warmth.function} was not warmed: {warmth.problem}")


def ping_event(queries: int) -> dict[str, Any]:
    """Return the event by which a schedule has a driver function warm the others up for so many queries at once."""
    return {_PING: {"queries": queries}}


def pinged(event: Any) -> int | None:  # noqa: ANN401 - any event of a function
    """Return for how many queries at once an event wants functions warm; None for every other event.

    It is the whole event: in one of an HTTP API a client sets values, below names that the API gives.
    """
    if not isinstance(event, dict) or event.keys() != {_PING}:
        return None
    queries = event[_PING].get("queries") if isinstance(event[_PING], dict) else None
    if type(queries) is not int or not 1 <= queries <= MOST_AT_ONCE:
        raise InputError(f"a ping is for 1 to {MOST_AT_ONCE} queries, not {queries!r:.40}")
    return queries


def environments(plan: Plan, queries: int) -> dict[tuple[int, int], int]:
    """Return how many environments of each function, by stage and part, so many queries at once need."""
    return {
        (stage, part): min(queries * sum(tile.function == part for tile in plan.stages[stage].tiles), MOST_AT_ONCE)
        for stage, part in plan.functions
    }
