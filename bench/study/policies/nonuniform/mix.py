"""How many instances with which batch sizes take a rate: large batches for the bulk, a small one for the rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from serfer_bench.study.policies.nonuniform.sizes import Size

_ROUNDING: Final = 1e-9


def mix(rate: float, sizes: Sequence[Size], least: float) -> tuple[Size, ...]:
    """Return the sizes of the fewest instances that take `rate` queries a second, largest first.

    `sizes` come largest first. Instances of one type cost the same, so all but one have the size that takes most
    (Algorithm 1 tries the largest batch first); the last one has the largest size whose range holds the rest. Below
    `least` queries a second an instance is dearer than Lambda, which gets the rest then.
    """
    if not sizes or sizes[0].up < least:
        return ()
    bulk = sizes[0]
    whole = math.floor(rate / bulk.up + _ROUNDING)
    rest = max(0.0, rate - whole * bulk.up)
    if rest <= _ROUNDING * bulk.up or rest < least:
        return (bulk,) * whole
    return (*(bulk,) * whole, holding(rest, sizes))


def holding(rate: float, sizes: Sequence[Size]) -> Size:
    """Return the largest size whose range holds a rate that the largest takes; between two ranges the upper one."""
    for size in sizes:
        if size.low <= rate <= size.up:
            return size
    return min((size for size in sizes if size.up >= rate), key=lambda size: size.up, default=sizes[0])
