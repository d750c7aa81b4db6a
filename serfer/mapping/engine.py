"""The windows of an image in flight: each is read, sent as a query, and kept as a part, in any order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from threading import Event, Lock, Thread
from typing import Any, Protocol

from numpy.typing import NDArray

from serfer.core.errors import (
    AlteredPieceError,
    ImageError,
    LambdaThrottledError,
    PlanError,
    SerferError,
    UnavailableError,
    UsageError,
)
from serfer.core.plan.windows import ImageWindow
from serfer.interrupts import signals_held
from serfer.mapping.estimate import WindowPrices
from serfer.mapping.report import WindowFailure
from serfer.mapping.steps import MapStep, WindowQuery
from serfer.offline.gate import OfflineGate
from serfer.pipeline.blocking import Pipeline
from serfer.pipeline.result import Result

_TICK_S = 0.25
_LEAST_FAILURES = 16


class WindowParts(Protocol):
    """What keeps the parts that windows give, by their numbers; several threads may put at once."""

    def put(self, number: int, values: NDArray[Any]) -> None: ...


@dataclass(frozen=True)
class MapTask:
    """One image to be mapped, or to be passed over before that, and everything that this takes.

    What the step's forms make goes into `parts`, in their order.
    """

    pipeline: Pipeline
    step: MapStep
    parts: Sequence[WindowParts]
    prices: WindowPrices
    spending: Spending
    gate: OfflineGate
    concurrency: int


@dataclass
class Outcome:
    """What has become of the windows so far."""

    computed: int = 0
    empty: int = 0
    missing: int = 0
    partly_missing: int = 0
    failures: list[WindowFailure] = field(default_factory=list)
    latencies_ms: list[float] = field(default_factory=list)
    over_ceiling: bool = False

    def __add__(self, later: Outcome) -> Outcome:
        """Return what became of the windows of two passes; the later one has seen the same pixels without data."""
        return Outcome(
            computed=self.computed + later.computed,
            empty=self.empty + later.empty,
            missing=later.missing,
            partly_missing=later.partly_missing,
            failures=[*self.failures, *later.failures],
            latencies_ms=[*self.latencies_ms, *later.latencies_ms],
            over_ceiling=self.over_ceiling or later.over_ceiling,
        )


class Engine:
    """Computes windows of an image, `concurrency` at once, each in a thread that waits for its query.

    So as many windows are in memory as are in flight, and fewer where the gate lets fewer pass. A window that fails is
    noted and the others go on, but many failures in a row, and errors that no other window would escape, end the work.
    One for which Lambda has no room is tried again later.
    """

    def __init__(self, task: MapTask, watch: Callable[[Outcome], None]) -> None:
        self._task, self._watch = task, watch
        self.outcome = Outcome()
        self._guard = Lock()
        self._stop = Event()
        self._queries: set[Future[Result]] = set()
        self._numbers: deque[int] = deque()
        self._error: BaseException | None = None
        self._in_a_row = 0

    def run(self, numbers: Sequence[int]) -> Outcome:
        self._numbers = deque(numbers)
        self._task.gate.resize(count := self._task.concurrency)
        threads = [Thread(target=self._work, name="serfer-map", daemon=True) for _ in numbers[:count]]
        with signals_held() as let_through:  # which might come as this thread holds a lock that the others need
            try:
                for thread in threads:
                    thread.start()
                for _ in _until_ended(threads):
                    let_through()
                    self._watch(self.outcome)
            except BaseException:
                self._end()
                for _ in _until_ended(threads):
                    let_through()  # another signal leaves threads that are stuck
                raise
        if self._error is not None:
            raise self._error
        return self.outcome

    def _work(self) -> None:
        while self._may_start():
            try:
                if (taken := self._next()) is None:
                    return
                self._compute(*taken)
            except CancelledError:
                return
            except BaseException as error:  # noqa: BLE001 - of a thread: the caller raises it
                self._end(error)
                return
            finally:
                self._task.gate.leave()

    def _may_start(self) -> bool:
        gate = self._task.gate
        while not gate.try_enter():
            if self._stop.is_set() or not self._numbers:
                return False
            gate.wait(_TICK_S)
        return True

    def _next(self) -> tuple[int, ImageWindow, float] | None:
        with self._guard:
            if self._stop.is_set() or not self._numbers:
                return None
            number = self._numbers.popleft()
            window = self._task.step.windows[number]
            usd = self._task.prices.of(window.tile).usd
            if not self._task.spending.reserve(usd):
                self.outcome.over_ceiling = True
                self._stop.set()
                return None
            return number, window, usd

    def _compute(self, number: int, window: ImageWindow, usd: float) -> None:
        task, step = self._task, self._task.step
        query = None
        try:
            query = step.query(number)
        except (ImageError, UnavailableError, AlteredPieceError) as error:
            self._failed(number, window, error)
            return
        finally:
            if query is None or query.batch is None:
                task.spending.release(usd)
        self._count_missing(query)
        if query.batch is None:
            self._keep(number, step.parts(number, query), None)
            return
        try:
            result = self._query(query.batch, number, usd)
        except (PlanError, UsageError):
            raise
        except LambdaThrottledError as error:
            self._postpone(number, error)
            return
        except SerferError as error:
            self._failed(number, window, error)
            return
        self._keep(number, step.parts(number, query, result.outputs), result.report.latency_ms)

    def _keep(self, number: int, values: Sequence[NDArray[Any]], latency_ms: float | None) -> None:
        for parts, part in zip(self._task.parts, values, strict=True):
            parts.put(number, part)
        self._count_done(latency_ms)

    def _count_missing(self, query: WindowQuery) -> None:
        with self._guard:
            self.outcome.missing += query.missing
            self.outcome.partly_missing += query.partly_missing

    def _query(self, batch: NDArray[Any], number: int, usd: float) -> Result:
        task = self._task
        try:
            query = task.step.submit(task.pipeline, number, batch)
            with self._guard:
                self._queries.add(query)
                stopped = self._stop.is_set() and self._error is not None
            if stopped:
                query.cancel()
            try:
                result = query.result()
            finally:
                with self._guard:
                    self._queries.discard(query)
        except LambdaThrottledError:
            task.spending.release(usd)
            raise
        except BaseException:
            task.spending.settle(usd, None)
            raise
        task.spending.settle(usd, result.report.cost_usd)
        return result

    def _count_done(self, latency_ms: float | None) -> None:
        with self._guard:
            self._in_a_row = 0
            if latency_ms is None:
                self.outcome.empty += 1
            else:
                self.outcome.computed += 1
                self.outcome.latencies_ms.append(latency_ms)

    def _failed(self, number: int, window: ImageWindow, error: SerferError) -> None:
        in_pass = self._task.step.number
        place = window.written if in_pass is None else window.read
        rows, cols = place.rows, place.cols
        failure = WindowFailure(number, (rows.start, rows.stop), (cols.start, cols.stop), str(error), in_pass)
        with self._guard:
            self.outcome.failures.append(failure)
            self._count_failure(error)

    def _postpone(self, number: int, error: LambdaThrottledError) -> None:
        """Put a window back that Lambda had no room for; raises it as `_failed` does."""
        with self._guard:
            self._numbers.append(number)
            self._count_failure(error)

    def _count_failure(self, error: SerferError) -> None:
        self._in_a_row += 1
        if self._in_a_row >= max(_LEAST_FAILURES, 2 * self._task.concurrency):
            raise error

    def _end(self, error: BaseException | None = None) -> None:
        with self._guard:
            self._error = self._error or error or KeyboardInterrupt()
            self._stop.set()
            queries = [*self._queries]
        for query in queries:
            query.cancel()


def _until_ended(threads: Sequence[Thread]) -> Iterator[None]:
    while running := [thread for thread in threads if thread.is_alive()]:
        running[0].join(_TICK_S)
        yield


@dataclass
class Spending:
    """Counts dollars against a ceiling; what is in flight counts with what its window is predicted to cost, or more.

    Where windows have cost more than predicted, those in flight count with as many times their prediction.
    """

    ceiling: float | None = None
    spent: float = 0.0
    _settled: float = 0.0  # predicted dollars of what was measured
    _measured: float = 0.0
    _in_flight: float = 0.0
    _guard: Lock = field(default_factory=Lock)

    @property
    def measured(self) -> tuple[float, float]:
        with self._guard:
            return self._measured, self._settled

    def reserve(self, predicted: float) -> bool:
        with self._guard:
            factor = max(1.0, self._measured / self._settled) if self._settled else 1.0
            if self.ceiling is not None and self.spent + (self._in_flight + predicted) * factor > self.ceiling:
                return False
            self._in_flight += predicted
            return True

    def settle(self, predicted: float, measured: float | None) -> None:
        """Replace a window's dollars by the measured ones; a query that failed counts with its prediction."""
        with self._guard:
            self._in_flight -= predicted
            self.spent += predicted if measured is None else measured
            if measured is not None:
                self._settled += predicted
                self._measured += measured

    def release(self, predicted: float) -> None:
        with self._guard:
            self._in_flight -= predicted
