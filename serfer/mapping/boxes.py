"""Boxes of a whole image: candidates of each window are kept, and chosen together when all windows are there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.costs.sessions import set_threads
from serfer.core.crc32c import crc32c
from serfer.core.detections import Boxes
from serfer.core.errors import AlteredPieceError, PlanError, UsageError
from serfer.core.frame_decoder import COLUMNS, FrameDecoder, Head
from serfer.core.geometry import Rect
from serfer.core.plan import DetectionHead, Plan
from serfer.core.zarr import CRC_BYTES, ChunkedArray
from serfer.mapping.box_files import BoxedImage, write_boxes
from serfer.mapping.box_grid import without_overlaps_by_cells
from serfer.mapping.options import MapOptions
from serfer.mapping.output import ResultForm
from serfer.mapping.report import MapResult
from serfer.mapping.steps import MappedImage
from serfer.plan_directory import file_sha256
from serfer.raster import RasterSource, ResultParts, check_free, publish

Size = tuple[int, int]
_ROW_BYTES = COLUMNS * 8
MOST_CANDIDATES = 2_000_000
"""Candidate boxes of an image at most: 112 MB."""


def form_and_head(mapped: MappedImage) -> tuple[ResultForm, DetectionHead]:
    """Return the form of the finest map of a detector's heads, and the plan's head; raises UsageError."""
    plan, views = mapped.plan, mapped.windows
    if plan.boxes is None:
        raise UsageError(
            "the plan's network gives maps and no boxes; of a detector make it with serfer map-plan --output boxes; "
            "for maps name another suffix, or leave boxes out"
        )
    if mapped.options.one_file or mapped.options.dtype is not None:
        raise UsageError("one_file and dtype are for maps, not for boxes")
    finest = min(range(len(plan.output_tensors)), key=lambda number: views.of_output(number).rows.step)
    return ResultForm.of(mapped, [finest]), plan.boxes.head


def head_of(head: DetectionHead, options: MapOptions) -> DetectionHead:
    return replace(
        head,
        min_score=head.min_score if options.min_score is None else options.min_score,
        max_iou=head.max_iou if options.max_iou is None else options.max_iou,
    )


def decoder_of(plan: Plan, directory: Path) -> FrameDecoder:
    import onnxruntime  # noqa: PLC0415 - takes a while, and most maps have no boxes

    boxes = plan.boxes
    assert boxes is not None  # noqa: S101 - the caller knows
    path = directory / boxes.decoder.path
    if not path.is_file() or file_sha256(path) != boxes.decoder.sha256:
        raise PlanError(f"{path} is missing, or was changed: make the plan again with serfer map-plan")
    options = onnxruntime.SessionOptions()
    set_threads(options, threads=1)
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    windows = plan.windows
    assert windows is not None  # noqa: S101 - of a map plan
    heads = [
        Head(tensor.name, shape.channels, int(windows.heights[0].of_output(number).step))
        for number, (tensor, shape) in enumerate(zip(plan.output_tensors, plan.stages[0].outputs, strict=True))
    ]
    return FrameDecoder(
        boxes.head, heads, (boxes.height, boxes.width), lambda maps: list(session.run(None, dict(maps)))
    )


@dataclass(frozen=True)
class BoxFile:
    """A file of an image's boxes; `form` is that of the finest map of the heads, on which pixels without data count."""

    out: str
    suffix: str
    form: ResultForm
    directory: Path
    head: DetectionHead
    labels: tuple[str, ...]
    decoder: Callable[[], FrameDecoder]
    overwrite: bool

    def open(self, identity: dict[str, object]) -> ResultParts:
        return BoxParts.create_or_resume(self.directory, identity, self.form.array)

    def check(self, *, overwrite: bool) -> None:
        check_free(self.out, overwrite=overwrite or self.overwrite)

    def space(self, _parts: ResultParts) -> str | None:
        return None

    @property
    def window_form(self) -> BoxForm:
        return BoxForm(self.form, self.decoder(), self.head.min_score)

    def write(
        self, out: str, parts: ResultParts, source: RasterSource, size: tuple[int, int], *, overwrite: bool
    ) -> int:
        """Choose among all boxes of an image of a size, write those that are kept, and return how many these are."""
        assert isinstance(parts, BoxParts)  # noqa: S101 - as `open` returns them
        boxes = chosen([parts.table(number) for number in range(parts.count)], self.head, size)
        image = BoxedImage(Path(source.name).name, *size, self.labels, source.georeference)
        publish(
            out, parts, lambda file: write_boxes(file, self.suffix, boxes, image), overwrite=overwrite or self.overwrite
        )
        return len(boxes)

    def result(self, size: Size) -> MapResult:
        return MapResult(self.out, self.head.outputs, *size, channels=0, dtype="boxes")


@dataclass(frozen=True)
class BoxForm:
    """The candidate boxes of windows, tables (K, COLUMNS); `form` says which of a window's pixels are empty."""

    form: ResultForm
    decoder: FrameDecoder
    min_score: float

    def covered(self, number: int, size: Size) -> Rect:
        return self.form.covered(number, size)

    def empty(self, missing: NDArray[np.bool_], read: Rect, number: int) -> NDArray[np.bool_]:
        return self.form.empty(missing, read, number)

    def part(
        self, number: int, outputs: Mapping[str, NDArray[Any]], _empty: NDArray[np.bool_] | None
    ) -> NDArray[np.float64]:
        windows = self.form.windows
        written = windows[number].written
        origin = round(written.rows.start * windows.rows.step), round(written.cols.start * windows.cols.step)
        maps = {head.name: outputs[head.name] for head in self.decoder.heads}
        return self.decoder.candidates(maps, origin, (windows.rows.size, windows.cols.size), self.min_score)

    def empty_part(self, _number: int) -> NDArray[np.float64]:
        return np.empty((0, COLUMNS))


def chosen(tables: list[NDArray[Any]], head: DetectionHead, size: tuple[int, int]) -> Boxes:
    """Return the boxes of an image, best first, that no better one overlaps; of equal scores the detector's first.

    The list of `tables`, the candidates of all windows in any order, is emptied: they are in memory once.
    """
    table = np.concatenate(tables)
    tables.clear()
    table = table[np.lexsort((table[:, 6], -table[:, 4]))]
    boxes = Boxes(table[:, :4], table[:, 4], table[:, 5].astype(np.int64))
    boxes = boxes[without_overlaps_by_cells(boxes, head.max_iou)]
    height, width = size
    corners = np.clip(boxes.corners, 0, [width, height, width, height])
    seen = np.asarray((corners[:, :2] < corners[:, 2:]).all(axis=1))
    return replace(boxes, corners=corners)[seen]


class BoxParts(ResultParts):
    """A directory of tables (K, COLUMNS) float64 of boxes, one for each window; otherwise as `ResultParts`."""

    @classmethod
    def metadata(cls, array: ChunkedArray) -> dict[str, Any]:
        edges = [[*axis.edges] for axis in (array.rows, array.cols)]
        return {"zarr_format": 3, "node_type": "group", "attributes": {"serfer": {"boxes": COLUMNS, "edges": edges}}}

    def put(self, number: int, table: NDArray[Any]) -> None:
        if self.kept_bytes() + table.nbytes > MOST_CANDIDATES * _ROW_BYTES:
            raise UsageError(
                f"more than {MOST_CANDIDATES:,} boxes have at least the least score: give a higher min_score, with "
                "--restart"
            )
        data = np.ascontiguousarray(table, "<f8").tobytes()
        self.put_bytes(number, data + crc32c(data).to_bytes(CRC_BYTES, "little"))

    def kept_bytes(self) -> int:
        return sum(self.path(number).stat().st_size - CRC_BYTES for number in self.done())

    def table(self, number: int) -> NDArray[np.float64]:
        with self.dropping(number):
            return self._read_boxes(number)

    def _check(self, number: int) -> None:
        self._read_boxes(number)

    def _read_boxes(self, number: int) -> NDArray[np.float64]:
        path = self.path(number)
        if path.stat().st_size > MOST_CANDIDATES * _ROW_BYTES + CRC_BYTES:
            raise AlteredPieceError
        data = path.read_bytes()
        values, check = data[:-CRC_BYTES], data[-CRC_BYTES:]
        if len(check) != CRC_BYTES or len(values) % _ROW_BYTES or crc32c(values).to_bytes(CRC_BYTES, "little") != check:
            raise AlteredPieceError
        return np.frombuffer(values, "<f8").reshape(-1, COLUMNS)
