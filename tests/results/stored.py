"""Results as tiles write them, without a network."""

import numpy as np

from serfer.core.checksum import protect
from serfer.core.geometry import Grid, grid_rects
from serfer.core.keys import ResultPlace
from serfer.core.plan import Shape
from serfer.results import ResultManifest, ResultOutput, ResultPart

PLACE = ResultPlace("local", "0123456789abcdef" * 2)
NOW = 1_000_000.0
QUARTERS = Grid(2, 2)


def stored(store, outputs, *, images=2, grid=QUARTERS, place=PLACE, created=NOW):
    """Put the parts of {name: (Shape, dims, dtype)}, random numbers; return the manifest and the arrays."""
    generator = np.random.default_rng(0)
    objects = {tile: bytearray() for tile in range(grid.tiles)}
    records, arrays = [], {}
    for cell, (name, (shape, dims, dtype)) in enumerate(outputs.items()):
        whole = generator.integers(0, 2 if dtype == "bool" else 200, shape.of(shape.whole, images)).astype("<f4")
        arrays[name] = whole.reshape(images, *dims).astype(dtype)
        parts = []
        for tile, rect in enumerate(grid_rects(shape.height, shape.width, grid)):
            parts.append(ResultPart(tile, cell, len(objects[tile]), rect))
            values = np.ascontiguousarray(whole[shape.slices(rect)])
            objects[tile] += protect(values.tobytes(), place.key(tile), cell)
        records.append(ResultOutput(name, dtype, dims, shape, tuple(parts)))
    for tile, value in objects.items():
        store.put(place.key(tile), bytes(value), place.parts_ttl)
    return ResultManifest(
        1, place.id, place.owner, created, created + place.ttl, "a" * 64, "net", images, grid.tiles, tuple(records)
    ), arrays


def dense(channels=3, height=11, width=7, dtype="float32"):
    """Return a map's description."""
    return Shape(channels, height, width, flat=False), (channels, height, width), dtype
