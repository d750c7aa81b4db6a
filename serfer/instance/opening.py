"""An instance: a plan's whole network behind an engine, as a pipeline that answers every query with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from drivers.driver import NO_CONTEXT
from serfer.control.dispatch import Batching, ServiceTimeEstimator
from serfer.core.errors import SerferError, UsageError
from serfer.core.plan import Plan
from serfer.core.wire import MAX_BATCH
from serfer.instance.checking import compare
from serfer.instance.engine import Engine
from serfer.instance.network import Hardware, Network, load_whole, open_network
from serfer.instance.profiling import profile
from serfer.pipeline.event_loop import LoopThread
from serfer.pipeline.health import Health, Probe
from serfer.pipeline.pipeline import Pipeline
from serfer.settings import Settings
from storage import open_store
from storage.store import Store

_MAX_BATCH = {
    "cpu": 16,
    "cuda": 64,
}  # more gains little on a CPU; a GPU's memory may be shared
_LARGEST_WINDOW_MS = 60_000.0
_MS_PER_S = 1000.0
_REPEATS, _BUDGET_S = 3, 4.0  # of the profile that it starts with, each size's best: batches will correct it
_TRIAL_S = 30.0


@dataclass(frozen=True)
class InstanceChoices:
    """The options of an instance: its hardware, batch size and batching window.

    `max_batch` of None is what suits the device. Raises UsageError.
    """

    hardware: Hardware
    max_batch: int | None = None
    window_ms: float = 0.0

    def __post_init__(self) -> None:
        if self.max_batch is not None and not 1 <= self.max_batch <= MAX_BATCH:
            raise UsageError(f"--max-batch is 1 to {MAX_BATCH}, not {self.max_batch}")
        if not 0 <= self.window_ms <= _LARGEST_WINDOW_MS:
            raise UsageError(f"--window-ms is 0 to {_LARGEST_WINDOW_MS:g}, not {self.window_ms:g}")


@dataclass(frozen=True)
class Instance:
    """An instance that is ready; `loss` is how far its answers are from fp32's, relative to their range."""

    pipeline: Pipeline
    engine: Engine
    network: Network
    loss: float


def open_instance(
    directory: Path, choices: InstanceChoices, settings: Settings, progress: Callable[[str], None] = lambda _: None
) -> Instance:
    """Load a plan directory's whole network, compare its answers, measure its speed, and make it answer queries.

    Raises PlanError for a directory that is not whole, UnavailableError where the device is not there,
    WrongAnswerError where it computes something else.
    """
    plan = load_whole(directory)
    progress(f"loading {plan.model}")
    network = _loaded(plan, directory, choices)
    progress(f"comparing {network.device}'s answers with the unsplit network's")
    loss = compare(plan, directory, network).error
    measured = profile(plan, network, _REPEATS, budget_s=_BUDGET_S, of=min, progress=progress).tidied()
    batching = Batching(network.max_batch, choices.window_ms / _MS_PER_S)
    engine = Engine(plan, network, batching, ServiceTimeEstimator(measured, network.max_batch), name=network.device)
    return Instance(_pipeline(plan, engine, settings), engine, network, loss)


def _loaded(plan: Plan, directory: Path, choices: InstanceChoices) -> Network:
    max_batch = choices.max_batch or max(_MAX_BATCH.values())
    network = open_network(plan, directory, choices.hardware, max_batch)
    if choices.max_batch is None:
        network.max_batch = _MAX_BATCH[network.device]
    return network


def _pipeline(plan: Plan, engine: Engine, settings: Settings) -> Pipeline:
    store = open_store("memory://")  # of what requests leave with each other, such as idempotency keys

    async def close() -> None:
        store.close()

    facts, limits = settings.facts().functions, settings.image_limits()
    return Pipeline(plan, None, LoopThread(), close, facts, limits, EngineProbe(plan, store, engine), target=engine)


class EngineProbe(Probe):
    """Says whether an engine computes, beside what a probe says of the store."""

    def __init__(self, plan: Plan, store: Store, engine: Engine) -> None:
        super().__init__(plan, store, None)
        self._engine = engine
        self._shape = plan.input

    async def look(self, *, start: bool = False) -> Health:
        """Check the store; with `start`, or where the last batch failed, the engine has to compute a batch."""
        health = await super().look(start=False)
        if start or self._engine.trouble:
            return Health(health.store, await self._try())
        return health

    async def _try(self) -> str:
        image = np.zeros((1, self._shape.channels, self._shape.height, self._shape.width), np.float32)
        try:
            await self._engine.run(image, _TRIAL_S, NO_CONTEXT)
        except SerferError as error:
            return str(error)
        return ""
