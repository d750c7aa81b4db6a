"""Images that no memory holds: read by windows, and results written window by window.

    open_raster ──▶ RasterSource.read(rect) ──▶ the caller computes ──▶ ResultParts.put(number, array)
                                                                                   │ all parts are there
                                              RESULT.tif, .png, .npy ◀── write_result

This package knows nothing of plans or networks. What reads or writes TIFF needs rasterio, of the extra `map`
(docs/adr/0028): it is imported when the first such file is opened, not before.
"""

from serfer.raster.georeference import Georeference
from serfer.raster.reading.header import RasterLimits
from serfer.raster.reading.source import RasterSource, open_raster
from serfer.raster.results.parts import ResultParts
from serfer.raster.results.result import check_free, check_result, check_space, publish, write_result
from serfer.raster.results.tiff_result import ResultOptions

__all__ = [
    "Georeference",
    "RasterLimits",
    "RasterSource",
    "ResultOptions",
    "ResultParts",
    "check_free",
    "check_result",
    "check_space",
    "open_raster",
    "publish",
    "write_result",
]
