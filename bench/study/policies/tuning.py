"""The batch size of an instance, and the longest wait for a batch: MArk's tuning.

The paper (section 4.3) raises the batch size b from 1 while some waiting window W >= 0 fulfils both

    W + T_b <= RT_max       no query waits and computes for longer than the service-level objective
    W + T_b <= b / mu_nb    the batch is done before its images would be, one after the other

where T_b is the time of a batch and mu_nb the rate without batching, and takes the last b, with the largest such W.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from serfer.control.batching import Profile
from serfer.core.errors import InputError, UsageError
from serfer.core.units import MS_PER_S

_ALMOST: Final = 1 + 1e-9  # of two sides that are equal but for rounding


@dataclass(frozen=True)
class Tuning:
    """The result of the tuning: N_batch, W_batch in milliseconds, T_b of that batch, and mu*, its images a second.

    `sustained_qps` is what is left of that where batches follow each other without a pause: a query that has just
    missed one waits for it and then computes, so two batches have to fit the objective (MArk's first constraint knows
    only of an instance that is free). `sustained_most` is the batch that does so fastest.
    """

    most: int
    window_ms: float
    batch_ms: float
    rate: float
    sustained_most: int
    sustained_qps: float


def check_objective(slo_ms: float) -> None:
    if not 0 < slo_ms < float("inf"):
        raise UsageError(f"--slo-ms is a number of milliseconds above 0, not {slo_ms:g}")


def tune(profile: Profile, slo_ms: float) -> Tuning:
    """Tune a machine for an objective of `slo_ms`; raises InputError where it cannot answer a single query in time."""
    check_objective(slo_ms)
    if (alone := profile.batch_ms(1)) > slo_ms:
        raise InputError(
            f"one image takes {alone:,.1f} ms here, longer than --slo-ms {slo_ms:g}: raise it, or take a faster machine"
        )
    most = 1
    while most < profile.max_batch and _window_ms(profile, most + 1, slo_ms) is not None:
        most += 1
    sustained = max(_sustained(profile, most, slo_ms), key=lambda size: size / profile.batch_ms(size))
    return Tuning(
        most=most,
        window_ms=_window_ms(profile, most, slo_ms) or 0.0,
        batch_ms=profile.batch_ms(most),
        rate=_rate(profile, most),
        sustained_most=sustained,
        sustained_qps=_rate(profile, sustained),
    )


def _window_ms(profile: Profile, size: int, slo_ms: float) -> float | None:
    room_ms, took_ms = min(slo_ms, size / profile.rate * MS_PER_S), profile.batch_ms(size)
    return max(0.0, room_ms - took_ms) if took_ms <= room_ms * _ALMOST else None


def _sustained(profile: Profile, most: int, slo_ms: float) -> list[int]:
    """Return the sizes whose batches can follow each other within the objective; single, evenly spaced queries can."""
    return [1, *(size for size in range(2, most + 1) if 2 * profile.batch_ms(size) <= slo_ms)]


def _rate(profile: Profile, size: int) -> float:
    return size / profile.batch_ms(size) * MS_PER_S
