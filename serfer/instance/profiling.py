"""The light profile of an instance (MArk, section 4.3): how long batches of 1, 2, 4, ... images take."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np

from serfer.control.batching import MS_PER_S, Profile
from serfer.core.plan import Plan
from serfer.instance.network import Network

Progress = Callable[[str], None]


def profile(
    plan: Plan,
    network: Network,
    repeats: int,
    *,
    budget_s: float,
    of: Callable[[Sequence[float]], float] = median,
    progress: Progress = lambda _: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Profile:
    """Measure each of the network's sizes: the median of `repeats` batches, or what `of` makes of them.

    Each size warms up once. They take turns, so that whatever else the machine does hits all alike. Those for which all
    batches would take longer than `budget_s` are left out.
    """
    shape, random, sizes = plan.input, np.random.default_rng(0), network.sizes
    images = random.standard_normal((sizes[-1], shape.channels, shape.height, shape.width), dtype=np.float32)
    times: dict[int, list[float]] = {}
    for size in sizes:
        if times and (repeats + 1) * times[max(times)][0] * size / max(times) > budget_s:
            break
        progress(f"a batch of {size} on {network.device}")
        network.run(images[:size])  # warms up, which takes a GPU seconds
        times[size] = [_timed(network, images[:size], clock)]
    for turn in range(1, repeats):
        for size, measured in times.items():
            progress(f"a batch of {size} on {network.device}: {turn + 1} of {repeats}")
            measured.append(_timed(network, images[:size], clock))
    batches = tuple((size, of(measured) * MS_PER_S) for size, measured in times.items())
    return Profile(batches, stepped=network.pads)


def _timed(network: Network, batch: np.ndarray, clock: Callable[[], float]) -> float:
    began = clock()
    network.run(batch)
    return clock() - began
