"""How far the maps of a plan that is not exact are from the network's own, as it was measured on a sample.

That is true of images that are like the sample, so how its values look is kept, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import chain

from serfer.core.dataclass_codec import LATER

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


@dataclass(frozen=True, slots=True)
class Foreground:
    """How far the foreground of maps changes: the values above a `threshold`, or the pixels of each class.

    `other_side` is the share of values on the other side of the threshold; both are None for classes. `iou` has, of
    each channel or class, what both foregrounds share of what either has; None where neither has any.
    """

    threshold: float | None
    other_side: float | None
    iou: tuple[float | None, ...]

    def __str__(self) -> str:
        """Return it in words."""
        known = [each for each in self.iou if each is not None]
        of = "classes" if self.threshold is None else "channels"
        if not known:
            overlap = "none is above it"
        elif len(known) == 1:
            overlap = f"IoU {known[0]:.3f}"
        else:
            overlap = f"mean IoU {sum(known) / len(known):.3f} of {len(known)} {of}, the least {min(known):.3f}"
        if self.threshold is None:
            return overlap
        return f"{self.other_side:.2%} of values are on the other side of {self.threshold:g} ({overlap})"


@dataclass(frozen=True, slots=True)
class SampleDifference:
    """How far windows are from the network on a whole sample, or on parts of one, of height x width pixels.

    `error` and `mean_error` are the largest and the mean difference relative to the range of the network's values, None
    for whole numbers. `agreement` is the share of pixels with the same class, or largest channel; None for one channel,
    and for whole numbers that are the same everywhere in both, of which no difference can be seen. `foreground` is of a
    map of classes, or of a threshold that was given. `look` is how the sample's values look that the network takes, and
    `spread` how far apart its own halves look; None for what says nothing of other images.
    """

    sample: str
    height: int
    width: int
    error: float | None
    mean_error: float | None
    agreement: float | None
    foreground: Foreground | None = field(default=None, metadata=LATER)
    look: PixelLook | None = field(default=None, metadata=LATER)
    spread: float = field(default=0.0, metadata=LATER)

    @property
    def of_one_class(self) -> bool:
        """Whether all pixels had one class, so that nothing was measured."""
        return self.error is None and self.agreement is None

    def __str__(self) -> str:
        """Return it in words: what was measured, and on what."""
        parts = []
        if self.of_one_class:
            parts.append("all pixels have one class, so that nothing is known of the difference")
        if self.error is not None:
            parts.append(f"values differ by at most {self.error:.1e} of their range, {self.mean_error:.1e} on average")
        if self.agreement is not None:
            parts.append(f"{1 - self.agreement:.2%} of pixels have another class")
        if self.foreground is not None:
            parts.append(str(self.foreground))
        return f"on {self.sample}, {self.height:,} x {self.width:,} pixels, {', and '.join(parts)}"
