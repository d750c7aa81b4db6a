"""Results as workers and drivers leave them in a store, for tests of what reads them."""

import itertools
import secrets
import time
from dataclasses import replace

import numpy as np

from serfer.core.checksum import CHECKSUM_BYTES, protect
from serfer.core.geometry import Rect, Span
from serfer.core.keys import LOCAL_OWNER, ResultPlace
from serfer.core.plan import Shape
from serfer.results import ResultManifest, ResultOutput, ResultPart, Results
from serfer.results.manifest import FORMAT


def tiles(array, grid):
    """Return the rectangles of a grid of tiles of maps (N, C, H, W)."""
    edges = [
        [round(size * part / count) for part in range(count + 1)]
        for size, count in zip(array.shape[2:], grid, strict=True)
    ]
    spans = [[Span(*pair) for pair in itertools.pairwise(each)] for each in edges]
    return [Rect(rows, cols) for rows, cols in itertools.product(*spans)]


def manifest_of(outputs, grid, place, created):
    """Return the manifest of outputs, maps (N, C, H, W) by name, each cut into the same grid of tiles."""
    ends, described = [0] * (grid[0] * grid[1]), []
    for cell, (name, array) in enumerate(outputs.items()):
        shape, parts = Shape(*array.shape[1:], flat=False), []
        for number, rect in enumerate(tiles(array, grid)):
            parts.append(ResultPart(number, cell, ends[number], rect))
            ends[number] += 4 * len(array) * shape.channels * rect.area + CHECKSUM_BYTES
        described.append(ResultOutput(name, str(array.dtype), array.shape[1:], shape, tuple(parts)))
    images = len(next(iter(outputs.values())))
    times = (created, created + place.ttl)
    return ResultManifest(
        FORMAT, place.id, place.owner, *times, "ab" * 32, "dense", images, len(ends), tuple(described)
    )


def put_result(store, outputs, *, owner=LOCAL_OWNER, grid=(2, 2), ttl=600.0, age=0.0):
    """Write a result that was made `age` seconds ago, and return its manifest."""
    place = ResultPlace(owner, secrets.token_hex(16), ttl)
    manifest = manifest_of(outputs, grid, place, time.time() - age)
    for number in range(manifest.tiles):
        key, cells = place.key(number), []
        for cell, array in enumerate(outputs.values()):
            rect = manifest.outputs[cell].parts[number].rect
            part = np.ascontiguousarray(array[:, :, *rect.slices], dtype="<f4")
            cells.append(protect(part.tobytes(), key, cell))
        store.put(key, b"".join(cells), ttl + 60)
    long = replace(manifest, expires=time.time() + 600)
    Results(store, clock=lambda: long.created).write(manifest)
    return manifest
