"""Compute times of batches by their size."""

from __future__ import annotations

from dataclasses import dataclass, replace

from serfer.core.errors import InputError
from serfer.core.units import MS_PER_S


class BatchTimes:
    """Compute times of batches: `batches` are (images, milliseconds) as measured, by size.

    With `stepped`, batches are padded to one of these sizes.
    """

    batches: tuple[tuple[int, float], ...]
    stepped: bool = False

    @property
    def max_batch(self) -> int:
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
