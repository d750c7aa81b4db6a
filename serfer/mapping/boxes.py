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
from serfer.core.plan import DetectionHead, MapBoxes, Plan
from serfer.core.zarr import CRC_BYTES, ChunkedArray
from serfer.mapping.box_files import BoxedImage, write_boxes
from serfer.mapping.box_grid import without_overlaps_by_cells
from serfer.mapping.options import MapOptions
from serfer.mapping.output import FormTarget, ResultForm
from serfer.mapping.report import MapResult
from serfer.plan_directory import file_sha256
from serfer.raster import RasterSource, ResultParts, check_free, publish

Size = tuple[int, int]
_ROW_BYTES = COLUMNS * 8
MOST_CANDIDATES = 2_000_000
"""Candidate boxes of an image at most: 112 MB."""


def head_of(boxes: MapBoxes, options: MapOptions) -> DetectionHead:
    head = boxes.head
    return replace(
        head,
        min_score=head.min_score if options.min_score is None else options.min_score,
        max_iou=head.max_iou if options.max_iou is None else options.max_iou,
    )


def decoder_of(plan: Plan, directory: Path) -> FrameDecoder:
    """Open the decoder of a map plan's directory; raises PlanError where it is not the plan's."""
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
        """Return nothing: boxes take little room."""
        return None

    def target(self, parts: ResultParts) -> BoxTarget:
        assert isinstance(parts, BoxParts)  # noqa: S101 - as `open` returns them
        return BoxTarget(self.form, parts, self.decoder(), self.head.min_score)

    def write(
        self, out: str, parts: ResultParts, source: RasterSource, size: tuple[int, int], *, overwrite: bool
    ) -> int:
        """Choose among all boxes of an image of a size, write those that are kept, and return how many these are."""
        assert isinstance(parts, BoxParts)  # noqa: S101 - as `open` returns them
        boxes = chosen(parts, self.head, size)
        image = BoxedImage(Path(source.name).name, *size, self.labels, source.georeference)
        publish(
            out, parts, lambda file: write_boxes(file, self.suffix, boxes, image), overwrite=overwrite or self.overwrite
        )
        return len(boxes)

    def result(self, size: Size) -> MapResult:
        return MapResult(self.out, self.head.outputs, *size, channels=0, dtype="boxes")


@dataclass(frozen=True)
class BoxTarget(FormTarget):
    """Keeps the candidate boxes of windows."""

    parts: BoxParts
    decoder: FrameDecoder
    min_score: float

    def keep(self, number: int, outputs: Mapping[str, NDArray[Any]], _empty: NDArray[np.bool_] | None) -> None:
        windows = self.form.windows
        written = windows[number].written
        origin = round(written.rows.start * windows.rows.step), round(written.cols.start * windows.cols.step)
        maps = {head.name: outputs[head.name] for head in self.decoder.heads}
        size = windows.rows.size, windows.cols.size
        self.parts.put_table(number, self.decoder.candidates(maps, origin, size, self.min_score))

    def keep_empty(self, number: int) -> None:
        self.parts.put_table(number, np.empty((0, COLUMNS)))


def chosen(parts: BoxParts, head: DetectionHead, size: tuple[int, int]) -> Boxes:
    """Return the boxes of an image, best first, that no better one overlaps, within an image of a size.

    Of equal scores the one that comes first in the detector's order is better.
    """
    tables = [parts.table(number) for number in range(parts.count)]
    table = np.concatenate(tables)
    del tables
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

    def put_table(self, number: int, table: NDArray[np.float64]) -> None:
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
