"""What the samples of an image mean, in pictures and in maps: which value is white, and whether the least one is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import ImageError


@dataclass(frozen=True)
class Samples:
    """Samples of a numpy type, of whose bits `bits` are used (None: all); `inverted`: 0 is stored for white."""

    dtype: str
    bits: int | None = None
    inverted: bool = False

    @property
    def white(self) -> float:
        """Return the value that counts as 255 does in a picture of 8 bits."""
        if self.bits is not None:
            return (1 << self.bits) - 1
        return 1.0 if np.dtype(self.dtype).kind == "f" else int(np.iinfo(self.dtype).max)

    def levels(self, values: NDArray[Any], name: str) -> NDArray[np.uint8]:
        """Return values as levels of 0 to 255, rounded; raises ImageError for any that is not from black to white."""
        least, most = values.min(), values.max()
        if not (least >= 0 and most <= self.white):  # so NaN is refused, too
            raise ImageError(
                f"{name} has {self.dtype} samples from {least:g} to {most:g}; 0 is black and {self.white:g} white: "
                "scale them to that (`serfer map` has full_scale)"
            )
        levels: NDArray[np.uint8] = np.rint(np.multiply(values, np.float32(255 / self.white), dtype=np.float32)).astype(
            np.uint8
        )
        return ~levels if self.inverted else levels


BYTES = Samples("uint8")
