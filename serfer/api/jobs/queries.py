"""Asynchronous queries: their records lie in the drivers' common store, so that every driver can return them.

    POST, Prefer: respond-async ──▶ 202 {id, "queued"}       a job of this driver's runs the query (runner.py),
    GET /v1/results/ID          ──▶ {"running", stages}      and writes its progress, twice a second at most
    GET /v1/results/ID          ──▶ {"done", result}         until its time to live has passed
    DELETE /v1/results/ID       ──▶ gone; the driver that runs it stops at once, or within two seconds if it is another

Only the sender of a query can read its record: the key in the store depends on the owner, and the id is random. Where
the driver dies the record stays as it was until the query's deadline, and is a failure from then on.

A query's requests to the store: 1 put when it begins, 1 for each progress and for the end, 1 every two seconds without
progress. With an Idempotency-Key, 1 put more, and 3 gets for each retry.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from serfer.api.http.problems import Problem
from serfer.api.jobs.runner import ActiveJob, JobRecord, JobState, Runner, job_key
from serfer.api.requests import IdempotencyKey
from serfer.core.http_messages import StageProgress
from serfer.core.run_machine import StageRun
from serfer.storage.coordination import Coordination, set_once

BEAT_S: Final = 2.0
_GRACE_S: Final = 5.0  # beyond its deadline, until a query whose driver writes nothing counts as lost
_KIND: Final = "later"
Watch = Callable[[Sequence[StageRun]], None]


@dataclass(frozen=True)
class AsyncQuery:
    """A query to run later: who sent it, for which model, and its deadline in Unix time.

    `answer` returns its answer and `progress` how far its stages are. `ended` is called when nothing of the request is
    needed any more. Those of one owner with the same idempotency key are one query.
    """

    owner: str
    model: str
    deadline: float
    idempotency_key: IdempotencyKey | None
    answer: Callable[[Watch], Awaitable[dict[str, Any]]]
    progress: Callable[[Sequence[StageRun]], Sequence[StageProgress]]
    ended: Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRecord(JobRecord):
    """A query's record: `run` is its run's name, `digest` its request's, "" without a key, its times are Unix times."""

    run: str
    model: str
    created: float
    digest: str
    deadline: float
    stages: Sequence[StageProgress] = ()
    result: dict[str, Any] | None = None
    problem: dict[str, Any] | None = None

    @property
    def silent_at(self) -> float:
        """From when on it counts as lost: its driver would have ended it by then."""
        return self.deadline + _GRACE_S

    def with_end(self, state: JobState, problem: Problem | None = None) -> QueryRecord:
        """Return the record of a query that is done, or has failed: so has one whose driver was stopped or killed."""
        if state is JobState.DONE:
            return replace(self, state=state)
        lost = Problem(503, "the driver that ran this query is gone: send it again")
        return replace(self, state=JobState.FAILED, problem=(problem or lost).as_dict(""))

    def shares_run(self, other: QueryRecord) -> bool:
        """Return whether one run has written both records: what has failed runs again."""
        return self.run == other.run

    def answers(self, request: QueryRecord) -> bool:
        """Return whether it has not failed; raises Problem 422 where its key came with another request."""
        if self.state is JobState.FAILED:
            return False
        if self.digest != request.digest:
            raise Problem(422, "this Idempotency-Key came with another request: use a new one")
        return True

    def encode(self) -> bytes:
        return json.dumps(self._plain(), allow_nan=False).encode()

    @classmethod
    def decode(cls, key: str, data: bytes) -> QueryRecord:
        del key
        plain = json.loads(data)
        return cls(state=JobState(plain.pop("status")), updated=0.0, **plain)

    def public(self) -> dict[str, Any]:
        return {name: value for name, value in self._plain().items() if name not in ("run", "digest", "deadline")}

    def _plain(self) -> dict[str, Any]:
        plain = asdict(self)
        plain["status"] = plain.pop("state")
        del plain["updated"], plain["detail"]
        return plain


class AsyncQueries:
    """Queries that this driver runs, and records of all drivers', kept for `ttl_s` seconds after their deadline."""

    def __init__(
        self, coordination: Coordination, ttl_s: float, clock: Callable[[], float] = time.time, beat_s: float = BEAT_S
    ) -> None:
        self._coordination = coordination
        self._ttl_s = ttl_s
        self._clock = clock
        self.runner = Runner(
            coordination,
            QueryRecord,
            lambda record: self._kept_s(record.deadline),
            event="asynchronous query",
            beat_s=beat_s,
            turns=nullcontext(),
            unix=clock,
        )

    async def begin(self, query: AsyncQuery) -> dict[str, Any]:
        """Start a query unless the same one was started before, here or elsewhere; return its record.

        Raises Problem 422 where the key came with another request. After a failure the same request runs again; of two
        drivers that try at once, one runs it.
        """
        stages: list[Sequence[StageRun]] = []

        def look(record: QueryRecord) -> QueryRecord:
            return replace(record, state=JobState.RUNNING, stages=query.progress(stages[-1])) if stages else record

        async def work(job: ActiveJob[QueryRecord]) -> None:
            job.look = look
            result = await query.answer(stages.append)
            job.record = replace(job.record, result=result)

        async def after(_: ActiveJob[QueryRecord]) -> None:
            query.ended()

        now, own = self._clock(), secrets.token_hex(16)
        identifier = await self._id_of(query, own)
        fresh = QueryRecord(
            id=identifier,
            updated=now,
            run=secrets.token_hex(8),
            model=query.model,
            created=now,
            digest=query.idempotency_key.digest if query.idempotency_key else "",
            deadline=query.deadline,
            stages=query.progress(()),
        )
        record = await self.runner.begin(job_key(_KIND, query.owner, identifier), fresh, work, after)
        if record is not fresh:
            query.ended()
        return record.public()

    async def find(self, identifier: str, owner: str) -> dict[str, Any]:
        """Return a query's record; raises Problem 404 where there is none, or another's."""
        record = await self.runner.find(job_key(_KIND, owner, identifier))
        if record is None:
            raise Problem(404, "no such result: it was never requested, has expired, or was deleted")
        return record.public()

    async def cancel(self, identifier: str, owner: str) -> None:
        await self.find(identifier, owner)
        await self.runner.cancel(job_key(_KIND, owner, identifier))

    async def _id_of(self, query: AsyncQuery, own: str) -> str:
        if query.idempotency_key is None:
            return own
        key, kept_s = f"serfer:result-id:{query.idempotency_key.name}", self._kept_s(query.deadline)
        entry = await asyncio.to_thread(set_once, self._coordination, key, own.encode(), kept_s)
        return entry.value.decode()

    def _kept_s(self, deadline: float) -> float:
        return max(0.0, deadline - self._clock()) + _GRACE_S + self._ttl_s
