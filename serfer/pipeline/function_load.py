"""What a pipeline's queries have in use of what all invocations of its functions share."""

from __future__ import annotations

from dataclasses import dataclass

from drivers.dispatching.priority_semaphore import PrioritySemaphore
from drivers.lambda_http import LambdaInvoker


@dataclass(frozen=True)
class FunctionLoad:
    """Invocations in flight, of at most `capacity`; `utilisation` is their mean share over the last seconds.

    `throttled` counts those that were refused for lack of room, since the start. With `of_account` the capacity is the
    account's, which other drivers use as well.
    """

    in_flight: int
    capacity: int
    utilisation: float
    throttled: int
    of_account: bool


@dataclass(frozen=True)
class FunctionGauge:
    """Reads the load of functions from the slots that their invocations take, and from the invoker; from any thread."""

    slots: PrioritySemaphore
    invoker: LambdaInvoker | None
    of_account: bool

    def read(self) -> FunctionLoad:
        """Return the load now."""
        slots, throttled = self.slots, self.invoker.throttled if self.invoker else 0
        return FunctionLoad(slots.used, slots.limit, slots.utilisation, throttled, self.of_account)
