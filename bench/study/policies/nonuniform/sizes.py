"""The batch sizes that instances of a type may have: the rates that each takes, and how long it waits for a batch."""

from __future__ import annotations

from dataclasses import dataclass

from serfer.control.dispatch import OWN
from serfer.control.scenario import InstanceType
from serfer.core.costs.operator_costs import SAFETY
from serfer.core.units import MS_PER_S
from serfer_bench.study.policies.infless.rates import exact_range, keeps_slo


@dataclass(frozen=True, slots=True)
class Size:
    """A batch size, and the queries a second that an instance takes with it, one image each."""

    batch: int
    low: float
    up: float


def size_of(kind: InstanceType, batch: int, slo_ms: float) -> Size:
    """Return a batch size with the rates of equation 1, at the type's times and the paper's 10% (3.3).

    One that nobody has set (OWN), or that is too slow for the SLO, waits for nothing and has no lower bound: it takes
    what the type sustains, whichever size its batches then have.
    """
    images = min(batch, kind.max_batch) or kind.max_batch
    exec_s, slo_s = _exec_s(kind, images), slo_ms / MS_PER_S
    if batch == OWN or not keeps_slo(exec_s, slo_s, images):
        return Size(batch, 0.0, kind.sustained_qps(slo_ms) / (1 + SAFETY))
    known = exact_range(exec_s, slo_s, images)
    return Size(batch, known.low, known.up)


def sizes_of(kind: InstanceType, slo_ms: float) -> tuple[Size, ...]:
    """Return the sizes that keep the SLO, largest first: powers of two and those that were measured.

    One that takes no more queries a second than a smaller one is left out; nothing keeps an SLO below an image's time.
    """
    powers = {1 << power for power in range(kind.max_batch.bit_length())}
    known: list[Size] = []
    for batch in sorted(powers | {size for size, _ in kind.batches}):
        if not keeps_slo(_exec_s(kind, batch), slo_ms / MS_PER_S, batch):
            continue
        size = size_of(kind, batch, slo_ms)
        if not known or size.up > known[-1].up:
            known.append(size)
    return tuple(reversed(known))


def _exec_s(kind: InstanceType, images: int) -> float:
    return (1 + SAFETY) * kind.batch_ms(images) / MS_PER_S
