"""What can be put under load: our push driver, and the baselines on the same Lambda service and Redis.

One unsplit function is ours with a plan of one stage.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

import serfer
from bench.baselines.fork_join import ForkJoin
from bench.baselines.poll_driver import PUBLISHED, REPAIRED
from bench.baselines.serfer_paper import SerFerPaper
from serfer.core.counts import StoreCounts
from serfer.core.errors import UsageError
from serfer.pipeline.pipeline import Pipeline, Result
from serfer.settings import Settings, load_settings

Pixels = NDArray[np.uint8]
Logits = NDArray[np.float32]
_SERFER = {mechanics.name: mechanics for mechanics in (PUBLISHED, REPAIRED)}
SYSTEMS = ("ours", *_SERFER, ForkJoin.name)


class System(Protocol):
    """Answers queries, any number at once, as a context manager that leaves nothing running."""

    name: str

    def submit(self, pixels: Pixels) -> Future[Logits]:
        """Start a query of (N, H, W, C) pixels and return its (N, K) logits to come; raises InputError at once."""
        ...

    def counts(self) -> StoreCounts:
        """Return what all queries that have ended moved through the store, and how often they polled it."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Ours:
    """A pipeline of ours as a system; it closes the pipeline."""

    def __init__(self, pipeline: Pipeline, name: str = "ours") -> None:
        self.name = name
        self._pipeline = pipeline
        self._lock = threading.Lock()
        self._counts = StoreCounts()

    def submit(self, pixels: Pixels) -> Future[Logits]:
        """Start a query; see System."""
        logits: Future[Logits] = Future()
        self._pipeline.submit(pixels).add_done_callback(lambda ended: self._pass_on(ended, logits))
        return logits

    def counts(self) -> StoreCounts:
        """Add up what the queries' reports say."""
        return self._counts

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipeline.close()

    def _pass_on(self, ended: Future[Result], logits: Future[Logits]) -> None:
        if ended.cancelled():
            logits.cancel()
        elif not logits.set_running_or_notify_cancel():
            return  # nobody waits any more
        elif error := ended.exception():
            logits.set_exception(error)
        else:
            result = ended.result()
            with self._lock:
                self._counts += result.report.store
            logits.set_result(result.logits)


def open_system(
    name: str, directory: Path, *, settings: Settings | None = None, in_flight: int | None = None
) -> System:
    """Open a plan directory as one of SYSTEMS, with local workers; `in_flight` is for the baselines, see there.

    Raises UsageError for an unknown name, and what `serfer.open` raises.
    """
    settings = settings or load_settings()
    if name in _SERFER:
        return SerFerPaper(directory, _SERFER[name], settings, in_flight)
    if name == ForkJoin.name:
        return ForkJoin(directory, settings, in_flight)
    if name == "ours":
        return Ours(serfer.open(directory, workers="local", settings=settings))
    raise UsageError(f"systems are {', '.join(SYSTEMS)}, not {name!r}")
