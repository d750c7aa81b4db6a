"""The driver's side of gangs: which of them run as such, who of their members is behind, and their end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from serfer.core.errors import StoreError, StoreUnavailableError, UsageError
from serfer.core.plan import Gang, Plan
from serfer.core.plan.borders import BORDER_HEADER, Member, members
from storage.exchange import START, Exchange, Message
from storage.store import Store


class Gangs:
    """The inboxes of a driver's gangs; nothing here raises where the store does not answer."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def abort(self, inboxes: Sequence[str], ttl: float) -> None:
        """Tell the readers of these inboxes to stop; those that do not hear it stop when their patience ends."""
        messages = [Message(inbox, b"") for inbox in inboxes]
        try:
            await asyncio.to_thread(self._exchange.send, messages, ttl)
        except (StoreUnavailableError, StoreError):
            return

    async def progress(self, board: str, plan: Plan, gang: Gang) -> tuple[int, ...]:
        """Return the stage that each member is at, the first whose borders it has not sent, from the gang's board."""
        try:
            received = await asyncio.to_thread(self._exchange.receive, board, START, 0.0)
        except (StoreUnavailableError, StoreError):
            received = []
        sent = {BORDER_HEADER.unpack(value) for _, value in received if len(value) == BORDER_HEADER.size}
        return tuple(
            next((stage for stage in Member(plan, gang, member).stages if (stage, member) not in sent), gang.stop)
            for member in range(members(plan, gang))
        )

    def close(self) -> None:
        """Give back the connections."""
        self._exchange.close()


def open_gangs(plan: Plan, store: Store, concurrency: int) -> Gangs | None:
    """Return what runs a plan's gangs as such; None where it has none, or the store no inboxes.

    Raises UsageError for a gang with more members than `concurrency`.
    """
    if not plan.gangs:
        return None
    exchange = store.exchange()
    if exchange is None:
        return None
    widest = max(plan.gangs, key=lambda gang: members(plan, gang))
    if members(plan, widest) > concurrency:
        exchange.close()
        raise UsageError(
            f"the gang of stages {widest.start} to {widest.stop - 1} needs {members(plan, widest)} invocations at "
            f"once, {concurrency} are allowed: allow more (SERFER_LOCAL_CONCURRENCY), or split with fewer tiles or "
            "--gang never"
        )
    return Gangs(exchange)
