"""Queries that nobody waits for: their state lies in the drivers' common store, and every driver can tell it.

    POST, Prefer: respond-async ──▶ 202 {id, "queued"}       a task of this driver's runs the query,
    GET /v1/results/ID          ──▶ {"running", stages}      and writes down how far it is, twice a second at most
    GET /v1/results/ID          ──▶ {"done", result}         until its time to live has passed
    DELETE /v1/results/ID       ──▶ gone; the driver that runs it stops at once, or within two seconds if it is another

A state can be read by whoever sent the query alone: the key of the store holds its owner too, and the id is random.
Where the driver dies the state stays as it was until the query's deadline, and is a failure from then on.

What a job asks of the store: 1 put when it begins, 1 get every two seconds, 1 get and 1 put for each progress that is
written down and for the end, and 1 get at the end. With an Idempotency-Key, 1 put more, and 1 get for each retry.
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
from typing import Any

from serfer.api.http.problems import Problem, problem_of
from serfer.api.requests import Once
from serfer.core.errors import MissingKeyError, SerferError
from serfer.core.run import StageRun
from serfer.core.served import StageProgress
from storage.store import Store

_TICK_S = 0.5  # between two looks at the stages
_LOOK_S = 2.0  # between two looks whether another driver was told to delete the job
_OPEN = ("queued", "running")
_GRACE_S = 5.0  # beyond its deadline, until a query whose driver says nothing counts as lost
Watch = Callable[[Sequence[StageRun]], None]


@dataclass(frozen=True)
class Job:
    """A query to run later: its id and owner, what it asks (a digest), and when it has to be answered, on the clock.

    `once` is the name of its idempotency key, empty where it has none; jobs of one name are one job.
    """

    id: str
    owner: str
    model: str
    digest: str
    deadline: float
    once: str = ""

    @property
    def key(self) -> str:
        """The key of its state; who does not know the owner cannot make it."""
        return f"serfer:job:{hashlib.sha256(f'{len(self.owner)}:{self.owner}:{self.id}'.encode()).hexdigest()}"


def new_job(owner: str, model: str, once: Once | None, deadline: float) -> Job:
    """Return a job with an id that nobody can guess."""
    name, digest = (once.name, once.digest) if once else ("", "")
    return Job(secrets.token_hex(16), owner, model, digest, deadline, name)


@dataclass(frozen=True)
class _State:
    """What is known of a job, as it lies in the store; `run` is the name of the try that may write there."""

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
        """Return what the owner is shown."""
        plain = asdict(self)
        del plain["run"], plain["digest"], plain["deadline"]
        return plain


class Results:
    """Jobs of this driver, and states of all drivers' jobs in `store`, for `ttl_s` seconds after their deadline."""

    def __init__(self, store: Store, ttl_s: float, clock: Callable[[], float] = time.time) -> None:
        self._store = store
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
        """Start `work` unless the same job was begun before, here or elsewhere; return its state.

        `ended` is called when nothing of the request is needed any more. Raises Problem 422 where that asked something
        else. After a failure the same request is tried anew; where two drivers do so at once, the one whose state lies
        in the store goes on.
        """
        job = await self._named(job)
        state = _State(
            *(job.id, secrets.token_hex(8), "queued", job.model, self._clock(), job.digest, job.deadline, progress(()))
        )
        if not await asyncio.to_thread(self._put_first, job.key, state):
            found = await self._find(job.key)
            if found is not None and found.status != "failed":
                if found.digest != job.digest:
                    raise Problem(
                        HTTPStatus.UNPROCESSABLE_ENTITY, "this Idempotency-Key came with another request: use a new one"
                    )
                ended()
                return found.public()
            await asyncio.to_thread(self._store.put, job.key, _packed(state), self._left_s(state))
        task = asyncio.create_task(self._run(job.key, state, work, progress))
        self._running[job.key] = task
        task.add_done_callback(lambda done: self._running.pop(job.key) if self._running.get(job.key) is done else None)
        task.add_done_callback(lambda _: ended())
        return state.public()

    async def find(self, job_id: str, owner: str) -> dict[str, Any]:
        """Return a job's state; raises Problem 404 where there is none, or another's."""
        found = await self._find(_job(job_id, owner).key)
        if found is None:
            raise _unknown()
        return found.public()

    async def cancel(self, job_id: str, owner: str) -> None:
        """Forget a job, and stop it wherever it runs; raises Problem 404 where there is none, or another's."""
        key = _job(job_id, owner).key
        found = await self._find(key)
        if found is None:
            raise _unknown()
        running = self._running.get(key)
        if running is not None:
            running.cancel()
            await asyncio.wait((running,))
        elif found.status in _OPEN:
            await asyncio.to_thread(self._store.put, _stop_key(found), b"1", self._left_s(found))
        await asyncio.to_thread(self._store.delete, [key])

    async def close(self, most_s: float) -> None:
        """Wait until every job of this driver has ended; those that take longer than `most_s` are stopped."""
        if self._running:
            _, left = await asyncio.wait([*self._running.values()], timeout=most_s)
            for task in left:
                task.cancel()

    async def _run(
        self,
        key: str,
        state: _State,
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
                now = progress(stages[-1]) if stages else state.stages
                if now != state.stages or bool(stages) != (state.status == "running"):
                    state = replace(state, status="running" if stages else "queued", stages=now)
                    await self._put(key, state)
                if ticks * _TICK_S % _LOOK_S == 0 and await self._stopped(key, state):
                    return
            await self._put(key, _ended(state, doing, progress(stages[-1]) if stages else state.stages))
            await self._stopped(key, state)
        finally:
            doing.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await doing

    async def _stopped(self, key: str, state: _State) -> bool:
        """Say whether another driver was told to delete the job; then delete what was written down since."""
        try:
            [told] = await asyncio.to_thread(self._store.exists, [_stop_key(state)])
            if not told:
                return False
            if await asyncio.to_thread(self._is_mine, key, state):
                await asyncio.to_thread(self._store.delete, [key])
        except SerferError:
            return False
        return True

    async def _put(self, key: str, state: _State) -> None:
        """Write a state down unless the job was deleted or begun again; where the store fails, the next may succeed.

        Raises CancelledError in both cases. A cancelled caller waits until nothing is being written any more.
        """
        putting = asyncio.ensure_future(asyncio.to_thread(self._put_mine, key, state))
        try:
            wanted = await asyncio.shield(putting)
        except asyncio.CancelledError:
            await asyncio.wait((putting,))
            raise
        if not wanted:
            raise asyncio.CancelledError

    def _put_mine(self, key: str, state: _State) -> bool:
        """Put a state in place of an older one of its run, and say whether there was one, as far as is known."""
        try:
            if not self._is_mine(key, state):
                return False
            self._store.put(key, _packed(state), self._left_s(state))
        except SerferError:
            return True
        return True

    def _is_mine(self, key: str, state: _State) -> bool:
        """Say whether the state in the store is of the same run; raises the store's errors."""
        try:
            return bool(json.loads(self._store.get(key))["run"] == state.run)
        except MissingKeyError:
            return False

    async def _named(self, job: Job) -> Job:
        """Return the job with the id that its idempotency key has; the first job of a key gives its own."""
        if not job.once:
            return job
        key, left_s = f"serfer:job-id:{job.once}", max(0.0, job.deadline - self._clock()) + _GRACE_S + self._ttl_s

        def known() -> str:
            if self._store.put_new(key, job.id.encode(), left_s):
                return job.id
            try:
                return self._store.get(key).decode()
            except MissingKeyError:  # it has expired this moment
                return job.id

        return replace(job, id=await asyncio.to_thread(known))

    def _put_first(self, key: str, state: _State) -> bool:
        return self._store.put_new(key, _packed(state), self._left_s(state))

    def _left_s(self, state: _State) -> float:
        return max(0.0, state.deadline - self._clock()) + _GRACE_S + self._ttl_s

    async def _find(self, key: str) -> _State | None:
        try:
            value = await asyncio.to_thread(self._store.get, key)
        except MissingKeyError:
            return None
        state = _State(**json.loads(value))
        if state.status in _OPEN and self._clock() > state.deadline + _GRACE_S:
            lost = Problem(HTTPStatus.SERVICE_UNAVAILABLE, "the driver that ran this query is gone: send it again")
            return replace(state, status="failed", problem=lost.as_dict(""))
        return state


def _ended(state: _State, doing: asyncio.Future[dict[str, Any]], stages: Sequence[StageProgress]) -> _State:
    error = doing.exception()
    if error is None:
        return replace(state, status="done", stages=stages, result=doing.result())
    problem = problem_of(error) if isinstance(error, Exception) else problem_of(RuntimeError())
    return replace(state, status="failed", stages=stages, problem=problem.as_dict(""))


def _job(job_id: str, owner: str) -> Job:
    return Job(job_id, owner, "", "", 0.0)


def _stop_key(state: _State) -> str:
    return f"serfer:job-stop:{state.run}"


def _packed(state: _State) -> bytes:
    return json.dumps(asdict(state), allow_nan=False).encode()


def _unknown() -> Problem:
    return Problem(HTTPStatus.NOT_FOUND, "no such result: it was never asked for, is expired, or was deleted")
