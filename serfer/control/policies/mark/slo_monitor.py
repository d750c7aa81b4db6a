"""MArk's SLO monitor (section 4.4): whether the last queries met the objective; if not, backups are launched."""

from __future__ import annotations

from serfer.control.policy import Observation
from serfer.control.snapshots import SavedFields, Snapshot


class SloMonitor:
    """Judges `queries` at a time (M): a violation is where less than the share `met` of them was in time.

    Where latencies are not known, queries count as late that come faster than the instances serve which are paid for:
    they would wait, if Lambda did not take them.
    """

    def __init__(self, queries: float, met: float) -> None:
        self._queries = queries
        self._met = met
        self._answered = self._late = 0.0

    def violated(self, seen: Observation, capacity: float) -> bool:
        """Take in an observation, with the queries/s that instances serve; says whether M queries are over and late."""
        if seen.latency is not None:
            self._answered += seen.latency.answered
            self._late += seen.latency.late
        else:
            self._answered += seen.rate * seen.elapsed_s
            self._late += max(seen.rate - capacity, 0.0) * seen.elapsed_s
        if self._answered < self._queries:
            return False
        violated = self._late > (1 - self._met) * self._answered
        self._answered = self._late = 0.0
        return violated

    def snapshot(self) -> Snapshot:
        """Return the queries that are not judged yet, as plain JSON values."""
        return {"answered": self._answered, "late": self._late}

    def restore(self, saved: SavedFields) -> None:
        """Go on from a snapshot; raises InputError for what is not one."""
        self._answered = saved.number("answered", 0.0)
        self._late = saved.number("late", 0.0)
