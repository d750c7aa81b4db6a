"""What happened to the requests of a function: each is answered in time, answered late, or dropped."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

PER_SLO: Final = 100
"""Steps of a latency's histogram in an SLO."""
_LONGEST: Final = 20 * PER_SLO
_ROUNDING: Final = 1 + 1e-9  # a batch that timed out ends exactly at the SLO of its first request


@dataclass
class Counters:
    """Counts of a function; `batches` are requests by the size of the batch that they were answered in.

    `latencies` counts answers by latency in hundredths of the SLO, the last step has all that are longer.
    """

    slo_s: float
    requests: int = 0
    met: int = 0
    late: int = 0
    dropped: int = 0
    launches: int = 0
    busy_unit_s: float = 0.0
    wait_s: float = 0.0
    exec_s: float = 0.0
    batches: Counter[int] = field(default_factory=Counter)
    latencies: list[int] = field(default_factory=lambda: [0] * (_LONGEST + 1))

    def answer(self, arrivals: list[float], start_s: float, exec_s: float) -> None:
        done, slo_s, latencies = start_s + exec_s, self.slo_s, self.latencies
        size, late, latest = len(arrivals), 0, slo_s * _ROUNDING
        for arrival in arrivals:
            latency = done - arrival
            late += latency > latest
            latencies[min(int(latency / slo_s * PER_SLO), _LONGEST)] += 1
        self.late += late
        self.met += size - late
        self.batches[size] += size
        self.exec_s += exec_s * size
        self.wait_s += start_s * size - sum(arrivals)

    def quantile(self, share: float) -> float | None:
        """Return a quantile of the latencies as a multiple of the SLO, None without any."""
        left = share * sum(self.latencies)
        for step, count in enumerate(self.latencies):
            left -= count
            if count and left <= 0:
                return (step + 1) / PER_SLO
        return None
