"""The candidate boxes of finished windows, a file for each window, so that a map goes on where it was stopped."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.crc32c import crc32c
from serfer.core.errors import AlteredPieceError, UsageError
from serfer.core.frame_decoder import COLUMNS
from serfer.core.zarr import CRC_BYTES, ChunkedArray
from serfer.raster import ResultParts

_ROW_BYTES = COLUMNS * 8
MOST_CANDIDATES = 2_000_000
"""Candidate boxes of an image at most: 112 MB."""


class BoxParts(ResultParts):
    """A directory of tables (K, COLUMNS) float64 of boxes, one for each window; otherwise as `ResultParts`."""

    @classmethod
    def metadata(cls, array: ChunkedArray) -> dict[str, Any]:
        """Return what zarr.json says: a group, for tables of several sizes are not an array."""
        edges = [[*axis.edges] for axis in (array.rows, array.cols)]
        return {"zarr_format": 3, "node_type": "group", "attributes": {"serfer": {"boxes": COLUMNS, "edges": edges}}}

    def put_table(self, number: int, table: NDArray[np.float64]) -> None:
        """Keep the boxes of a window; raises UsageError where they are too many with the others."""
        if self.kept_bytes() + table.nbytes > MOST_CANDIDATES * _ROW_BYTES:
            raise UsageError(
                f"more than {MOST_CANDIDATES:,} boxes have at least the least score: give a higher --min-score, with "
                "--restart"
            )
        data = np.ascontiguousarray(table, "<f8").tobytes()
        self.put_bytes(number, data + crc32c(data).to_bytes(CRC_BYTES, "little"))

    def kept_bytes(self) -> int:
        return sum(self.path(number).stat().st_size - CRC_BYTES for number in self.done())

    def table(self, number: int) -> NDArray[np.float64]:
        """Return the boxes of a window; raises AlteredPieceError where they are gone or altered."""
        with self.dropping(number):
            return self._read(number)

    def _check(self, number: int) -> None:
        self._read(number)

    def _read(self, number: int) -> NDArray[np.float64]:
        path = self.path(number)
        if path.stat().st_size > MOST_CANDIDATES * _ROW_BYTES + CRC_BYTES:
            raise AlteredPieceError
        data = path.read_bytes()
        values, check = data[:-CRC_BYTES], data[-CRC_BYTES:]
        if len(check) != CRC_BYTES or len(values) % _ROW_BYTES or crc32c(values).to_bytes(CRC_BYTES, "little") != check:
            raise AlteredPieceError
        return np.frombuffer(values, "<f8").reshape(-1, COLUMNS)
