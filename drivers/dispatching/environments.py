"""Environments of a plan's functions that a driver expects to be idle and warm, from what its own requests reported.

Lambda tells no one which environments there are. But every response names the environment that sent it and says
whether that had to be started for it; afterwards it stays for minutes. Environments that other drivers keep are not
known here, and those that they use are not either, so this is an expectation, which the next response corrects.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class _Idle:
    """An environment, idle since a time; `order` is the number of the response after which it was."""

    name: str
    since: float
    order: int


@dataclass(eq=False, slots=True)
class Use:
    """An invocation that is in flight, or promised to a query: the environment that it is expected to find.

    It is a new one where `expected` is None. Responses before the one numbered `began` came before it, at `since`.
    """

    expected: _Idle | None
    began: int
    since: float


@dataclass
class Environments:
    """The environments of one function; one without work stays for `kept_s` seconds."""

    kept_s: float
    _idle: dict[str, _Idle] = field(default_factory=dict)
    _uses: dict[Use, None] = field(default_factory=dict)  # in flight and promised
    _promised: list[Use] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def idle(self, now: float) -> int:
        self._idle = {name: idle for name, idle in self._idle.items() if now - idle.since < self.kept_s}
        return len(self._idle)

    def trusted(self, now: float, late_s: float) -> int:
        """Return how many environments are still believed to be warm.

        An invocation that has waited for more than `late_s` s may wait for a cold start, though an environment was
        expected: those that were idle at its start may be gone, too.
        """
        late = [use.began for use in self._uses if use.expected and now - use.since > late_s]
        return self.idle(now) - sum(idle.order < max(late, default=-1) for idle in self._idle.values())

    @property
    def in_use(self) -> int:
        return len(self._uses)

    def promise(self, count: int, now: float) -> list[Use]:
        """Reserve idle environments for the next invocations, and return what `withdraw` takes back."""
        promised = [self._use(now) for _ in range(count)]
        self._promised += promised
        return promised

    def withdraw(self, promised: Iterable[Use]) -> None:
        for use in promised:
            if use in self._promised:
                self._promised.remove(use)
                self.failed(use, lost=False)

    def began(self, now: float) -> Use:
        if not self._promised:
            return self._use(now)
        use = self._promised.pop(0)
        use.began, use.since = next(self._numbers), now
        return use

    def answered(self, use: Use, environment: str, now: float, *, cold: bool) -> None:
        """Note the response of an environment, which is idle from now on; `cold` says that it was started for it.

        Lambda starts one only where none is idle: those that seemed to be are gone.
        """
        del self._uses[use]
        if cold:
            self._idle = {name: idle for name, idle in self._idle.items() if idle.order > use.began}
        elif use.expected is None or use.expected.name != environment:
            self._exchange(use, environment)
        self._idle[environment] = _Idle(environment, now, next(self._numbers))

    def failed(self, use: Use, *, lost: bool) -> None:
        del self._uses[use]
        if use.expected and not lost:
            self._idle[use.expected.name] = use.expected

    def _use(self, now: float) -> Use:
        expected = max(self._idle.values(), key=lambda idle: idle.order) if self.idle(now) else None
        if expected:
            del self._idle[expected.name]
        use = Use(expected, next(self._numbers), now)
        self._uses[use] = None
        return use

    def _exchange(self, use: Use, found: str) -> None:
        """Found another than the expected one: another use's perhaps, or that one was lost with an earlier failure."""
        if self._idle.pop(found, None):
            if use.expected:
                self._idle[use.expected.name] = use.expected
            return
        for other in self._uses:
            if other.expected and other.expected.name == found:
                other.expected = use.expected
                return
