"""Where on earth the pixels of an image lie."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import ImageError
from serfer.raster.gdal import gdal, library, reason

_CRS84 = "OGC:CRS84"
Points = NDArray[np.float64]
_NOT_TO_SCALE = ("merc", "webmerc")
Transform = tuple[float, float, float, float, float, float]


@dataclass(frozen=True)
class Georeference:
    """A coordinate reference system (WKT) and an affine transform (a, b, c, d, e, f), each None where there is none.

    A point (row, col), counted from the upper left corner of the image, lies at x = a col + b row + c and
    y = d col + e row + f. `point`: the file says of its pixels that they are points (AREA_OR_POINT), which shifts
    nothing here. `not_kept` names what else the image has, such as ground control points, and a result does not.
    """

    crs: str | None = None
    transform: Transform | None = None
    point: bool = False
    not_kept: tuple[str, ...] = ()

    def scaled(self, rows: float, cols: float, top: float = 0.0, left: float = 0.0) -> Georeference:
        """Return the georeference of a result, each pixel of which covers rows x cols pixels of this image.

        Its corner lies at row `top` and column `left` of this image: not 0 where a network's output begins within.
        """
        if self.transform is None:
            return self
        a, b, c, d, e, f = self.transform
        moved = (a * cols, b * rows, a * left + b * top + c, d * cols, e * rows, d * left + e * top + f)
        return Georeference(self.crs, moved, self.point, self.not_kept)

    @property
    def pixel_m2(self) -> float | None:
        """Square metres of a pixel; None in degrees, or where a system is not true to scale, as Mercator's."""
        if self.crs is None or self.transform is None:
            return None
        a, b, _, d, e, _ = self.transform
        with suppress(Exception):  # rasterio raises several classes for systems that it cannot interpret
            crs = library().crs.CRS.from_wkt(self.crs)
            if crs.is_projected and crs.to_dict().get("proj") not in _NOT_TO_SCALE:
                area = abs(a * e - b * d) * crs.linear_units_factor[1] ** 2
                return area or None
        return None


def longitude_latitude(crs: str, points: Points) -> Points:
    """Return points (K, 2), x and y in a CRS (WKT), in degrees of WGS 84; raises ImageError where they have none."""
    with gdal(""):
        from rasterio import warp  # noqa: PLC0415 - of an extra

        try:
            found = warp.transform(crs, _CRS84, points[:, 0], points[:, 1])
        except Exception as error:  # GDAL and rasterio raise many classes
            raise ImageError(f"the image's coordinates have no longitude and latitude: {reason(error)}") from error
    places = np.stack([np.asarray(place, np.float64) for place in found], axis=1)
    if not np.isfinite(places).all():
        raise ImageError("the image's coordinates have no longitude and latitude at some of its boxes")
    return places
