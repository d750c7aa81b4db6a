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
from serfer.mapping.no_data import Place, missing_written
from serfer.mapping.options import MapOptions
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
    def of(
        cls, plan: Plan, windows: ImageWindows, numbers: Sequence[int], *, no_data: bool, options: MapOptions
    ) -> ResultForm:
        """Return the form of a result that holds some outputs, by their numbers, of an image with such windows.

        Raises UsageError for outputs that cannot be bands of one file.
        """
        tensors = [plan.output_tensors[number] for number in numbers]
        channels = [plan.stages[0].outputs[number].channels for number in numbers]
        views = [windows.of_output(number) for number in numbers]
        _check_alike(tensors, views)
        windows, dtype = views[0], tensors[0].dtype
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
            no_data=_no_data(dtype) if no_data else None,
            place=Place.of(windows),
        )

    def part(self, values: Mapping[str, NDArray[Any]], number: int, empty: NDArray[np.bool_] | None) -> NDArray[Any]:
        """Return a window's part (channels, rows, cols) from its outputs, of which `empty` pixels have no data.

        Raises InputError for what does not fit.
        """
        written = self.windows[number].written
        own = [values[name].reshape(-1, written.rows.size, written.cols.size) for name in self.outputs]
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


@dataclass(frozen=True)
class FormTarget:
    """Keeps what windows give by the form of a result, which says what a window covers and which pixels are empty."""

    form: ResultForm

    def covered(self, number: int, size: tuple[int, int]) -> Rect:
        """Return the pixels of an image of `size` that a window reads or its part of the result covers."""
        return self._known_place.covered(self.form.windows[number], size)

    def empty(self, missing: NDArray[np.bool_], read: Rect, number: int) -> NDArray[np.bool_]:
        return missing_written(missing, read, self.form.windows[number].written, self._known_place)

    @property
    def _known_place(self) -> Place:
        assert self.form.place is not None  # noqa: S101 - without one, an image without data is refused
        return self.form.place


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
