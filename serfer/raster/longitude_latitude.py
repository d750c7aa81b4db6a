"""Points of a map's coordinate reference system as longitude and latitude."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import ImageError
from serfer.raster.gdal import gdal, reason

_CRS84 = "OGC:CRS84"
Points = NDArray[np.float64]


def longitude_latitude(crs: str, points: Points) -> Points:
    """Return points (K, 2), x and y in a CRS (WKT), as longitude and latitude (K, 2) in degrees of WGS 84.

    Raises ImageError for a CRS from which there is no way there, or points that have no place in it.
    """
    with gdal(""):
        from rasterio import warp  # noqa: PLC0415 - of an extra

        try:
            found = warp.transform(crs, _CRS84, points[:, 0], points[:, 1])
        except Exception as error:  # GDAL and rasterio raise many classes
            raise ImageError(f"the image's coordinates have no longitude and latitude: {reason(error)}") from error
    places = np.stack([np.asarray(each, np.float64) for each in found], axis=1)
    if not np.isfinite(places).all():
        raise ImageError("the image's coordinates have no longitude and latitude at some of its boxes")
    return places
