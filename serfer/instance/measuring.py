"""Measurements of a network before its instance serves: answers, speed, bytes, and how long it takes to load.

The speed is the light profile of MArk, section 4.3: how long batches of 1, 2, 4, ... images take.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from serfer.control.batching import Profile
from serfer.core.errors import WrongAnswerError
from serfer.core.exactness import TOLERANCE, Difference, difference
from serfer.core.plan import Plan
from serfer.core.plan.answers import Answer
from serfer.core.units import MS_PER_S
from serfer.instance.network import Array, Hardware, Network, converter, open_network, prepared_device
from serfer.pipeline.reference import unsplit
from serfer.plan_directory import check_artefacts
from serfer.system import begin_peak, give_back, machine_bytes, peak_bytes, resident_bytes

_IMAGES = 2  # of a comparison
_REPEATS, _BUDGET_S = 3, 4.0  # of the profile that it starts with, each size's best: batches will correct it


@dataclass(frozen=True)
class NetworkMeasurement:
    """A network as it was measured when the instance started.

    `size` are the bytes that it takes when loaded, `load_size` those that loading takes; `load_s` are seconds, `loss`
    is how far its answers are from fp32's on a processor, relative to their range. `stamps` tell its files' versions.
    `caution` says why its recorded accuracy may be another here, empty where it is not.
    """

    plan: Plan
    directory: Path
    device: str
    precision: str
    max_batch: int
    profile: Profile
    loss: float
    size: int
    load_size: int
    load_s: float
    stamps: tuple[tuple[int, int, int], ...]
    caution: str = ""


def measure(
    plan: Plan,
    directory: Path,
    load: Callable[[], Network],
    hardware: Hardware,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[Network, NetworkMeasurement]:
    """Load a network, compare its answers, profile it, and measure what it takes, while nothing else grows.

    Its bytes are those of its weights at least, and on a GPU whose memory cannot be read exactly those. Raises what
    loading raises, WrongAnswerError where it computes something else than the plan.
    """
    progress(f"computing what {plan.model} should answer")
    answer = expected(plan, directory)
    if hardware.precision == "fp16":
        converter()  # imported before anything is measured
    progress(f"loading {plan.model}")
    before = {device: used_bytes(device) for device in ("cpu", prepared_device(hardware.device))}
    peaks, began = begin_peak(), time.monotonic()
    network = load()
    load_s, peak = time.monotonic() - began, peak_bytes() if peaks else None
    device = network.device
    progress(f"comparing {device}'s answers with the unsplit network's")
    loss = compare(plan, network, answer).error
    measured = profile(plan, network, _REPEATS, budget_s=_BUDGET_S, of=min, progress=progress).tidied()
    used, after, least = before[device], used_bytes(device), weight_bytes(plan)
    size = max(least, after - used if used is not None and after is not None else 0)
    load_size = size
    if device == "cpu":  # ONNX Runtime holds what it reads beside its own copy
        load_size = max(size, peak - used if used is not None and peak is not None else size + least)
    return network, NetworkMeasurement(
        plan=plan,
        directory=directory,
        device=device,
        precision=network.precision,
        max_batch=network.max_batch,
        profile=measured,
        loss=loss,
        size=size,
        load_size=load_size,
        load_s=load_s,
        stamps=_stamps(plan, directory),
    )


def weight_bytes(plan: Plan) -> int:
    files = {function.weights.path: function.weights.bytes for stage in plan.stages for function in stage.functions}
    return plan.unsplit.bytes + sum(files.values())


def load_again(known: NetworkMeasurement, hardware: Hardware) -> Network:
    """Load a network that was measured before; raises PlanError for one whose files are others now, as `open_network`.

    It computes an image, so that the first query does not wait for what a first batch takes.
    """
    plan, shape = known.plan, known.plan.input
    if _stamps(plan, known.directory) != known.stamps:
        check_artefacts(plan, known.directory)
    hardware = replace(hardware, device=known.device, precision=known.precision)
    network = open_network(plan, known.directory, hardware, known.max_batch)
    network.run(np.zeros((1, shape.channels, shape.height, shape.width), np.float32))
    return network


def _stamps(plan: Plan, directory: Path) -> tuple[tuple[int, int, int], ...]:
    """Return inode, bytes and time of change of every file of a plan; zeros for one that is not there."""
    stamps = []
    for artefact in plan.artefacts:
        try:
            stat = (directory / artefact.path).stat()
        except OSError:
            stamps.append((0, 0, 0))
        else:
            stamps.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return tuple(stamps)


def profile(
    plan: Plan,
    network: Network,
    repeats: int,
    *,
    budget_s: float,
    of: Callable[[Sequence[float]], float] = median,
    progress: Callable[[str], None] = lambda _: None,
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


def expected(plan: Plan, directory: Path) -> Answer:
    """Return what the unsplit network of a plan makes of noise; it is in memory only meanwhile."""
    return unsplit(plan, directory)(_noise(plan))


def compare(plan: Plan, network: Network, answer: Answer) -> Difference:
    """Measure how far a network's answers are from `expected` ones.

    Raises WrongAnswerError where fp32 breaks rule 1: then it must not serve. What fp16 loses is for the caller to say.
    """
    deviation = difference(network.run(_noise(plan)), answer)
    if network.precision == "fp32" and not deviation.exact:
        raise WrongAnswerError(
            f"{plan.model} on {network.device} differs from the unsplit network by {deviation.error:.2g} of the "
            f"logits' range, more than {TOLERANCE:g}: use --device cpu"
        )
    return deviation


def _noise(plan: Plan) -> Array:
    shape = plan.input
    size = (_IMAGES, shape.channels, shape.height, shape.width)
    return np.random.default_rng(0).standard_normal(size, dtype=np.float32)


_SHARE = 0.6  # of the machine: the rest is for the process, its decoders, bodies and images that wait
_GPU_SHARE = 0.9  # of what is free: CUDA's libraries take workspace
_CUDART = ("libcudart.so.13", "libcudart.so.12")  # found once ONNX Runtime has loaded its own


def default_bound(device: str) -> int | None:
    """Return how many bytes networks may take: 60% of the machine's or the container's memory, 90% of a GPU's free one.

    None for a GPU whose memory cannot be read.
    """
    if device == "cuda":
        known = _gpu()
        return None if known is None else int(known[0] * _GPU_SHARE)
    return int(machine_bytes() * _SHARE)


def used_bytes(device: str) -> int | None:
    """Return the bytes in use: resident ones of this process, or all of a GPU; None where they cannot be read."""
    if device == "cuda":
        known = _gpu()
        return None if known is None else known[1] - known[0]
    gc.collect()
    give_back()
    return resident_bytes()


def _gpu() -> tuple[int, int] | None:
    """Return the free bytes and all bytes of the current GPU by CUDA's runtime, None where it is not loaded."""
    for name in _CUDART:
        try:
            ask = ctypes.CDLL(name).cudaMemGetInfo
        except (OSError, AttributeError):
            continue
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        if ask(ctypes.byref(free), ctypes.byref(total)) == 0:
            return free.value, total.value
    return None
