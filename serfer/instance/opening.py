"""An instance: whole networks of plans behind engines that share a device, as pipelines that answer with them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from serfer.core.errors import SerferError, UnavailableError, UsageError
from serfer.core.plan import Plan
from serfer.core.units import MIB, MS_PER_S
from serfer.core.variants import caution
from serfer.core.wire import MAX_BATCH
from serfer.drivers.driver import NO_CONTEXT
from serfer.instance.engine import Engine
from serfer.instance.measuring import NetworkMeasurement, default_bound, load_again, measure, weight_bytes
from serfer.instance.network import Hardware, Network, instruction_sets, load_whole, open_network, prepared_device
from serfer.instance.residents import Resident, Residents
from serfer.pipeline.event_loop import LoopThread
from serfer.pipeline.health import Health, Probe
from serfer.pipeline.pipeline import AsyncPipeline
from serfer.settings import Settings
from serfer.storage import open_store
from serfer.storage.store import Store
from serfer.system import give_back

_LOG = logging.getLogger(__name__)
_MAX_BATCH = {"cpu": 16, "cuda": 64}  # more gains little on a CPU; a GPU's memory may be shared
_LARGEST_WINDOW_MS = 60_000.0
_LARGEST_MEMORY_MB = 1 << 24
_TRIAL_S = 30.0


@dataclass(frozen=True)
class InstanceChoices:
    """The options of an instance: its hardware, batch size and batching window, and the memory of its networks.

    `max_batch` of None is what suits the device, `memory_mb` of None a share of what there is, or no bound for a single
    network. With `preload` all networks are in memory at the start, else the first. `own` are the precision and the
    batch size of those models that have their own, `measured_on` the instruction sets of those whose accuracy is on
    record. Raises UsageError.
    """

    hardware: Hardware
    max_batch: int | None = None
    window_ms: float = 0.0
    memory_mb: int | None = None
    preload: bool = False
    own: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    measured_on: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def of(self, model: str) -> InstanceChoices:
        if model not in self.own:
            return self
        precision, max_batch = self.own[model]
        return replace(self, hardware=replace(self.hardware, precision=precision), max_batch=max_batch, own={})

    def __post_init__(self) -> None:
        if self.max_batch is not None and not 1 <= self.max_batch <= MAX_BATCH:
            raise UsageError(f"--max-batch is 1 to {MAX_BATCH}, not {self.max_batch}")
        if not 0 <= self.window_ms <= _LARGEST_WINDOW_MS:
            raise UsageError(f"--window-ms is 0 to {_LARGEST_WINDOW_MS:g}, not {self.window_ms:g}")
        if self.memory_mb is not None and not 1 <= self.memory_mb <= _LARGEST_MEMORY_MB:
            raise UsageError(f"memory_mb is 1 to {_LARGEST_MEMORY_MB}, not {self.memory_mb}")


@dataclass(frozen=True)
class Instance:
    """An instance that is ready: a pipeline for each network, the first one the default, and the networks."""

    pipelines: Mapping[str, AsyncPipeline]
    residents: Residents

    @property
    def default(self) -> Resident:
        return self.residents[next(iter(self.pipelines))]


@dataclass(frozen=True)
class MeasuredNetworks:
    """Whole networks that were compared and measured, by their models: those that are to be in memory, and the others.

    They may take `bound` bytes, None: any number.
    """

    networks: Mapping[str, tuple[Network | None, NetworkMeasurement]]
    bound: int | None
    choices: InstanceChoices


def measure_networks(
    models: Mapping[str, Path],
    choices: InstanceChoices,
    progress: Callable[[str], None] = lambda _: None,
    here: Callable[[str], tuple[str, ...]] = instruction_sets,
) -> MeasuredNetworks:
    """Measure the whole networks of plan directories, each of which is loaded once to compare its answers.

    One in 8 bits whose accuracy was measured with other instruction sets than a device has `here` is warned of.
    Raises PlanError for a directory that is not whole, UnavailableError where the device is not there or the memory
    does not suffice, WrongAnswerError where a network computes something else.
    """
    plans = {name: load_whole(directory) for name, directory in models.items()}
    if len(plans) > 1:  # networks that take turns: see serfer/instance/device.py
        choices = replace(choices, hardware=replace(choices.hardware, spin=False))
    bound = _bound(choices, plans)
    kept = [*plans] if choices.preload else [next(iter(plans))]
    opened: dict[str, tuple[Network | None, NetworkMeasurement]] = {}
    for name in sorted(plans, key=lambda name: name in kept):  # each of the others is alone in memory for a time
        chosen = choices.of(name)
        load = partial(_loaded, plans[name], models[name], chosen)
        network, measured = measure(plans[name], models[name], load, chosen.hardware, progress)
        measured = _cautioned(name, measured, choices.measured_on.get(name), here)
        opened[name] = (network if name in kept else None), measured
        del network
        give_back()
        _check_fits(name, measured, bound, [opened[other][1] for other in kept if other in opened and other != name])
    return MeasuredNetworks({name: opened[name] for name in plans}, bound, choices)


def _cautioned(
    name: str, measured: NetworkMeasurement, measured_on: tuple[str, ...] | None, here: Callable[[str], tuple[str, ...]]
) -> NetworkMeasurement:
    if measured.precision != "int8" or measured_on is None:
        return measured
    why = caution(measured_on, here(measured.device))
    if why:
        why += f" (answers to noise differ from fp32's by {measured.loss:.1e} of their range here)"
        advice = "serve it where it was measured, register the network on such a processor, or serve fp32"
        _LOG.warning("accuracy not measured here", extra={"serfer": {"variant": name, "message": f"{why}: {advice}"}})
    return replace(measured, caution=why)


def open_instance(measured: MeasuredNetworks, settings: Settings, loop: LoopThread) -> Instance:
    """Make networks answer queries, as pipelines on `loop`; call it there."""
    choices = measured.choices
    residents = Residents(measured.bound, lambda known: load_again(known, choices.hardware))
    pipelines = {}
    for name, (network, known) in measured.networks.items():
        resident = residents.add(name, known, network, choices.window_ms / MS_PER_S)
        pipelines[name] = _pipeline(known.plan, resident, settings, loop)
    return Instance(pipelines, residents)


def _bound(choices: InstanceChoices, plans: Mapping[str, Plan]) -> int | None:
    if choices.memory_mb is None and len(plans) == 1:
        return None
    device = prepared_device(choices.hardware.device)
    bound = default_bound(device) if choices.memory_mb is None else choices.memory_mb * MIB
    if bound is None:
        raise UsageError(
            "the GPU's free memory cannot be read: say with --set memory_mb=MB how much of it networks may take"
        )
    for name, plan in plans.items():
        if (least := weight_bytes(plan)) > bound:
            raise _too_large(name, least, bound)
    return bound


def _check_fits(name: str, measured: NetworkMeasurement, bound: int | None, others: list[NetworkMeasurement]) -> None:
    if bound is None:
        return
    if measured.load_size > bound:
        raise _too_large(name, measured.load_size, bound)
    beside = sum(network.size for network in others)
    if beside + measured.load_size > bound:
        raise UnavailableError(
            f"preload: {name} needs {_mb(measured.load_size)} to be loaded beside {_mb(beside)} of other networks, "
            f"which is more than the {_mb(bound)} that networks may take: raise memory_mb, or preload only the first"
        )


def _too_large(name: str, size: int, bound: int) -> UnavailableError:
    return UnavailableError(
        f"{name} needs {_mb(size)} to be loaded, more than the {_mb(bound)} that networks may take here: raise "
        "memory_mb, or serve it on a larger machine"
    )


def _mb(size: int) -> str:
    return f"{size / MIB:,.0f} MB"


def _loaded(plan: Plan, directory: Path, choices: InstanceChoices) -> Network:
    max_batch = choices.max_batch or max(_MAX_BATCH.values())
    network = open_network(plan, directory, choices.hardware, max_batch)
    if choices.max_batch is None:
        network.max_batch = _MAX_BATCH[network.device]
    return network


def _pipeline(plan: Plan, resident: Resident, settings: Settings, loop: LoopThread) -> AsyncPipeline:
    store = open_store("memory://")  # of what requests leave with each other, such as idempotency keys

    async def close() -> None:
        store.close()

    facts, limits = settings.facts().functions, settings.image_limits()
    probe = EngineProbe(plan, store, resident.engine)
    return AsyncPipeline(plan, None, loop, close, facts, limits, probe, target=resident)


class EngineProbe(Probe):
    """Says whether an engine computes, if it has a network now, beside what a probe says of the store."""

    def __init__(self, plan: Plan, store: Store, engine: Engine) -> None:
        super().__init__(plan, store, None)
        self._engine = engine
        self._shape = plan.input

    async def look(self, *, start: bool = False) -> Health:
        """Check the store; with `start`, or where the last batch failed, the engine has to compute a batch."""
        health = await super().look(start=False)
        if self._engine.network is not None and (start or self._engine.trouble):
            return Health(health.store, await self._try())
        return health

    async def _try(self) -> str:
        image = np.zeros((1, self._shape.channels, self._shape.height, self._shape.width), np.float32)
        try:
            await self._engine.run(image, _TRIAL_S, NO_CONTEXT)
        except SerferError as error:
            return str(error)
        return ""
