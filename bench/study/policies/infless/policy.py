"""INFless' autoscaler: non-uniform instances, each with a batch queue of its own (3.2 and 3.4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from serfer.control.windows import WarmLevels, WindowPolicy
from serfer_bench.study.policies.infless.dispatch import ALPHA, Case, case_of, dispatch, threshold
from serfer_bench.study.policies.infless.fleet import Assignment, FrontQueue, Instance, Registry, Step
from serfer_bench.study.policies.infless.options import Function, Option
from serfer_bench.study.policies.infless.scheduling import Chooser, Efficiency, pack, schedule
from serfer_bench.study.policies.infless.servers import Servers

RESERVE_S: Final = 60.0
"""Seconds for which an instance without load stays warm at least; ours: the paper has windows alone (LSTH, 3.5)."""


@dataclass
class _Instances:
    """A function's instances by configuration: those that get requests, and those that are kept warm, until when."""

    serving: dict[Option, list[Instance]] = field(default_factory=dict)
    reserve: list[tuple[float, Instance]] = field(default_factory=list)
    parked: Option | None = None
    """The configuration that was parked last, with which an instance is warmed before it is needed."""
    low: float = 0.0
    up: float = 0.0

    @property
    def count(self) -> int:
        return sum(len(same) for same in self.serving.values())

    def add(self, one: Instance) -> None:
        self.serving.setdefault(one.option, []).append(one)
        self._sum()

    def park(self, option: Option, until_s: float) -> None:
        same, self.parked = self.serving[option], option
        self.reserve.append((until_s, same.pop()))
        if not same:
            del self.serving[option]
        self._sum()

    def spare(self, rate: float) -> dict[Option, list[Instance]]:
        """Return instances that are kept warm, the most efficient first, as many as a rate takes."""
        found: dict[Option, list[Instance]] = {}
        up = 0.0
        for _, one in sorted(self.reserve, key=lambda each: (-each[1].option.efficiency, each[1].number)):
            if up < rate:
                found.setdefault(one.option, []).append(one)
                up += one.option.up
        return found

    def _sum(self) -> None:
        self.low = sum(option.low * len(same) for option, same in self.serving.items())
        self.up = sum(option.up * len(same) for option, same in self.serving.items())


class Infless:
    """Launches what Algorithm 1 chooses, dispatches by the three cases, and parks instances when the rate falls.

    Where the paper says only that extra instances are released, those with the fewest requests per resource go first,
    as long as the others take the rate. They stay warm for `reserve_s`, serve again without a cold start, and make
    room at once where another function finds none. With `windows` (3.5), one policy for each of the first instances of
    a function, they also stay warm as long as those say, and are started again before they are needed.
    """

    name = "infless"
    batch_first = True

    def __init__(
        self,
        functions: Sequence[Function],
        servers: Servers,
        *,
        alpha: float = ALPHA,
        reserve_s: float = RESERVE_S,
        chooser: Chooser | None = None,
        windows: Callable[[], WindowPolicy] | None = None,
    ) -> None:
        self.functions, self.servers = functions, servers
        self._alpha, self._reserve_s, self._chooser = alpha, reserve_s, chooser or Efficiency()
        self._registry = Registry(servers)
        self._of = [_Instances() for _ in functions]
        self._levels = [WarmLevels(windows) for _ in functions] if windows else []

    def step(self, now_s: float, rates: Sequence[float]) -> Step:
        warm = self._warm(now_s)
        stopped = [
            self._registry.stop(one)
            for mine, least in zip(self._of, warm, strict=True)
            for one in _expired(mine, now_s, least)
        ]
        launched: list[Instance] = []
        unplaced = 0.0
        for number, rate in enumerate(rates):
            case = case_of(rate, self._of[number].low, self._of[number].up, self._alpha)
            if case is Case.SHORT:
                unplaced += self._grow(number, rate, launched, stopped)
            elif case is Case.AMPLE:
                self._shrink(number, rate, now_s + self._reserve_s)
        prewarmed = self._prewarm(now_s)
        return Step(tuple(launched), tuple(stopped), unplaced, prewarmed)

    def assigned(self, function: int, rate: float) -> list[Assignment]:
        """Return each instance's rate by the three cases; what exceeds R_max goes to them, too: there are no others.

        Where none serves, those that are kept warm answer what comes before the next decision.
        """
        serving = self._of[function].serving or self._of[function].spare(rate)
        found = dispatch(rate, [(option, len(same)) for option, same in serving.items()], self._alpha)
        over = rate / (rate - found.residual) if serving and found.residual else 1.0
        return [
            Assignment(one, over * each)
            for same, each in zip(serving.values(), found.rates, strict=True)
            for one in same
        ]

    def front(self, function: int) -> FrontQueue | None:
        del function
        return None

    def _warm(self, now_s: float) -> list[int]:
        return [level.wanted(now_s) - level.busy for level in self._levels] or [0] * len(self._of)

    def _prewarm(self, now_s: float) -> tuple[Instance, ...]:
        if not self._levels:
            return ()
        started: list[Instance] = []
        for levels, mine in zip(self._levels, self._of, strict=True):
            levels.observe(now_s, mine.count)
        for function, (mine, least) in enumerate(zip(self._of, self._warm(now_s), strict=True)):
            while mine.parked is not None and len(mine.reserve) < least:
                placement = pack(mine.parked, self.servers)
                if placement is None:
                    break
                one = self._registry.launch(function, mine.parked, placement)
                mine.reserve.append((now_s, one))
                started.append(one)
        return tuple(started)

    def _grow(self, function: int, rate: float, launched: list[Instance], stopped: list[Instance]) -> float:
        mine = self._of[function]
        _wake(mine, rate)
        residual = self._launch(function, rate - mine.up, launched)
        if residual > 0 and any(one.reserve for one in self._of):
            for one in self._of:
                stopped += [self._registry.stop(each) for each in _expired(one, float("inf"), 0)]
            residual = self._launch(function, residual, launched)
        return residual

    def _launch(self, function: int, residual: float, launched: list[Instance]) -> float:
        if residual <= 0:
            return 0.0
        known = self.functions[function]
        plan = schedule(known, residual, self.servers, self._chooser, batch_first=self.batch_first)
        for launch in plan.launches:
            one = self._registry.launch(function, launch.option, launch.placement)
            self._of[function].add(one)
            launched.append(one)
        return plan.unplaced

    def _shrink(self, function: int, rate: float, until_s: float) -> None:
        mine = self._of[function]
        for option in sorted(mine.serving, key=lambda one: (one.efficiency, one.units, one.configuration)):
            while option in mine.serving and mine.up - option.up >= rate:
                mine.park(option, until_s)
                if rate >= threshold(mine.low, mine.up, self._alpha):
                    return


class InflessByEfficiency(Infless):
    """INFless, but configurations of all batch sizes compete by equation 10: ours, not the paper's."""

    name = "infless-by-efficiency"
    batch_first = False


def _expired(mine: _Instances, now_s: float, least: int) -> Iterator[Instance]:
    """Take out the instances that were kept warm until now, the oldest first, but for the `least` that windows want."""
    mine.reserve.sort(key=lambda each: (each[0], each[1].number))
    due = sum(until_s <= now_s for until_s, _ in mine.reserve)
    gone = min(due, max(0, len(mine.reserve) - least))
    yield from [one for _, one in mine.reserve[:gone]]
    del mine.reserve[:gone]


def _wake(mine: _Instances, rate: float) -> None:
    """Send requests to warm instances again, the most efficient first, while the rate exceeds what the others take."""
    mine.reserve.sort(key=lambda each: (each[1].option.efficiency, -each[1].number))
    while mine.reserve and rate > mine.up:
        mine.add(mine.reserve.pop()[1])
