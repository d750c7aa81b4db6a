"""Results as tiles write them, without a network."""

import secrets

import numpy as np

from serfer.core.geometry import Grid, even_parts
from serfer.core.keys import ResultPlace
from serfer.core.zarr import Axis, ChunkedArray, encode_chunk
from serfer.results import ResultManifest

PLACE = ResultPlace("local", "0123456789abcdef" * 2)
NOW = 1_000_000.0
QUARTERS = Grid(2, 2)


def axis(size, count):
    return Axis((0, *(span.stop for span in even_parts(size, count))))


def dense(channels=3, height=11, width=7, dtype="float32", dims=None):
    """Return what describes maps, or vectors where there are no channels: channels, height, width, dims and dtype."""
    return channels, height, width, dims or ((channels, height, width) if channels else (width,)), dtype


def array_of(name, description, images, grid):
    channels, height, width, dims, dtype = description
    rows = grid[0] if channels else 1
    return ChunkedArray(
        name, dtype, dims, images, channels or 1, axis(height, rows), axis(width, grid[1]), flat=not channels
    )


def manifest_of(arrays, place, created):
    times = (created, created + place.ttl)
    return ResultManifest(place.id, place.owner, *times, "ab" * 32, "dense", tuple(arrays))


def put_chunks(store, place, number, array, values):
    """Write an output's chunks, as tiles do; `values` are (N, C, H, W), or (N, W)."""
    for chunk in array.chunks:
        rows, cols = chunk.rect.slices
        tile = values[..., cols] if array.flat else values[..., rows, cols]
        store.put(place.key(f"{number}/{chunk.path}"), encode_chunk(array, tile), place.chunks_ttl)


def stored(store, outputs, *, images=2, grid=QUARTERS, place=PLACE, created=NOW):
    """Put the chunks of {name: dense(...)}, random numbers; return the manifest and the arrays."""
    generator = np.random.default_rng(0)
    described = [array_of(name, each, images, (grid.rows, grid.cols)) for name, each in outputs.items()]
    arrays = {}
    for number, array in enumerate(described):
        size = (array.cols.size,) if array.flat else (array.channels, array.rows.size, array.cols.size)
        whole = generator.integers(0, 2 if array.dtype == "bool" else 200, (images, *size)).astype("<f4")
        arrays[array.name] = whole.reshape(array.shape).astype(array.dtype)
        put_chunks(store, place, number, array, whole)
    return manifest_of(described, place, created), arrays


def new_place(owner, ttl):
    return ResultPlace(owner, secrets.token_hex(16), ttl)
