"""The clients of a chaos scenario: they send queries to one driver or two, and add up what the queries took."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any

from numpy.typing import NDArray

from serfer.core.exactness import difference
from serfer.pipeline.result import Logits
from serfer_bench.chaos.budget import InvocationBudget, Reply
from serfer_bench.chaos.remote_driver import RemoteDriver

Batch = NDArray[Any]
Submit = Callable[[Batch], Future[Reply]]
_LATE_ANSWERS = 3  # of a driver that is about to be killed, for queries that were sent to the other one already


class Clients:
    """Sends queries and adds up their budgets; a fault can wait until a share of them has ended."""

    def __init__(self, submit: Submit, queries: int) -> None:
        self._submit = submit
        self._queries = queries
        self._change = threading.Condition()
        self._ended = 0
        self._stopped = False
        self.budget = InvocationBudget()
        self.served: list[float] = []  # seconds, of answered queries

    def submit(self, batch: Batch) -> Future[Logits]:
        answer: Future[Logits] = Future()
        query = self._submit(batch)
        query.add_done_callback(lambda done: self._end(done, answer))
        answer.add_done_callback(lambda given: given.cancelled() and query.cancel())
        return answer

    def wait(self, share: float) -> bool:
        with self._change:
            self._change.wait_for(lambda: self._stopped or self._ended >= share * self._queries)
            return not self._stopped

    @property
    def share_ended(self) -> float:
        return self._ended / self._queries

    def stop(self) -> None:
        with self._change:
            self._stopped = True
            self._change.notify_all()

    def _end(self, done: Future[Reply], answer: Future[Logits]) -> None:
        reply = _reply(done)
        with self._change:
            self._ended += 1
            if reply:
                self.budget += reply.budget
                self.served.append(reply.served_s)
            self._change.notify_all()
        with suppress(InvalidStateError):  # it was cancelled
            if reply:
                answer.set_result(reply.logits)
            elif not done.cancelled():
                answer.set_exception(done.exception())
            else:
                answer.cancel()


class _SharedQuery:
    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.answer: Future[Reply] = Future()
        self.replies: list[Reply] = []
        self.sent_again = False


class TwoDrivers:
    """Sends queries to two drivers in turn; what the first one owes is sent to the second before and after its death.

    Afterwards `unanswered` counts what the first one still owed, `duplicates` the queries that both of them answered,
    `conflicting` those of them with different answers (rule 1), and `budget` is what second answers took.
    """

    def __init__(self, first: RemoteDriver, second: Submit) -> None:
        self._first = first
        self._second = second
        self._lock = threading.RLock()
        self._late_answer = threading.Semaphore(0)
        self._sent = 0
        self._owed: set[_SharedQuery] = set()
        self.unanswered = 0
        self.duplicates = 0
        self.conflicting = 0
        self.budget = InvocationBudget()

    def submit(self, batch: Batch) -> Future[Reply]:
        with self._lock:
            self._sent += 1
            if self._sent % 2:
                return self._second(batch)
            query = _SharedQuery(batch)
            self._owed.add(query)
        self._first.submit(batch).add_done_callback(lambda done: self._first_ended(query, done))
        return query.answer

    def kill_first(self, patience_s: float) -> str:
        with self._lock:
            owed = [*self._owed]
        for query in owed:
            self._send_again(query)
        for _ in range(min(_LATE_ANSWERS, len(owed))):
            self._late_answer.acquire(timeout=patience_s)
        self._first.kill()
        with self._lock:
            return f"{len(owed)} queries sent again, {self.unanswered} never answered by the driver that died"

    def _send_again(self, query: _SharedQuery) -> None:
        with self._lock:
            if query.sent_again:
                return
            query.sent_again = True
        self._second(query.batch).add_done_callback(lambda done: self._take(query, done))

    def _first_ended(self, query: _SharedQuery, done: Future[Reply]) -> None:
        with self._lock:
            self._owed.discard(query)
            self.unanswered += _reply(done) is None
        if _reply(done) is None:
            self._send_again(query)
            return
        self._take(query, done)
        if query.sent_again:
            self._late_answer.release()

    def _take(self, query: _SharedQuery, done: Future[Reply]) -> None:
        reply = _reply(done)
        if reply is None:
            with suppress(InvalidStateError):
                query.answer.set_exception(done.exception())
            return
        with self._lock:
            query.replies.append(reply)
            if len(query.replies) > 1:
                self.duplicates += 1
                self.conflicting += not difference(reply.logits, query.replies[0].logits).exact
                self.budget += reply.budget
        with suppress(InvalidStateError):
            query.answer.set_result(reply)


def _reply(done: Future[Reply]) -> Reply | None:
    return None if done.cancelled() or done.exception() else done.result()
