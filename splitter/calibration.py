"""Labelled images of the network's own classes: what a replaced head is fitted to, and what any loss is measured on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Calibration:
    """Images as the network takes them, (N, C, H, W) float32, and the index of each one's class, (N,) int64."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]
