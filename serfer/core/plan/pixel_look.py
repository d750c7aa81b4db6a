"""How the values of an image look to its network: what is measured on a sample is true of images that are like it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain

LAGS = (1, 4, 16)
"""Pixels apart, along rows and along columns, of values whose differences say how coarse or fine a texture is."""
_LEAST = 1e-9  # of a deviation: an image of one value has none


@dataclass(frozen=True, slots=True)
class PixelLook:
    """Of each channel the mean, the deviation, and the mean difference of values that are LAGS pixels apart."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    texture: tuple[tuple[float, ...], ...]

    @property
    def sound(self) -> bool:
        """Whether these can be values of an image."""
        lengths = {len(self.mean), len(self.deviation), *map(len, self.texture)}
        positive = [*self.deviation, *chain.from_iterable(self.texture)]
        finite = all(map(math.isfinite, (*self.mean, *positive))) and all(value >= 0 for value in positive)
        return finite and len(lengths) == 1 and 0 not in lengths and len(self.texture) == len(LAGS)

    def apart(self, other: PixelLook) -> tuple[float, str]:
        """Return how far another look is from this one, and what differs most, in words.

        That is the difference of means in deviations, and the logarithm of the ratio of deviations or of textures.
        """
        found = [(0.0, "nothing")]
        for channel, (mean, deviation) in enumerate(zip(self.mean, self.deviation, strict=True)):
            off = (other.mean[channel] - mean) / max(deviation, _LEAST)
            found.append((abs(off), f"the mean of channel {channel + 1} is {abs(off):.1f} deviations {_than(off)}"))
            spread = _ratio(other.deviation[channel], deviation)
            what = f"the deviation of channel {channel + 1} is {spread:.2g} times as large"
            found.append((abs(math.log(spread)), what))
            for lag, own, others in zip(LAGS, self.texture, other.texture, strict=True):
                ratio = _ratio(others[channel], own[channel])
                what = f"differences at {lag} px in channel {channel + 1} are {ratio:.2g} times as large"
                found.append((abs(math.log(ratio)), what))
        return max(found)


def _ratio(one: float, other: float) -> float:
    return max(one, _LEAST) / max(other, _LEAST)


def _than(off: float) -> str:
    return "higher" if off > 0 else "lower"
