"""Asynchronous queries: their state lies in the drivers' common store, so that every driver can return it.

    POST, Prefer: respond-async ──▶ 202 {id, "queued"}       a task of this driver's runs the query,
    GET /v1/results/ID          ──▶ {"running", stages}      and writes its progress, twice a second at most
    GET /v1/results/ID          ──▶ {"done", result}         until its time to live has passed
    DELETE /v1/results/ID       ──▶ gone; the driver that runs it stops at once, or within two seconds if it is another

Only the sender of a query can read its state: the key in the store depends on the owner, and the id is random. Each
write names the version that it replaces, so a job that was deleted or restarted by another driver stays so. Where the
driver dies the state stays as it was until the query's deadline, and is a failure from then on.

A job's requests to the store: 1 put when it begins, 1 for each progress and for the end, and 1 get every two seconds.
With an Idempotency-Key, 1 put more, and 2 gets for each retry.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from http import HTTPStatus
from typing import Any, NamedTuple

from serfer.api.http.problems import Problem, problem_of
from serfer.api.requests import IdempotencyKey
from serfer.core.errors import SerferError
from serfer.core.run_machine import StageRun
from serfer.core.served import StageProgress
from storage.coordination import Coordination, set_once

_TICK_S = 0.5  # between two checks of the stages
_LOOK_S = 2.0  # between two checks whether another driver deleted the job
_OPEN = ("queued", "running")
_GRACE_S = 5.0  # beyond its deadline, until a query whose driver writes nothing counts as lost
Watch = Callable[[Sequence[StageRun]], None]


@dataclass(frozen=True)
class Job:
    """A query to run later: its id and owner, a digest of its request, and its deadline on the clock.

    `key_name` is the name of its idempotency key, empty where it has none; jobs of one name are one job.
    """

    id: str
    owner: str
    model: str
    digest: str
    deadline: float
    key_name: str = ""

    @property
    def key(self) -> str:
        """The key of its state, which depends on the owner."""
        return f"serfer:later:{hashlib.sha256(f'{len(self.owner)}:{self.owner}:{self.id}'.encode()).hexdigest()}"


def new_job(owner: str, model: str, idempotency_key: IdempotencyKey | None, deadline: float) -> Job:
    """Return a job with an id that cannot be guessed."""
    name, digest = (idempotency_key.name, idempotency_key.digest) if idempotency_key else ("", "")
    return Job(secrets.token_hex(16), owner, model, digest, deadline, name)


@dataclass(frozen=True)
class _State:
    """A job's state as it lies in the store; `run` names the attempt that may write there."""

    id: str
    run: str
    status: str
    model: str
    created: float
    digest: str
    deadline: float
    stages: Sequence[StageProgress] = ()
    result: dict[str, Any] | None = None
    problem: dict[str, Any] | None = None

    def public(self) -> dict[str, Any]:
        """Return the owner's view."""
        plain = asdict(self)
        del plain["run"], plain["digest"], plain["deadline"]
        return plain


class _Kept(NamedTuple):
    """A job's state and its version in the store."""

    state: _State
    version: str


class Results:
    """Jobs of this driver, and states of all drivers' jobs, kept for `ttl_s` seconds after their deadline."""

    def __init__(self, coordination: Coordination, ttl_s: float, clock: Callable[[], float] = time.time) -> None:
        self._coordination = coordination
        self._ttl_s = ttl_s
        self._clock = clock
        self._running: dict[str, asyncio.Task[None]] = {}

    async def begin(
        self,
        job: Job,
        work: Callable[[Watch], Awaitable[dict[str, Any]]],
        progress: Callable[[Sequence[StageRun]], Sequence[StageProgress]],
        ended: Callable[[], None],
    ) -> dict[str, Any]:
        """Start `work` unless the same job was started before, here or elsewhere; return its state.

        `ended` is called when nothing of the request is needed any more. Raises Problem 422 where the key came with
        another request. After a failure the same request runs again; of two drivers that try at once, one runs it.
        """
        job = await self._named(job)
        state = _State(
            id=job.id,
            run=secrets.token_hex(8),
            status="queued",
            model=job.model,
            created=self._clock(),
            digest=job.digest,
            deadline=job.deadline,
            stages=progress(()),
        )
        own, left_s = _packed(state), self._left_s(job.deadline)
        entry = await asyncio.to_thread(set_once, self._coordination, job.key, own, left_s, self._stays)
        if entry.value is not own:
            begun = self._current(_unpacked(entry.value))
            if begun.digest != job.digest:
                raise Problem(
                    HTTPStatus.UNPROCESSABLE_ENTITY, "this Idempotency-Key came with another request: use a new one"
                )
            ended()
            return begun.public()
        task = asyncio.create_task(self._run(job.key, _Kept(state, entry.version), work, progress))
        self._running[job.key] = task
        task.add_done_callback(lambda done: self._running.pop(job.key) if self._running.get(job.key) is done else None)
        task.add_done_callback(lambda _: ended())
        return state.public()

    async def find(self, job_id: str, owner: str) -> dict[str, Any]:
        """Return a job's state; raises Problem 404 where there is none, or another's."""
        state = await self._find(_job(job_id, owner).key)
        if state is None:
            raise _unknown()
        return state.public()

    async def cancel(self, job_id: str, owner: str) -> None:
        """Delete a job, and stop it wherever it runs; raises Problem 404 where there is none, or another's."""
        key = _job(job_id, owner).key
        if await self._find(key) is None:
            raise _unknown()
        running = self._running.get(key)
        if running is not None:
            running.cancel()
            await asyncio.wait((running,))
        await asyncio.to_thread(self._coordination.delete, [key])

    async def close(self, most_s: float) -> None:
        """Wait until every job of this driver has ended; those that take longer than `most_s` are stopped."""
        if self._running:
            _, left = await asyncio.wait([*self._running.values()], timeout=most_s)
            for task in left:
                task.cancel()

    async def _run(
        self,
        key: str,
        kept: _Kept,
        work: Callable[[Watch], Awaitable[dict[str, Any]]],
        progress: Callable[[Sequence[StageRun]], Sequence[StageProgress]],
    ) -> None:
        stages: list[Sequence[StageRun]] = []
        doing = asyncio.ensure_future(work(stages.append))
        ticks = 0
        try:
            while not doing.done():
                await asyncio.wait((doing,), timeout=_TICK_S)
                ticks += 1
                state, now = kept.state, progress(stages[-1]) if stages else kept.state.stages
                if now != state.stages or bool(stages) != (state.status == "running"):
                    status = "running" if stages else "queued"
                    kept = await self._replace(key, kept, replace(state, status=status, stages=now))
                if ticks * _TICK_S % _LOOK_S == 0 and await asyncio.to_thread(self._is_gone, key, kept.state):
                    return
            ended = _ended(kept.state, doing, progress(stages[-1]) if stages else kept.state.stages)
            await self._replace(key, kept, ended)
        except Exception as bug:  # what is asked for would be "running" until its deadline
            problem = problem_of(bug).as_dict("")
            await self._replace(key, kept, replace(kept.state, status="failed", problem=problem))
            raise
        finally:
            doing.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await doing

    def _is_gone(self, key: str, state: _State) -> bool:
        """Return whether another driver deleted the job, or began it again, as far as is known."""
        try:
            entry = self._coordination.get(key)
        except SerferError:
            return False
        return entry is None or _unpacked(entry.value).run != state.run

    async def _replace(self, key: str, kept: _Kept, state: _State) -> _Kept:
        """Write a state in place of the last one; where the store fails, the next write may succeed.

        Raises CancelledError where the job was deleted or restarted. A cancelled caller waits until the write has
        ended.
        """
        writing = asyncio.ensure_future(asyncio.to_thread(self._replaced, key, kept, state))
        try:
            version = await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait((writing,))
            raise
        if version is None:
            raise asyncio.CancelledError
        return _Kept(state, version)

    def _replaced(self, key: str, kept: _Kept, state: _State) -> str | None:
        """Return the version after a write, the old one where the store failed, None where another run's is there."""
        try:
            version = self._write(key, kept.version, state)
            entry = self._coordination.get(key) if version is None else None
            if entry is not None and _unpacked(entry.value).run == state.run:  # the last write's response was lost
                version = self._write(key, entry.version, state)
        except SerferError:
            return kept.version
        return version

    async def _named(self, job: Job) -> Job:
        """Return the job with the id that its idempotency key has; the first job of a key gives its own."""
        if not job.key_name:
            return job
        key, left_s, own = f"serfer:result-id:{job.key_name}", self._left_s(job.deadline), job.id.encode()
        entry = await asyncio.to_thread(set_once, self._coordination, key, own, left_s)
        return replace(job, id=entry.value.decode())

    def _write(self, key: str, version: str, state: _State) -> str | None:
        return self._coordination.compare_and_set(key, version, _packed(state), self._left_s(state.deadline))

    def _left_s(self, deadline: float) -> float:
        """Return for how long a job is kept that may run until a deadline."""
        return max(0.0, deadline - self._clock()) + _GRACE_S + self._ttl_s

    def _stays(self, value: bytes) -> bool:
        """Return whether a job that was begun before is not begun again."""
        return self._current(_unpacked(value)).status != "failed"

    async def _find(self, key: str) -> _State | None:
        entry = await asyncio.to_thread(self._coordination.get, key)
        return None if entry is None else self._current(_unpacked(entry.value))

    def _current(self, state: _State) -> _State:
        """Return a state that was read, as it is after its deadline: failed, where its driver did not end it."""
        if state.status in _OPEN and self._clock() > state.deadline + _GRACE_S:
            lost = Problem(HTTPStatus.SERVICE_UNAVAILABLE, "the driver that ran this query is gone: send it again")
            return replace(state, status="failed", problem=lost.as_dict(""))
        return state


def _packed(state: _State) -> bytes:
    return json.dumps(asdict(state), allow_nan=False).encode()


def _unpacked(value: bytes) -> _State:
    return _State(**json.loads(value))


def _ended(state: _State, doing: asyncio.Future[dict[str, Any]], stages: Sequence[StageProgress]) -> _State:
    error = doing.exception()
    if error is None:
        return replace(state, status="done", stages=stages, result=doing.result())
    problem = problem_of(error) if isinstance(error, Exception) else problem_of(RuntimeError())
    return replace(state, status="failed", stages=stages, problem=problem.as_dict(""))


def _job(job_id: str, owner: str) -> Job:
    return Job(job_id, owner, "", "", 0.0)


def _unknown() -> Problem:
    return Problem(HTTPStatus.NOT_FOUND, "no such result: it was never requested, has expired, or was deleted")
