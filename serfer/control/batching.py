"""The batch size of an instance, and the longest wait for a batch: MArk's tuning.

The paper (section 4.3) raises the batch size b from 1 while some waiting window W >= 0 fulfils both

    W + T_b <= RT_max       no query waits and computes for longer than the service-level objective
    W + T_b <= b / mu_nb    the batch is done before its images would be, one after the other

where T_b is the time of a batch and mu_nb the rate without batching, and takes the last b, with the largest such W.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from serfer.core.errors import InputError, UsageError

MS_PER_S = 1000.0
_ALMOST = 1 + 1e-9  # of two sides that are equal but for rounding


class BatchTimes:
    """Compute times of batches: `batches` are (images, milliseconds) as measured, by size.

    With `stepped`, batches are padded to one of these sizes.
    """

    batches: tuple[tuple[int, float], ...]
    stepped: bool = False

    @property
    def max_batch(self) -> int:
        """The largest batch that was measured, in images."""
        return self.batches[-1][0]

    def batch_ms(self, images: int) -> float:
        """Return what a batch takes: between two measured sizes in proportion, beyond the last at its rate.

        A padded batch takes as long as the larger of the two, one below the smallest measured size as long as that.
        """
        smaller, smaller_ms = 0, 0.0
        for size, ms in self.batches:
            if images <= size:
                if images == size or not smaller or self.stepped:
                    return ms
                return smaller_ms + (images - smaller) / (size - smaller) * (ms - smaller_ms)
            smaller, smaller_ms = size, ms
        return smaller_ms * images / smaller


@dataclass(frozen=True)
class Profile(BatchTimes):
    """Times of a network on a machine: `batches` are (images, milliseconds), by size, from one image on.

    `unbatched_qps` is mu_nb, the queries a second that it computes one by one; None: as fast as batches of one go.
    With `stepped`, batches are padded to one of these sizes. Raises InputError for anything else.
    """

    batches: tuple[tuple[int, float], ...]
    unbatched_qps: float | None = None
    stepped: bool = False

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.batches]
        if not sizes or sizes[0] != 1 or sizes != sorted(set(sizes)):
            raise InputError(f"a profile has batches of 1, 2, ... images, by size, not of {str(sizes)[:80]}")
        numbers = [ms for _, ms in self.batches]
        if self.unbatched_qps is not None:
            numbers.append(self.unbatched_qps)
        if not all(0 < number < float("inf") for number in numbers):
            raise InputError("a profile's times and its rate are more than 0, and not infinite")

    @property
    def rate(self) -> float:
        """mu_nb, in queries a second."""
        return MS_PER_S / self.batches[0][1] if self.unbatched_qps is None else self.unbatched_qps

    def tidied(self) -> Profile:
        """Return the profile without what only a disturbance explains.

        No batch takes longer than a larger one, nor longer than its images would in smaller batches.
        """
        times = [ms for _, ms in self.batches]
        for at, (size, _) in enumerate(self.batches):
            bound = min((times[below] * size / self.batches[below][0] for below in range(at)), default=times[at])
            times[at] = min(bound, *times[at:])
        return replace(self, batches=tuple((size, ms) for (size, _), ms in zip(self.batches, times, strict=True)))


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
    """Raise InputError for what is not an objective."""
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
    """Return the largest W that fulfils both constraints for a batch of `size`, None where none does."""
    room_ms, took_ms = min(slo_ms, size / profile.rate * MS_PER_S), profile.batch_ms(size)
    return max(0.0, room_ms - took_ms) if took_ms <= room_ms * _ALMOST else None


def _sustained(profile: Profile, most: int, slo_ms: float) -> list[int]:
    """Return the sizes whose batches can follow each other within the objective; single, evenly spaced queries can."""
    return [1, *(size for size in range(2, most + 1) if 2 * profile.batch_ms(size) <= slo_ms)]


def _rate(profile: Profile, size: int) -> float:
    return size / profile.batch_ms(size) * MS_PER_S
