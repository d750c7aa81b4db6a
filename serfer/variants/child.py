"""A process that loads a whole network as an instance does and measures it: a job in JSON in, figures in JSON out.

A process of its own, so that its peak memory is the network's, and a network that takes too much ends it alone.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import numpy as np
from numpy.typing import NDArray

from serfer.core.dataclass_codec import Bounds, structure, unstructure
from serfer.core.errors import InputError, SerferError
from serfer.core.plan import Plan
from serfer.core.units import MIB, MS_PER_S
from serfer.core.variants import Accuracy
from serfer.instance.network import Hardware, Network, instruction_sets, load_whole, open_network
from serfer.pipeline.labelled.accuracy import BATCH, accuracy_of
from serfer.pipeline.reference import normalised
from serfer.system import peak_bytes
from serfer.variants.candidates import BATCHES, P95
from serfer.variants.images import ImageFiles

_MAX_JOB_BYTES: Final = 65_536
_BATCHES: Final = 40  # of each size, at most
_LARGEST: Final = {"cpu": 16, "cuda": 64}  # batches: larger ones gain little
_LEAST: Final = 3
_DECIMALS: Final = 4  # of milliseconds
_BUDGET_S: Final = 20.0  # for all timed batches
_LONGEST_S: Final = 10.0  # of a batch: larger ones are not measured


@dataclass(frozen=True, slots=True)
class InstanceJob:
    """What is measured: a plan directory's whole network on a device in a precision.

    `images` is a folder with the pixels and labels that its accuracy is measured on, empty where there are none.
    """

    directory: str
    device: str
    precision: str
    images: str


@dataclass(frozen=True, slots=True)
class BatchFigures:
    """The time of a batch (the best, and what 50% and 95% take at most), and the process's peak memory by then."""

    best_ms: Annotated[float, Bounds(0.0, above=True)]
    median_ms: Annotated[float, Bounds(0.0, above=True)]
    p95_ms: Annotated[float, Bounds(0.0, above=True)]
    peak_mb: Annotated[float, Bounds(0.0)]


@dataclass(frozen=True, slots=True)
class InstanceFigures:
    """What was measured: the device, the time to load, batches by size (as text), the accuracy (None without images).

    `measured_on` are the instruction sets that it was measured with (serfer/core/variants/variant.py); `busy`
    is how many processes were running or waiting for a processor in the minute before (the load average).
    """

    device: str
    load_ms: Annotated[float, Bounds(0.0)]
    accuracy: Accuracy | None
    batches: Mapping[str, BatchFigures] = field(default_factory=dict)
    busy: Annotated[float, Bounds(0.0)] = 0.0
    measured_on: tuple[str, ...] = ()

    @property
    def sizes(self) -> dict[int, BatchFigures]:
        return {int(size): self.batches[size] for size in sorted(self.batches, key=int)}

    @property
    def best_ms(self) -> dict[int, float]:
        return {size: batch.best_ms for size, batch in self.sizes.items()}


def measure(job: InstanceJob, clock: Callable[[], float] = time.perf_counter) -> InstanceFigures:
    busy = round(os.getloadavg()[0], 1)
    directory, hardware = Path(job.directory), Hardware(job.device, job.precision)
    plan = load_whole(directory)
    began = clock()
    network = open_network(plan, directory, hardware, max(BATCHES))
    network.run(_noise(plan, 1))
    load_ms = round((clock() - began) * MS_PER_S, _DECIMALS)
    peaks = _warmed_up(plan, network, clock)
    times = timed({size: _noise(plan, size) for size in peaks}, network.run, clock)
    batches = {
        str(size): BatchFigures(_ms(times[size], 0.0), _ms(times[size], 0.5), _ms(times[size], P95), peak)
        for size, peak in peaks.items()
    }
    accuracy = _accuracy(plan, network, ImageFiles(Path(job.images))) if job.images else None
    return InstanceFigures(network.device, load_ms, accuracy, batches, busy, instruction_sets(network.device))


def timed(
    batches: Mapping[int, NDArray[np.float32]], run: Callable[[NDArray[np.float32]], object], clock: Callable[[], float]
) -> dict[int, list[float]]:
    """Return the seconds of batches by size: each at least thrice, then in turns while the budget lasts."""
    times: dict[int, list[float]] = {size: [] for size in batches}
    began = clock()
    for turn in range(_BATCHES):
        for size, batch in batches.items():
            if turn >= _LEAST and clock() - began > _BUDGET_S:
                return times
            start = clock()
            run(batch)
            times[size].append(clock() - start)
    return times


def _warmed_up(plan: Plan, network: Network, clock: Callable[[], float]) -> dict[int, float]:
    """Run a batch of each size and return the process's peak memory after each, in MB; without those that take long."""
    peaks: dict[int, float] = {}
    for size in (size for size in BATCHES if size <= _LARGEST[network.device]):
        began = clock()
        network.run(_noise(plan, size))
        peaks[size] = _peak_mb()
        if 2 * (clock() - began) > _LONGEST_S:
            break
    return peaks


def _accuracy(plan: Plan, network: Network, images: ImageFiles) -> Accuracy:
    return accuracy_of(lambda batch: network.run(normalised(plan, batch)), images.batches(BATCH), images.labels)


def _noise(plan: Plan, size: int) -> NDArray[np.float32]:
    shape = plan.input
    dims = (size, shape.channels, shape.height, shape.width)
    return np.random.default_rng(size).standard_normal(dims, dtype=np.float32)


def _ms(seconds: Sequence[float], share: float) -> float:
    return round(float(np.quantile(seconds, share)) * MS_PER_S, _DECIMALS)


def _peak_mb() -> float:
    return round(peak_bytes() / MIB, 1)


def main() -> None:
    try:
        job = structure(InstanceJob, json.loads(sys.stdin.buffer.read(_MAX_JOB_BYTES)), "job", error=InputError)
        figures = measure(job)
    except SerferError as error:
        print(error, file=sys.stderr)  # noqa: T201 - the process that waits reads it
        raise SystemExit(error.exit_code) from error
    print(json.dumps(unstructure(figures), allow_nan=False))  # noqa: T201 - same


if __name__ == "__main__":
    main()
