"""What a pipeline's queries have in use of what all invocations of its functions share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from serfer.control.throttle import Occupancy
from serfer.drivers.dispatching.priority_semaphore import PrioritySemaphore

if TYPE_CHECKING:
    from serfer.drivers.lambda_http import LambdaInvoker


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
        """Return the load now."""
        slots, (since, before) = self._slots, self._read
        now, seconds = self._read = slots.slot_seconds()
        if now > since:
            self._occupancy.change(since, (seconds - before) / (now - since))
        share = self._occupancy.mean(now) / slots.limit
        throttled = self._invoker.throttled if self._invoker else 0
        return FunctionLoad(slots.used, slots.limit, share, throttled, self._of_account)
