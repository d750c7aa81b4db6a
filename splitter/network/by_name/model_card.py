"""What the metadata of weights say of a network, before it is built."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from serfer.core.plan import INTERPOLATIONS, Preprocess

_ROUNDING = 1e-6
"""Makes 224 / (224 / 232) the 232 that it is."""
_DEFAULT = "bilinear"


@dataclass(frozen=True)
class ModelCard:
    """An architecture with the weights that are meant where no others are given.

    `weights` is what these are called, empty where the library has none. The input is `shape`, (C, H, W); `crop` is the
    share of an image's shorter side that is kept, None where the whole image is stretched. `cached` are the files of
    these weights that are on this machine, `missing` says where they were looked for, `published` are names that no
    other file has. `others` are weights of the same architecture that are here. `note` says what a plan cannot do as
    the metadata have it. `classifies`: the output are classes of the image, which the layer `head` tells apart, where
    the library names it; `classes` is 0 where the architecture comes without that layer.
    """

    name: str
    weights: str
    shape: tuple[int, int, int]
    classes: int
    crop: float | None
    interpolation: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    labels: tuple[str, ...] = ()
    activation: str = "none"
    cached: tuple[Path, ...] = ()
    published: tuple[str, ...] = ()
    missing: str = ""
    others: tuple[str, ...] = ()
    note: str = ""
    classifies: bool = True
    head: str = ""

    def preprocess(self, shape: tuple[int, int, int]) -> Preprocess | None:
        """Return the preprocessing for an input (C, H, W), in the metadata's proportions; None for other channels."""
        if shape[0] != len(self.mean):
            return None
        resize = None if self.crop is None else math.floor(min(shape[1:]) / self.crop + _ROUNDING)
        known = self.interpolation if self.interpolation in INTERPOLATIONS else _DEFAULT
        channels = "L" if shape[0] == 1 else "RGB"
        return Preprocess(resize, known, channels, 1 / 255, self.mean, self.std)
