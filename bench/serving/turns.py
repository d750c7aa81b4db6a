"""Several networks on one device: batches in turns, as an instance computes them, against a thread for each network.

Engines in this process, without HTTP; each network gets the same share of the load, in queries of one image. Deadlines
are multiples of what one image takes, another multiple for each network, so that the order matters.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from serfer.cli.shared.options import JsonOption, status_line
from serfer.cli.shared.service_options import served_models
from serfer.control.batching import Profile
from serfer.control.dispatch import Batching, ServiceTimeEstimator
from serfer.core.errors import DeadlineError, OverloadedError, UsageError
from serfer.core.plan import Plan
from serfer.core.units import MS_PER_S
from serfer.drivers.driver import NO_CONTEXT
from serfer.drivers.target import InstanceAnswer
from serfer.instance.device import Device
from serfer.instance.engine import Engine
from serfer.instance.measuring import profile
from serfer.instance.network import Hardware, Network, load_whole, open_network
from serfer_bench.core.arrivals import poisson
from serfer_bench.core.options import ModelsOption, PlansOption, RowsOption
from serfer_bench.core.quantiles import percentiles
from serfer_bench.core.results import publish_rows, require_answers
from serfer_bench.core.tables import Column, Measurement
from serfer_bench.core.workload import Sent, run

SYSTEMS = ("in turns", "at once")
_DEADLINES = (20.0, 10.0)  # times what an image takes, for one network after the other
_REPEATS, _BUDGET_S = 3, 4.0


@dataclass(frozen=True)
class TurnsTime(Measurement):
    """Queries to one network of several: latency in ms of those answered.

    `processor_ms` is processor time for each answered image of all networks together. `interference` is observed over
    profiled batch time at the end, the mean of the rounds.
    """

    load: Annotated[str, Column("load")]
    system: Annotated[str, Column("system")]
    model: Annotated[str, Column("model")]
    queries: Annotated[int, Column("queries", ",")]
    answered: Annotated[int, Column("answered", ",")]
    refused: Annotated[int, Column("refused", ",")]
    late: Annotated[int, Column("late", ",")]
    failed: int
    p50_ms: Annotated[float, Column("p50 ms", ",.0f")]
    p95_ms: Annotated[float, Column("p95 ms", ",.0f")]
    processor_ms: Annotated[float, Column("processor ms", ",.1f")]
    interference: Annotated[float, Column("interference", ".2f")]


@dataclass(frozen=True, eq=False)
class _Known:
    plan: Plan
    network: Network
    profile: Profile
    deadline_s: float

    @property
    def image(self) -> np.ndarray:
        shape = self.plan.input
        return np.zeros((1, shape.channels, shape.height, shape.width), np.float32)


@dataclass(frozen=True)
class _Round:
    ends: Mapping[str, Sequence[Sent[InstanceAnswer]]]
    interference: Mapping[str, float]
    processor_s: float


def measure(
    models: Mapping[str, Path],
    hardware: Hardware,
    max_batch: int,
    loads: Sequence[float],
    seconds: float,
    rounds: int,
    progress: Callable[[str], None] = lambda _: None,
) -> list[TurnsTime]:
    known = {}
    for number, (name, directory) in enumerate(models.items()):
        progress(f"measuring {name}")
        plan = load_whole(directory)
        network = open_network(plan, directory, hardware, max_batch)
        measured = profile(plan, network, _REPEATS, budget_s=_BUDGET_S, of=min).tidied()
        deadline_s = _DEADLINES[number % len(_DEADLINES)] * measured.batch_ms(1) / MS_PER_S
        known[name] = _Known(plan, network, measured, deadline_s)
    ended: dict[tuple[float, str], list[_Round]] = {(load, system): [] for load in loads for system in SYSTEMS}
    for number in range(rounds):
        for load in loads:
            for system in SYSTEMS if number % 2 else SYSTEMS[::-1]:
                progress(f"{load:.0%} {system}: round {number + 1} of {rounds}")
                ended[load, system].append(asyncio.run(_round(known, system, load, seconds, number)))
    return [_row(load, system, name, ends) for (load, system), ends in ended.items() for name in models]


async def _round(known: Mapping[str, _Known], system: str, load: float, seconds: float, seed: int) -> _Round:
    device = Device()
    engines = {
        name: Engine(
            one.plan,
            one.network,
            Batching(one.network.max_batch),
            ServiceTimeEstimator(one.profile, one.network.max_batch),
            name=name,
            device=device if system == SYSTEMS[0] else Device(),
        )
        for name, one in known.items()
    }

    async def send(name: str, number: int) -> list[Sent[InstanceAnswer]]:
        one, engine = known[name], engines[name]
        rate = load / len(known) * MS_PER_S / one.profile.batch_ms(1)
        arrivals = poisson(rate, seconds, seed * len(known) + number)
        return await run(lambda _: asyncio.ensure_future(engine.run(one.image, one.deadline_s, NO_CONTEXT)), arrivals)

    began = time.process_time()
    ends = await asyncio.gather(*(send(name, number) for number, name in enumerate(known)))
    processor_s, now = time.process_time() - began, asyncio.get_running_loop().time()
    interference = {name: engine.signals(now).interference for name, engine in engines.items()}
    for engine in engines.values():
        await engine.close()
    return _Round(dict(zip(known, ends, strict=True)), interference, processor_s)


def _row(load: float, system: str, model: str, rounds: Sequence[_Round]) -> TurnsTime:
    ends = [end for one in rounds for end in one.ends[model]]
    errors = [end.error for end in ends if end.error is not None]
    answered = [end.latency * MS_PER_S for end in ends if end.error is None]
    refused, late = errors.count(OverloadedError.__name__), errors.count(DeadlineError.__name__)
    of_all = sum(end.error is None for one in rounds for each in one.ends.values() for end in each)
    p50, p95 = percentiles(answered, 50, 95)
    return TurnsTime(
        system=system,
        load=f"{load:.0%}",
        model=model,
        queries=len(ends),
        answered=len(answered),
        refused=refused,
        late=late,
        failed=len(errors) - refused - late,
        p50_ms=p50,
        p95_ms=p95,
        processor_ms=sum(one.processor_s for one in rounds) * MS_PER_S / max(1, of_all),
        interference=sum(one.interference[model] for one in rounds) / len(rounds),
    )


def command(
    model: ModelsOption = None,
    plan: PlansOption = None,
    load: Annotated[
        list[float] | None,
        typer.Option("--load", help="A share of what the networks do one image at a time; by default 0.6 and 1.2."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, max=600.0, help="How long each load lasts.")] = 10.0,
    rounds: Annotated[int, typer.Option(min=1, max=100)] = 4,
    max_batch: Annotated[int, typer.Option(min=1, max=1024)] = 8,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto: a GPU where ONNX Runtime can use one.")] = "cpu",
    threads: Annotated[int | None, typer.Option(min=1, max=1024)] = None,
    *,
    spin: Annotated[bool, typer.Option("--spin", help="Let ONNX Runtime's threads wait busily after a batch.")] = False,
    directory: RowsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send queries to several networks on one device: batches in turns, against a thread for each network."""
    models = served_models(model, plan)
    if len(models) == 1:
        raise UsageError("give two networks or more: --model A --model B")
    hardware = Hardware(device, threads=threads, spin=spin)
    with status_line() as progress:
        rows = measure(models, hardware, max_batch, load or (0.6, 1.2), seconds, rounds, progress)
    publish_rows(rows, directory, as_json=as_json)
    require_answers(sum(row.failed for row in rows), sum(row.queries for row in rows))
