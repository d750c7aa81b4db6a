"""BATCH (Ali et al., SC 2020) as INFless' authors rebuilt it: a buffer in front of instances that are alike (5.1)."""

from __future__ import annotations

from typing import Final

from serfer_bench.study.policies.infless.fleet import FrontQueue
from serfer_bench.study.policies.infless.options import Option
from serfer_bench.study.policies.infless.scheduling import pack
from serfer_bench.study.policies.infless.servers import Placement, Servers
from serfer_bench.study.policies.infless.uniform import Uniform


class Batch(Uniform):
    """Buffers requests until a batch is full or times out; all that is launched for a rate is alike.

    The batch is the largest that the rate fills before the timeout, which leaves it its execution time within the SLO
    (INFless' authors found that it "always prefers a larger batch", 5.2); its resources are those of the least cost of
    a request: what a batch occupies for as long as it runs, over its size. What runs keeps its configuration until it
    expires; new instances, and the buffer, have the newest one. Nothing knows of waiting inside the platform.
    """

    name = "batch"

    def option(self, function: int, rate: float) -> Option | None:
        """Return the largest batch that the rate fills in time, at the least cost."""
        known = self.functions[function]
        if not known.options:
            return None
        self._chosen[function] = best = max(known.options, key=lambda one: _preference(one, known.slo_s, rate))
        return best

    def front(self, function: int) -> FrontQueue:
        """Return the buffer: full at the batch size, timed out so that the newest configuration keeps the SLO."""
        one = self._chosen.get(function)
        if one is None:
            return _UNKNOWN
        return FrontQueue(one.configuration.batch, self.functions[function].slo_s - one.exec_s)


class BatchScheduled(Batch):
    """BATCH+RS (5.3): the same instances, placed as Algorithm 1 places a single configuration."""

    name = "batch-rs"

    def place(self, option: Option, servers: Servers) -> Placement | None:
        return pack(option, servers)


_UNKNOWN: Final = FrontQueue(1, 0.0)


def _preference(one: Option, slo_s: float, rate: float) -> tuple[int, float]:
    batch = one.configuration.batch
    filled = batch if batch <= rate * (slo_s - one.exec_s) else 1 - batch
    return filled, -one.units * one.exec_s / batch
