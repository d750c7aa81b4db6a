"""The options of a map."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from operator import index
from typing import Any, Literal

from serfer.core.errors import UsageError
from serfer.core.options import Options, option
from serfer.offline.options import YieldOptions
from serfer.wiring.pipeline_options import PipelineOptions

NoData = float | Literal["auto", "none"]
IntegerType = Literal["uint8", "int8", "uint16", "int16", "uint32", "int32"]


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise UsageError(f"--bands is a list of numbers such as 4,3,2, not {text!r}") from None


@dataclass(frozen=True, kw_only=True)
class WindowOptions(Options):
    """What windows make of an image's pixels, and in which form."""

    bands: tuple[int, ...] = option(
        (),
        "The image's bands that are the network's channels, from 1, such as 4,3,2; by default all.",
        metavar="LIST",
        read=_numbers,
    )
    full_scale: float | None = option(
        None,
        "The value that counts as 255 does in a picture of 8 bits; by default the largest of the image's type, 65,535 "
        "for uint16, and 1 for floating point.",
    )
    no_data: NoData = option(
        "auto",
        "Pixels with this value in all bands hold no data: a number, auto (what the image says) or none.",
        metavar="VALUE",
    )
    no_data_bands: Literal["all", "any"] = option(
        "all", "Whether all of the bands that the network takes have that value in a pixel without data, or any."
    )
    dtype: IntegerType | None = option(
        None, "The result's type, where the network's output is of whole numbers: uint8, ..."
    )
    one_file: bool = option(
        False,
        "Of a network with several outputs: all of them as bands of one file, and not a file of each, OUT.NAME.tif.",
    )

    def __post_init__(self) -> None:
        if isinstance(self.no_data, str):
            with suppress(ValueError):
                object.__setattr__(self, "no_data", float(self.no_data))  # as the command line takes it: nan, 255
        super().__post_init__()
        try:
            bands = tuple(map(index, self.bands))
            _ = float(self.full_scale or 0), self.no_data if isinstance(self.no_data, str) else float(self.no_data)
        except (TypeError, OverflowError):
            raise UsageError("bands are whole numbers, such as (4, 3, 2), and values those of float64") from None
        object.__setattr__(self, "bands", bands)
        if self.full_scale is not None and not 0 < self.full_scale < float("inf"):
            raise UsageError(f"the value that counts as full is more than 0, not {self.full_scale}")
        if any(band < 1 for band in self.bands):
            raise UsageError("bands are counted from 1")

    def values(self) -> dict[str, Any]:
        """Return, of JSON's types, the options that change the result's values."""
        no_data = self.no_data if isinstance(self.no_data, str) else str(float(self.no_data))
        names = ("full_scale", "no_data_bands", "dtype", "one_file")
        return {"bands": [*self.bands], "no_data": no_data, **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True, kw_only=True)
class MapOptions(WindowOptions, YieldOptions, PipelineOptions):
    """How images are mapped. `values` are those that change the result's, and so a job's identity."""

    min_score: float | None = option(
        None, "Of a detector: the least score of a box, in place of the plan's.", least=0, most=1
    )
    max_iou: float | None = option(
        None, "Of a detector: the most of their union that two boxes of a class may share.", least=0, most=1
    )
    compression: Literal["deflate", "zstd", "none"] = option("deflate", "Of a TIFF.")
    concurrency: int | None = option(None, "Windows in flight; by default by workers and memory.", least=1)
    max_cost_usd: float | None = option(None, "Dollars that may be spent, what is in flight at its predicted price.")
    force: bool = option(False, "Start even if more than max_cost_usd is predicted.")
    overwrite: bool = option(False, "Replace a result that exists.")
    restart: bool = option(False, "Throw away what an earlier run has computed.")
    parts: str | None = option(
        None, "The folder where finished windows are kept until the result is written; by default OUT.parts."
    )
    check: bool = option(
        True, "Before the result is written, compare it with the network, run in one piece on parts of the image."
    )
    work: str | None = option(
        None, "The folder of maps that passes over an image keep for later ones; by default beside the parts."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_cost_usd is not None and not self.max_cost_usd > 0:
            raise UsageError(f"the dollars that may be spent are more than 0, not {self.max_cost_usd}")
        if self.engine.startswith("stepfunctions"):
            raise UsageError(
                f"engine={self.engine} runs whole plans, and a map runs one window at a time: use push or poll"
            )

    def values(self) -> dict[str, Any]:
        """Return, of JSON's types, the options that change the result's values."""
        return super().values() | {name: getattr(self, name) for name in ("min_score", "max_iou", "compression")}
