"""The result of a map: its type and layout, where its pixels lie, and what stands for no data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import InputError, UsageError
from serfer.core.geometry import Rect
from serfer.core.plan import OutputTensor, Plan
from serfer.core.plan.windows import AxisWindows, ImageWindows
from serfer.core.zarr import Axis, ChunkedArray
from serfer.mapping.no_data import NO_PLACE, Place, missing_written
from serfer.mapping.options import MapOptions
from serfer.mapping.report import MapResult
from serfer.mapping.steps import MappedImage
from serfer.raster import Georeference, RasterSource, ResultOptions

_TYPES = {"float32": "float32", "int64": "int32", "int32": "int32", "uint8": "uint8", "bool": "uint8"}
_MOST_CLASSES = 255  # of uint8, one value being no data


@dataclass(frozen=True)
class ResultForm:
    """The form of a result of an image, which holds the `outputs` of the network by these names, as its bands.

    `windows` are those of the image, with what they write of the result. `no_data` is the result's own value for it,
    None where the image names none. Classes that the plan has labels for are uint8 with a palette (`mask`). `place`
    says where on the image the result lies, None where no place is the middle of what the network reads.
    """

    outputs: tuple[str, ...]
    windows: ImageWindows
    array: ChunkedArray
    bands: tuple[str, ...]
    whole: bool
    mask: bool
    no_data: float | None
    place: Place | None

    @classmethod
    def of(cls, mapped: MappedImage, numbers: Sequence[int]) -> ResultForm:
        """Return the form of a result of outputs, by number.

        Raises UsageError where one file cannot hold them, InputError where pixels without data have no place on it.
        """
        plan, options = mapped.plan, mapped.options
        tensors = [plan.output_tensors[number] for number in numbers]
        channels = [plan.stages[0].outputs[number].channels for number in numbers]
        views = [mapped.windows.of_output(number) for number in numbers]
        _check_alike(tensors, views)
        windows, dtype = views[0], tensors[0].dtype
        place = Place.of(windows)
        if mapped.gaps.possible and place is None:
            raise InputError(
                f"{mapped.source.name} says which pixels hold no data, and {NO_PLACE}: it cannot be said which pixels "
                "of the result have none; map all pixels as they are with --no-data none"
            )
        whole = dtype != "float32"
        mask = whole and channels == [1] and 0 < len(plan.labels) <= _MOST_CLASSES and options.dtype is None
        dtype = "uint8" if mask else (options.dtype if whole else None) or _TYPES[dtype]
        return cls(
            outputs=tuple(tensor.name for tensor in tensors),
            windows=windows,
            bands=_bands(tensors, channels, plan),
            whole=whole,
            array=ChunkedArray(
                name=tensors[0].name,
                dtype=dtype,
                dims=(sum(channels), windows.height, windows.width),
                images=1,
                channels=sum(channels),
                rows=_axis(windows.rows),
                cols=_axis(windows.cols),
                flat=False,
            ),
            mask=mask,
            no_data=_no_data(dtype) if mapped.gaps.possible else None,
            place=place,
        )

    def covered(self, number: int, size: tuple[int, int]) -> Rect:
        """Return the pixels of an image of `size` that a window reads or its part of the result covers."""
        return self._known_place.covered(self.windows[number], size)

    def empty(self, missing: NDArray[np.bool_], read: Rect, number: int) -> NDArray[np.bool_]:
        return missing_written(missing, read, self.windows[number].written, self._known_place)

    @property
    def _known_place(self) -> Place:
        assert self.place is not None  # noqa: S101 - without one, an image without data is refused
        return self.place

    def part(self, number: int, outputs: Mapping[str, NDArray[Any]], empty: NDArray[np.bool_] | None) -> NDArray[Any]:
        """Return a part (channels, rows, cols), of which `empty` pixels have no data; raises InputError."""
        written = self.windows[number].written
        own = [outputs[name].reshape(-1, written.rows.size, written.cols.size) for name in self.outputs]
        flat = own[0] if len(own) == 1 else np.concatenate(own)
        part = np.ascontiguousarray(_cast(flat, self.array.dtype))
        if empty is not None and empty.any():
            part = part if part.flags.writeable and part.base is None else part.copy()
            part[:, empty] = self.no_data
        return part

    def empty_part(self, number: int) -> NDArray[Any]:
        written = self.windows[number].written
        shape = self.array.channels, written.rows.size, written.cols.size
        return np.full(shape, self.no_data, self.array.dtype)

    def result(self, path: str) -> MapResult:
        array = self.array
        return MapResult(path, self.outputs, array.rows.size, array.cols.size, array.channels, array.dtype)

    def georeference(self, source: RasterSource) -> Georeference:
        if self.place is None:
            return Georeference()
        rows, cols = self.place.rows, self.place.cols
        return source.georeference.scaled(rows.step, cols.step, rows.start, cols.start)

    def options(self, plan: Plan, options: MapOptions) -> ResultOptions:
        return ResultOptions(
            nodata=self.no_data,
            compression=options.compression,
            overwrite=options.overwrite,
            mask=self.mask,
            names=self.bands,
            tags={"SERFER_PLAN": plan.digest, "SERFER_MODEL": plan.model, "SERFER_WEIGHTS": plan.weights},
        )


def result_forms(mapped: MappedImage) -> list[ResultForm]:
    plan, options = mapped.plan, mapped.options
    numbers = range(len(plan.output_tensors))
    groups = [[*numbers]] if options.one_file else [[number] for number in numbers]
    forms = [ResultForm.of(mapped, group) for group in groups]
    if options.dtype is not None and not any(form.whole for form in forms):
        kinds = ", ".join(dict.fromkeys(tensor.dtype for tensor in plan.output_tensors))
        raise UsageError(f"the network's output is {kinds}: dtype is for one of whole numbers")
    return forms


def _check_alike(tensors: Sequence[OutputTensor], views: Sequence[ImageWindows]) -> None:
    forms = {(view.height, view.width, tensor.dtype) for tensor, view in zip(tensors, views, strict=True)}
    places = {Place.of(view) for view in views}
    if len(forms) > 1 or len(places) > 1:
        each = ", ".join(
            f"{tensor.name} is {view.height:,} x {view.width:,} {tensor.dtype}"
            for tensor, view in zip(tensors, views, strict=True)
        )
        raise UsageError(
            f"one_file is for outputs of one size, place and type, and {each}: leave it out, for a file of each"
        )


def _bands(tensors: Sequence[OutputTensor], channels: Sequence[int], plan: Plan) -> tuple[str, ...]:
    if len(tensors) > 1:
        return tuple(
            tensor.name if count == 1 else f"{tensor.name} {band}"
            for tensor, count in zip(tensors, channels, strict=True)
            for band in range(1, count + 1)
        )
    return plan.labels if len(plan.labels) == channels[0] else ()


def _axis(windows: AxisWindows) -> Axis:
    return Axis((0, *(window.written.stop for window in windows.windows)))


def _no_data(dtype: str) -> float:
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return float("nan")
    return float(np.iinfo(kind).min if kind.kind == "i" else np.iinfo(kind).max)


def _cast(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    if values.dtype == dtype:
        return values
    cast = values.astype(dtype)
    if values.dtype.kind != "b" and not (cast == values).all():
        raise InputError(
            f"the network's values reach from {values.min()} to {values.max()}, which {dtype} does not hold: choose "
            "another dtype"
        )
    return cast
