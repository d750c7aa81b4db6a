"""Invokes a deployed stage on inputs that lie in its store, and times it: cold environments first, then a warm one."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from serfer.core.checksum import protect
from serfer.core.errors import TaskFailedError, UnavailableError
from serfer.core.keys import input_key, output_key
from serfer.core.plan import Plan
from serfer.core.run_machine import Failure
from serfer.core.wire import DTYPES, MAX_BATCH, Crop, Task
from serfer.drivers.lambda_http import LambdaInvoker
from serfer.sam.measure import Sample
from serfer.storage.store import Store

COLD = 3
"""Invocations at once at the start: environments that have to be started. A new account may have ten."""
WARM, LARGE = 40, 10
"""Invocations one after the other on one image, and on so many images that the input has some megabytes."""
_LARGE_BYTES = 4_000_000
_TTL_S = 900.0
_TIMEOUT_S = 60.0
_CONNECTIONS = 5
_DTYPE = "float32"


@dataclass(frozen=True)
class Samples:
    """Samples of environments that were started for the probe, and of warm ones."""

    cold: list[Sample]
    warm: list[Sample]


def large_batch(plan: Plan) -> int:
    """Return how many images make an input of some megabytes of the plan's first tile."""
    return min(MAX_BATCH, max(2, math.ceil(_LARGE_BYTES / _input_bytes(plan, 1))))


async def probe(
    plan: Plan, invoker: LambdaInvoker, store: Store, endpoint: str, spend: Callable[[Sample], None]
) -> Samples:
    """Time the first tile of a plan; `spend` gets every sample and may raise to stop.

    Raises TaskFailedError where an invocation fails, UnavailableError where `endpoint` does not answer. Its keys are
    deleted, however it ends.
    """
    network_s = await _network_seconds(endpoint)
    small = Task(plan.digest, secrets.token_hex(16), 0, 0, 1, _TTL_S, crop=Crop(_DTYPE, None))
    large = replace(small, query=secrets.token_hex(16), batch=large_batch(plan))
    keys = [key for task in (small, large) for key in (input_key(task.query, 0), output_key(task.query, 0, 0))]

    async def sample(task: Task) -> Sample:
        measured = await _timed(plan, invoker, task, network_s)
        spend(measured)
        return measured

    try:
        for task in (small, large):
            key = input_key(task.query, 0)
            await asyncio.to_thread(store.put, key, protect(bytes(_input_bytes(plan, task.batch)), key), _TTL_S)
        started = await asyncio.gather(*(sample(small) for _ in range(COLD)))
        for task in (small, large):
            await sample(task)  # opens connections, and makes room for the larger size
        later = [await sample(task) for task, count in ((small, WARM), (large, LARGE)) for _ in range(count)]
    finally:
        await asyncio.to_thread(store.delete, keys)
    every = [*started, *later]
    return Samples(*([one for one in every if (one.report.init_ms > 0) is cold] for cold in (True, False)))


async def _timed(plan: Plan, invoker: LambdaInvoker, task: Task, network_s: float) -> Sample:
    clock = asyncio.get_running_loop().time
    function = plan.function(0, plan.stages[0].tiles[0].function)
    started = clock()
    answer = await invoker.invoke(function, task, _TIMEOUT_S)
    taken = clock() - started
    if isinstance(answer, Failure):
        raise TaskFailedError(f"{invoker.called(function)}: {answer.kind.value}: {answer.message}")
    return Sample(taken - network_s, answer)


async def _network_seconds(endpoint: str) -> float:
    """Return the time of one round trip to an endpoint: what the fastest of some connections takes to open."""
    address = urlsplit(endpoint)
    port = address.port or (443 if address.scheme == "https" else 80)
    clock, fastest = asyncio.get_running_loop().time, math.inf
    for _ in range(_CONNECTIONS):
        started = clock()
        try:
            _, writer = await asyncio.open_connection(address.hostname, port)
        except OSError as error:
            raise UnavailableError(f"{endpoint} cannot be reached: {error}") from error
        fastest = min(fastest, clock() - started)
        writer.close()
    return fastest


def _input_bytes(plan: Plan, batch: int) -> int:
    stage = plan.stages[0]
    return math.prod(stage.inputs[0].shape.of(stage.tiles[0].inputs[0], batch)) * DTYPES[_DTYPE]
