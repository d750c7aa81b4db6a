"""The clients of a chaos scenario: they ask one driver or two, and remember what their queries took."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any

from numpy.typing import NDArray

from bench.chaos.remote_driver import DriverApart
from bench.load.account import Account, Reply
from serfer.core.exactness import difference
from serfer.pipeline.pipeline import Logits

Batch = NDArray[Any]
Ask = Callable[[Batch], Future[Reply]]
_SOME = 3  # answers of a driver that is about to die, for queries that were sent to the other one already


class Crowd:
    """Sends queries and adds up their accounts; whoever disturbs them can wait until so many have ended."""

    def __init__(self, ask: Ask, queries: int) -> None:
        self._ask = ask
        self._queries = queries
        self._change = threading.Condition()
        self._ended = 0
        self._over = False
        self.account = Account()
        self.served: list[float] = []  # seconds, of those that were answered

    def submit(self, batch: Batch) -> Future[Logits]:
        """Start a query; cancelling it cancels its stages."""
        answer: Future[Logits] = Future()
        query = self._ask(batch)
        query.add_done_callback(lambda done: self._end(done, answer))
        answer.add_done_callback(lambda given: given.cancelled() and query.cancel())
        return answer

    def wait(self, share: float) -> bool:
        """Wait until this share of the queries has ended; False where none is under way any more."""
        with self._change:
            self._change.wait_for(lambda: self._over or self._ended >= share * self._queries)
            return not self._over

    @property
    def share_ended(self) -> float:
        """The share of the queries that has ended."""
        return self._ended / self._queries

    def go_home(self) -> None:
        """Tell whoever waits that the load is over."""
        with self._change:
            self._over = True
            self._change.notify_all()

    def _end(self, done: Future[Reply], answer: Future[Logits]) -> None:
        reply = _reply(done)
        with self._change:
            self._ended += 1
            if reply:
                self.account += reply.account
                self.served.append(reply.served_s)
            self._change.notify_all()
        with suppress(InvalidStateError):  # nobody waits for it any more
            if reply:
                answer.set_result(reply.logits)
            elif not done.cancelled():
                answer.set_exception(done.exception())
            else:
                answer.cancel()


class _Shared:
    """A query that two drivers may answer."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.answer: Future[Reply] = Future()
        self.replies: list[Reply] = []
        self.sent_again = False


class TwoDrivers:
    """Asks two drivers in turn; what the first one owes is asked of the second when its death is near, or here.

    Afterwards `unanswered` counts what the first one still owed, `twofold` the queries that both of them answered,
    `differing` those of them with different answers (rule 1), and `account` is what second answers took.
    """

    def __init__(self, first: DriverApart, second: Ask) -> None:
        self._first = first
        self._second = second
        self._lock = threading.RLock()
        self._late_answer = threading.Semaphore(0)
        self._asked = 0
        self._owed: set[_Shared] = set()
        self.unanswered = 0
        self.twofold = 0
        self.differing = 0
        self.account = Account()

    def ask(self, batch: Batch) -> Future[Reply]:
        """Start a query at the driver whose turn it is."""
        with self._lock:
            self._asked += 1
            if self._asked % 2:
                return self._second(batch)
            query = _Shared(batch)
            self._owed.add(query)
        self._first.ask(batch).add_done_callback(lambda done: self._first_ended(query, done))
        return query.answer

    def lose_the_first(self, patience_s: float) -> str:
        """Ask the second driver what the first one owes, let that answer a few more, kill it, and say how it went."""
        with self._lock:
            owed = [*self._owed]
        for query in owed:
            self._ask_second(query)
        for _ in range(min(_SOME, len(owed))):
            self._late_answer.acquire(timeout=patience_s)
        self._first.kill()
        with self._lock:
            return f"{len(owed)} queries sent again, {self.unanswered} never answered by the driver that died"

    def _ask_second(self, query: _Shared) -> None:
        with self._lock:
            if query.sent_again:
                return
            query.sent_again = True
        self._second(query.batch).add_done_callback(lambda done: self._take(query, done))

    def _first_ended(self, query: _Shared, done: Future[Reply]) -> None:
        """Take the first driver's answer, or ask the second one."""
        with self._lock:
            self._owed.discard(query)
            self.unanswered += _reply(done) is None
        if _reply(done) is None:
            self._ask_second(query)
            return
        self._take(query, done)
        if query.sent_again:
            self._late_answer.release()

    def _take(self, query: _Shared, done: Future[Reply]) -> None:
        """Let the first answer be the query's, and compare a second one with it."""
        reply = _reply(done)
        if reply is None:
            with suppress(InvalidStateError):
                query.answer.set_exception(done.exception())
            return
        with self._lock:
            query.replies.append(reply)
            if len(query.replies) > 1:
                self.twofold += 1
                self.differing += not difference(reply.logits, query.replies[0].logits).exact
                self.account += reply.account
        with suppress(InvalidStateError):
            query.answer.set_result(reply)


def _reply(done: Future[Reply]) -> Reply | None:
    return None if done.cancelled() or done.exception() else done.result()
