"""The options of a map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from serfer.control.throttle import Thresholds
from serfer.core.errors import UsageError

NoData = float | Literal["auto", "none"]
INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32")


@dataclass(frozen=True)
class MapOptions:
    """The options of a map; those of the first group change the result's values, and so a job's identity.

    Attributes:
        bands: the image's bands that are the network's channels, in its order, counted from 1; by default all.
        full_scale: the value that counts as 255 does in a picture of 8 bits, for the plan's preprocessing. By default
            the largest of the image's type, 65,535 for uint16; 1.0 for floating point.
        no_data: the image's value for pixels that hold none: its own ("auto"), a number, or "none" if all count.
        no_data_bands: "all" if a pixel holds no data where all the network's bands have that value, "any" if one is
            enough.
        dtype: the result's type, where the network's output is of whole numbers.
        min_score: the least score of a detector's boxes, in place of the plan's.
        max_iou: the most of their union that two boxes of a class may share, in place of the plan's.
        one_file: the outputs of a network with several, of one size and type, are the bands of one file.
        compression: of a TIFF: "deflate", "zstd" or "none".
        concurrency: windows in flight; by default as many as the workers are for.
        max_cost_usd: dollars that may be spent, with what is in flight at its predicted price.
        force: start where more than `max_cost_usd` is predicted.
        overwrite: replace a result that exists.
        restart: throw away what an earlier run has computed.
        parts: where finished windows are kept until the result is written; by default next to it, RESULT.parts.
        work: the folder of the maps that passes over an image keep for later ones; by default that of the parts.
        yield_to: URLs of running services: no window starts while one of them has more online load than the next two.
        yield_utilisation: the share in use, of what answers a service's queries, above which no window starts.
        yield_latency: the latency of its queries, as a multiple of their profile, above which no window starts.
        check: compare the result with the network on parts of the image, for a few seconds, before it is written.
    """

    bands: tuple[int, ...] = ()
    full_scale: float | None = None
    no_data: NoData = "auto"
    no_data_bands: Literal["all", "any"] = "all"
    dtype: str | None = None
    min_score: float | None = None
    max_iou: float | None = None
    one_file: bool = False
    compression: Literal["deflate", "zstd", "none"] = "deflate"
    concurrency: int | None = None
    max_cost_usd: float | None = None
    force: bool = False
    overwrite: bool = False
    restart: bool = False
    parts: str | None = None
    work: str | None = None
    yield_to: tuple[str, ...] = ()
    yield_utilisation: float = Thresholds.utilisation
    yield_latency: float = Thresholds.latency
    check: bool = True

    def __post_init__(self) -> None:
        Thresholds(self.yield_utilisation, self.yield_latency)
        if self.concurrency is not None and self.concurrency < 1:
            raise UsageError(f"at least one window is in flight, not {self.concurrency}")
        if self.max_cost_usd is not None and not self.max_cost_usd > 0:
            raise UsageError(f"the dollars that may be spent are more than 0, not {self.max_cost_usd}")
        if self.full_scale is not None and not 0 < self.full_scale < float("inf"):
            raise UsageError(f"the value that counts as full is more than 0, not {self.full_scale}")
        if self.dtype is not None and self.dtype not in INTEGERS:
            raise UsageError(f"a result of whole numbers is {', '.join(INTEGERS)}, not {self.dtype}")
        for name, share in (("--min-score", self.min_score), ("--max-iou", self.max_iou)):
            if share is not None and not 0 <= share <= 1:
                raise UsageError(f"{name} is from 0 to 1, not {share:g}")
        if any(band < 1 for band in self.bands):
            raise UsageError("bands are counted from 1")

    def values(self) -> dict[str, Any]:
        """Return, of JSON's types, the options that change the result's values."""
        no_data = self.no_data if isinstance(self.no_data, str) else str(float(self.no_data))
        names = ("full_scale", "no_data_bands", "dtype", "min_score", "max_iou", "one_file", "compression")
        return {"bands": [*self.bands], "no_data": no_data, **{name: getattr(self, name) for name in names}}
