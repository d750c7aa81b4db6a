"""Exponential backoff with jitter, so that callers that failed together do not retry together.

"Equal jitter" of M. Brooker, Exponential Backoff And Jitter, AWS Architecture Blog, 2015: half of each wait is kept.
"""

from __future__ import annotations

from typing import NamedTuple

_MAX_GROWTHS = 64  # more of them overflow a float, and have long reached `longest`
NO_JITTER = 1.0


class Backoff(NamedTuple):
    """Waits in seconds: the n-th, from 1, is base * factor^(n - 1), at most `longest`, times a factor in [0.5, 1)."""

    base: float
    longest: float
    factor: float = 2.0

    def wait(self, failures: int, draw: float = NO_JITTER) -> float:
        """Return the wait after `failures` failures, at least one; `draw` is uniform in [0, 1), or NO_JITTER."""
        full = self.base * self.factor ** min(failures - 1, _MAX_GROWTHS)
        return min(self.longest, full) * (0.5 + 0.5 * draw)
