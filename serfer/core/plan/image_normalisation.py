"""Normalisation of an image by its own values: by percentiles, or to mean 0 and variance 1.

The formulas are those of bioimage.io's `scale_range` and `zero_mean_unit_variance`, of CSBDeep's (StarDist's)
`normalize` and of Cellpose's `normalize99`: nothing is clipped unless it is asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serfer.core.errors import PlanError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

EPS = 1e-6
"""What is added to the range or the standard deviation, as bioimage.io has it."""


@dataclass(frozen=True, slots=True)
class ImageNormalisation:
    """How an image's pixels x are normalised by statistics of the whole image.

    With `percentiles` (low, high) x becomes (x - p_low) / (p_high - p_low + eps), which `clip` limits to 0 and 1;
    without them (x - mean) / (std + eps). Statistics are each channel's, or where not `per_channel` those of all
    channels together. Raises PlanError for values that no description has.
    """

    percentiles: tuple[float, float] | None = None
    per_channel: bool = True
    eps: float = EPS
    clip: bool = False

    def __post_init__(self) -> None:
        if self.percentiles is not None:
            low, high = map(float, self.percentiles)
            object.__setattr__(self, "percentiles", (low, high))  # whole numbers are others in a plan's text
            if not 0 <= low < high <= 100:  # noqa: PLR2004 - per cent
                raise PlanError(
                    f"percentiles of the preprocessing should be two numbers of 0 to 100, the lower first, not {low:g} "
                    f"and {high:g}"
                )
        elif self.clip:
            raise PlanError("clip of the preprocessing is for percentiles: leave it out, or give percentiles")
        if not 0 < self.eps <= 1:
            raise PlanError(f"eps of the preprocessing should be above 0 and at most 1, not {self.eps:g}")

    def __str__(self) -> str:
        of = "each channel" if self.per_channel else "all channels together"
        if self.percentiles is None:
            return f"to mean 0 and variance 1 of the whole image, by {of}"
        low, high = self.percentiles
        clipped = ", clipped" if self.clip else ""
        return f"{low:g} and {high:g} percentiles of the whole image to 0 and 1{clipped}, by {of}"

    def by_percentiles(self, pixels: int, found: NDArray[np.float64]) -> ImageStatistics:
        """Return the statistics of an image of so many `pixels` with data, whose percentiles are (channels or 1, 2)."""
        return ImageStatistics(
            pixels, tuple(found[:, 0].tolist()), tuple((found[:, 1] - found[:, 0] + self.eps).tolist())
        )

    def by_moments(self, pixels: int, mean: NDArray[np.float64], std: NDArray[np.float64]) -> ImageStatistics:
        """Return the statistics of an image of so many `pixels` with data, of mean and deviation (channels or 1,)."""
        return ImageStatistics(pixels, tuple(mean.tolist()), tuple((std + self.eps).tolist()))


@dataclass(frozen=True, slots=True)
class ImageStatistics:
    """What was measured of an image, for each of the network's channels, or one for all: `pixels` of it hold data.

    A value x is normalised to (x - offset) / span, where the span has its eps already.
    """

    pixels: int
    offset: tuple[float, ...]
    span: tuple[float, ...]

    def __post_init__(self) -> None:
        numbers = (*self.offset, *self.span)
        if len(self.offset) != len(self.span) or not all(map(math.isfinite, numbers)) or min(self.span, default=1) <= 0:
            raise PlanError("the statistics of an image are not numbers that pixels can be normalised by")
