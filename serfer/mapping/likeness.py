"""Whether an image is like the sample whose statistics a plan has: what the plan says of differences is of such."""

from __future__ import annotations

from serfer.core.errors import ImageError
from serfer.core.pixel_look import SIDE, look_of, places_of_parts
from serfer.core.plan import SampleDifference
from serfer.core.plan.sample_difference import LAGS
from serfer.mapping.input import WindowInput
from serfer.mapping.no_data import Gaps
from serfer.raster import RasterSource

_MORE = 1.25
"""How much further from the sample than its own halves are from one another an image is unlike it."""
_LEAST = 0.25


def unlike_sample(source: RasterSource, taken: WindowInput, gaps: Gaps, difference: SampleDifference | None) -> str:
    """Say that an image is unlike a plan's sample, by up to four parts of it; empty where it is like it, or none says.

    Parts with pixels that hold no data, or that cannot be read, do not count.
    """
    if difference is None or difference.look is None:
        return ""
    height, width = (min(SIDE, side) for side in source.size)
    if min(height, width) <= 2 * LAGS[-1]:
        return ""
    parts = []
    for place in places_of_parts(source.size, (height, width)):
        try:
            pixels, masked = source.read_masked(place) if gaps.mask else (source.read(place), None)
        except ImageError:  # the window that needs it fails
            continue
        if not gaps.possible or not gaps.missing(pixels, masked)[0].any():
            parts.append(taken.values(pixels))
    if not parts:
        return ""
    look = look_of(parts)
    if not look.sound:
        return ""
    apart, what = difference.look.apart(look)
    if apart <= max(_LEAST, _MORE * difference.spread):
        return ""
    return (
        f"this image is unlike the sample that the plan has its statistics from ({difference.sample}): {what}. Values "
        "may differ from the network's by far more than the plan says; make one with this image as --sample, or with "
        "--statistics exact"
    )
