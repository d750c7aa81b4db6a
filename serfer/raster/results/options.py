"""How a result is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Compression = Literal["deflate", "zstd", "none"]


@dataclass(frozen=True)
class ResultOptions:
    """How a result is written.

    Attributes:
        nodata: the value of pixels that hold none, named in a TIFF and left out of the scale of a PNG of depth.
        compression: of a TIFF's tiles; each is lossless, with a predictor (differences between neighbours).
        overwrite: replace a result that exists.
        mask: the values are classes 0 to 255 (one channel of uint8): PNG and TIFF get the palette of their colours.
        names: of the channels, for a TIFF: those of classes, for example.
        tags: texts for a TIFF's metadata.
    """

    nodata: float | None = None
    compression: Compression = "deflate"
    overwrite: bool = False
    mask: bool = False
    names: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
