"""What a task took of an invocation, stage by stage, as its worker measures it."""

from __future__ import annotations

from dataclasses import dataclass, field

from serfer.core.keys import StoreCounts


@dataclass
class StageShare:
    """A task's share of an invocation, for one stage.

    Times of time.perf_counter, seconds waited, store traffic, and the answer, None where that was written.
    """

    started: float = 0.0
    counts: StoreCounts = field(default_factory=StoreCounts)
    read: float = 0.0
    computed: float = 0.0
    ended: float = 0.0
    waited: float = 0.0
    output: memoryview | None = None
