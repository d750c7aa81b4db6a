"""Whether what a pipeline needs is there: its store answers, its functions can be invoked and have room."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serfer.control.throttle import Occupancy
from serfer.core.errors import SerferError
from serfer.core.keys import NO_QUERY, input_key, output_key
from serfer.core.plan import Plan
from serfer.core.report import FunctionLoad
from serfer.core.run_machine import Failure, FailureKind
from serfer.core.wire import WarmUp
from serfer.drivers.dispatching.priority_semaphore import PrioritySemaphore
from serfer.storage.store import Store

if TYPE_CHECKING:
    from serfer.drivers.lambda_http import LambdaInvoker


class FunctionGauge:
    """Reads the load of functions from the slots that their invocations take, and from the invoker.

    What was in use between two readings counts with its mean, so the share is exact where it is read often.
    """

    def __init__(self, slots: PrioritySemaphore, invoker: LambdaInvoker | None, *, of_account: bool) -> None:
        self._slots = slots
        self._invoker = invoker
        self._of_account = of_account
        self._occupancy = Occupancy()
        self._read = slots.slot_seconds()

    def read(self) -> FunctionLoad:
        slots, (since, before) = self._slots, self._read
        now, seconds = self._read = slots.slot_seconds()
        if now > since:
            self._occupancy.change(since, (seconds - before) / (now - since))
        share = self._occupancy.mean(now) / slots.limit
        throttled = self._invoker.throttled if self._invoker else 0
        return FunctionLoad(slots.used, slots.limit, share, throttled, self._of_account)


_PATIENCE_S = 5.0
_WRITE_S, _TTL_S = 10.0, 60.0  # between two writes while the store takes them: S3 bills each like a dozen reads


@dataclass(frozen=True)
class Health:
    """The errors of the store and of the functions, each in one line; empty where there is none.

    `busy` says that Lambda had no room for the look itself: nothing is known to be wrong, and another driver, or a new
    one, would have no more room.
    """

    store: str = ""
    functions: str = ""
    busy: bool = False

    @property
    def ready(self) -> bool:
        return not (self.store or self.functions)


class Probe:
    """Looks at a plan's store and functions, and at those of its cold plan, if there is one.

    Workers in process, for which `functions` is None, are always there.
    """

    def __init__(self, plan: Plan, store: Store, functions: LambdaInvoker | None, cold: Plan | None = None) -> None:
        self._plan = plan
        self._plans = [plan, *([cold] if cold else [])]
        self.store = store
        self._functions = functions
        self._writes_at = 0.0
        self._thread = ThreadPoolExecutor(1, "serfer-health")  # the driver's own calls may be waiting for the store

    async def look(self, *, start: bool = False) -> Health:
        """Return what is wrong. With `start`, an environment of every function has to get ready, which Lambda bills."""
        store, failures = await asyncio.gather(self._look_at_store(), self._look_at_functions(start=start))
        wrong = [failure for failure in failures if failure.kind is not FailureKind.THROTTLED]
        functions = f"{wrong[0].kind.value}: {wrong[0].message}" if wrong else ""
        return Health(store, functions, busy=len(wrong) < len(failures))

    async def _look_at_store(self) -> str:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self._thread, self._use_store, loop.time())
        except TimeoutError:
            return f"the store did not answer within {_PATIENCE_S:g} s"
        except SerferError as error:
            return str(error)
        return ""

    def _use_store(self, now: float) -> None:
        """Read, and now and again write: a store that is full, or read-only, still answers who reads."""
        self.store.exists(probes(self._plan))
        if now >= self._writes_at:
            apart = [number for number, stage in enumerate(self._plan.stages) if stage.path == "objects"][:1]
            keys = [input_key(NO_QUERY, 0), *(output_key(NO_QUERY, number, 0) for number in apart)]
            for key in keys:
                self.store.put(key, b"0", _TTL_S)
            self.store.delete(keys)
            self._writes_at = now + _WRITE_S

    async def _look_at_functions(self, *, start: bool) -> list[Failure]:
        if self._functions is None:
            return []
        looks = [
            self._functions.warm(plan.function(stage, part), WarmUp(plan.digest, stage, part, 0.0))
            if start
            else self._functions.check(plan.function(stage, part))
            for plan in self._plans
            for stage, part in plan.functions
        ]
        results = await asyncio.gather(*looks)
        return [failure for failure in results if isinstance(failure, Failure)]


def probes(plan: Plan) -> list[str]:
    return [input_key(NO_QUERY, 0), *(output_key(NO_QUERY, number, 0) for number in range(len(plan.stages)))]
