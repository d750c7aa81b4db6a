"""The windows of an image in flight: each is read, sent as a query, and kept as a part, in any order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from threading import Event, Lock, Thread
from typing import Any, Protocol

import numpy as np
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
from serfer.core.geometry import Rect, Span
from serfer.core.passes import window_statistics
from serfer.core.plan.windows import ImageWindow, ImageWindows
from serfer.drivers.driver import RequestContext
from serfer.interrupts import signals_held
from serfer.mapping.estimate import WindowPrices
from serfer.mapping.input import WindowInput
from serfer.mapping.kept_maps import KeptInput
from serfer.mapping.no_data import Gaps
from serfer.mapping.report import WindowFailure
from serfer.offline.gate import OfflineGate
from serfer.pipeline.blocking import Pipeline
from serfer.pipeline.result import Result
from serfer.raster import RasterSource

DEADLINE_S = 900.0
"""Seconds that a window may take, with what it waits for other queries."""
_TICK_S = 0.25
_LEAST_FAILURES = 16


class MapTarget(Protocol):
    """What keeps what windows give, by their numbers; several threads may keep at once."""

    def covered(self, number: int, size: tuple[int, int]) -> Rect: ...

    def empty(self, missing: NDArray[np.bool_], read: Rect, number: int) -> NDArray[np.bool_]:
        """Return which of a window's pixels have no data, where `missing` ones of `read`, all they cover, have none."""
        ...

    def keep(self, number: int, outputs: Mapping[str, NDArray[Any]], empty: NDArray[np.bool_] | None) -> None: ...

    def keep_empty(self, number: int) -> None: ...


@dataclass(frozen=True)
class MapTask:
    """One image to be mapped, or to be passed over before that, and everything that this takes.

    `statistics` are those of the whole image that its windows take, `number` that of the pass, None for the map. With
    `kept` windows read maps of earlier passes in place of the image.
    """

    pipeline: Pipeline
    source: RasterSource
    windows: ImageWindows
    input: WindowInput
    gaps: Gaps
    targets: Sequence[MapTarget]
    prices: WindowPrices
    spending: Spending
    gate: OfflineGate
    concurrency: int
    statistics: bytes = b""
    number: int | None = None
    kept: KeptInput | None = None

    @property
    def reads_image(self) -> bool:
        return self.kept is None or self.kept.with_image

    @property
    def looks_for_gaps(self) -> bool:
        """Whether pixels without data matter: to what windows read of the image, or to the result."""
        return self.gaps.possible and (self.reads_image or self.number is None)

    def vector(self, window: ImageWindow) -> bytes:
        plan = self.pipeline.plan.windows
        statistics = self.statistics if self.number is None else window_statistics(self.statistics, window)
        return plan.vector(statistics, window) if plan else b""


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
        """Wait until the gate lets a window pass; return whether it does before there is none left."""
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
            window = self._task.windows[number]
            usd = self._task.prices.of(window.tile).usd
            if not self._task.spending.reserve(usd):
                self.outcome.over_ceiling = True
                self._stop.set()
                return None
            return number, window, usd

    def _compute(self, number: int, window: ImageWindow, usd: float) -> None:
        task = self._task
        taken = None
        try:
            taken = self._input(number, window)
        except (ImageError, UnavailableError, AlteredPieceError) as error:
            self._failed(number, window, error)
            return
        finally:
            if taken is None or taken.batch is None:
                task.spending.release(usd)
        if taken.batch is None:
            for target in task.targets:
                target.keep_empty(number)
            self._count_done(None)
            return
        try:
            result = self._query(taken.batch, window, usd)
        except (PlanError, UsageError):
            raise
        except LambdaThrottledError as error:
            self._postpone(number, error)
            return
        except SerferError as error:
            self._failed(number, window, error)
            return
        outputs: Mapping[str, NDArray[Any]] = result.outputs
        if task.number is None and window.made != window.written:  # of a plan for images of any size
            outputs = {
                name: values[..., *task.windows.of_output(place)[number].kept]
                for place, (name, values) in enumerate(outputs.items())
            }
        for place, target in enumerate(task.targets):
            target.keep(number, outputs, None if taken.empty is None else taken.empty[place])
        self._count_done(result.report.latency_ms)

    def _input(self, number: int, window: ImageWindow) -> _Input:
        task, image, empty = self._task, None, None
        if task.reads_image or task.looks_for_gaps:
            looked_at = self._looked_at(number) if task.looks_for_gaps else window.read
            pixels, masked = self._read_window(looked_at)
            missing = self._missing(number, pixels, masked, looked_at) if task.looks_for_gaps else None
            empty = None if missing is None else [target.empty(missing, looked_at, number) for target in task.targets]
            if empty is not None and all(mask.all() for mask in empty):
                return _Input(None, empty)
            if task.reads_image:
                seen = window.read.within(looked_at).slices
                hidden = None if missing is None or not missing[seen].any() else missing[seen]
                image = task.input.batch(pixels[:, *seen], hidden)
        return _Input(image if task.kept is None else task.kept.batch(window, image), empty)

    def _looked_at(self, number: int) -> Rect:
        covered = [target.covered(number, self._task.source.size) for target in self._task.targets]
        return Rect(_hull([rect.rows for rect in covered]), _hull([rect.cols for rect in covered]))

    def _read_window(self, rect: Rect) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        source = self._task.source
        return source.read_masked(rect) if self._task.gaps.mask else (source.read(rect), None)

    def _missing(
        self, number: int, pixels: NDArray[Any], masked: NDArray[np.bool_] | None, looked_at: Rect
    ) -> NDArray[np.bool_] | None:
        """Return which pixels hold no data, None for none, and count those that are the window's own."""
        missing, partly = self._task.gaps.missing(pixels, masked)
        own = self._task.windows.own(number).within(looked_at).slices
        counts = [0 if mask is None else int(mask[own].sum()) for mask in (missing, partly)]
        with self._guard:
            self.outcome.missing += counts[0]
            self.outcome.partly_missing += counts[1]
        return missing if missing.any() else None

    def _query(self, batch: Any, window: ImageWindow, usd: float) -> Result:  # noqa: ANN401 - an array
        task = self._task
        try:
            context = RequestContext(
                window=window.tile, background=True, statistics=task.vector(window), levels=task.input.levels
            )
            query = task.pipeline.submit(batch, deadline_s=DEADLINE_S, context=context)
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
        in_pass = self._task.number
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


@dataclass(frozen=True)
class _Input:
    """A window's batch, None where no part of its results has data, and which pixels of these have none."""

    batch: NDArray[Any] | None
    empty: list[NDArray[np.bool_]] | None


def _hull(spans: Sequence[Span]) -> Span:
    return Span(min(span.start for span in spans), max(span.stop for span in spans))


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
        """Dollars of what was measured so far, and what was predicted for that."""
        with self._guard:
            return self._measured, self._settled

    def reserve(self, predicted: float) -> bool:
        """Take a window's dollars, if what is spent and in flight stays below the ceiling with them."""
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
