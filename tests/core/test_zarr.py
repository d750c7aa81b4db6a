"""Arrays in chunks, against the zarr package: it opens ours, and we open those of its arrays that are within bounds."""

import asyncio
import copy
import itertools
import json

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.storage import MemoryStore

from serfer.core.crc32c import crc32c
from serfer.core.errors import ResultDamagedError
from serfer.core.geometry import even_parts
from serfer.core.zarr import CRC_BYTES, ITEM_BYTES, Axis, ChunkedArray, encode_chunk, read_array


def axis(size, count):
    return Axis((0, *(span.stop for span in even_parts(size, count))))


def maps(height=7, width=5, grid=(3, 2), dtype="float32", images=2, channels=3):
    dims = (channels, height, width)
    return ChunkedArray(
        "scores", dtype, dims, images, channels, axis(height, grid[0]), axis(width, grid[1]), flat=False
    )


def vector(size=10, count=3, dtype="float32"):
    return ChunkedArray("logits", dtype, (size,), 2, 1, axis(1, 1), axis(size, count), flat=True)


def values_of(array):
    generator = np.random.default_rng(0)
    shape = (array.images, array.cols.size) if array.flat else (array.images, *array.dims)
    return generator.integers(1, 2 if array.dtype == "bool" else 100, shape).astype(array.dtype)


def files_of(array, values):
    """Return what lies where, as tiles write it."""
    files = {"zarr.json": json.dumps(array.metadata()).encode()}
    for chunk in array.chunks:
        rows, cols = chunk.rect.slices
        tile = values[..., cols] if array.flat else values[..., rows, cols]
        files[chunk.path] = bytes(encode_chunk(array, tile))
    return files


def opened(files):
    from zarr.core.buffer import cpu  # noqa: PLC0415 - where 3.1 has it

    return zarr.open(MemoryStore({path: cpu.Buffer.from_bytes(data) for path, data in files.items()}), mode="r")


def cropped(stored):
    """Return the output's values of what is stored, by the edges that its attributes have."""
    edges = stored.attrs["serfer"]["edges"]
    picked = [
        np.concatenate([np.arange(stop - start) + number * step for number, (start, stop) in enumerate(pairs)])
        for step, pairs in zip(stored.chunks[-len(edges) :], map(list, map(itertools.pairwise, edges)), strict=True)
    ]
    return stored[:][..., *np.ix_(*picked)]


@pytest.mark.parametrize("dtype", ITEM_BYTES)
def test_zarr_opens_what_tiles_wrote(dtype):
    array = maps(7, 6, (3, 2), dtype)
    values = values_of(array)
    stored = opened(files_of(array, values))
    assert (stored.dtype, stored.chunks, stored.fill_value) == (values.dtype, (2, 3, 3, 3), 0)
    assert stored.metadata.dimension_names == ("image", "channel", "row", "column")
    assert np.array_equal(cropped(stored), values)


@pytest.mark.parametrize(("size", "count", "shape"), [(7, 2, 7), (8, 4, 8), (11, 3, 11), (7, 3, 9), (10, 4, 12)])
def test_an_axis_is_longer_only_where_its_chunks_are_uneven_before_its_end(size, count, shape):
    array = maps(size, 4, (count, 1))
    values = values_of(array)
    stored = opened(files_of(array, values))
    assert stored.shape == (2, 3, shape, 4)
    assert np.array_equal(cropped(stored), values)
    if shape == size:
        assert np.array_equal(stored[:], values)


@given(st.integers(1, 5), st.integers(1, 5), st.integers(5, 30), st.integers(5, 30), st.booleans())
def test_any_grid_is_read_by_zarr_and_described_the_same(rows, cols, height, width, flat):
    array = vector(width, cols) if flat else maps(height, width, (rows, cols))
    values = values_of(array)
    assert np.array_equal(cropped(opened(files_of(array, values))), values)
    assert read_array(json.loads(json.dumps(array.metadata())), "it") == array


def test_zarr_finds_an_altered_chunk():
    array = maps()
    files = files_of(array, values_of(array))
    path = next(array.chunks).path
    files[path] = files[path][:5] + bytes([files[path][5] ^ 1]) + files[path][6:]
    with pytest.raises(ValueError, match="checksum"):
        opened(files)[:]


@pytest.mark.parametrize(
    ("shape", "chunks"), [((2, 3, 8, 9), (2, 3, 4, 4)), ((2, 10), (2, 4)), ((1, 1, 5, 5), (1, 1, 5, 5))]
)
@pytest.mark.parametrize("dtype", ["float32", "uint8", "int64", "bool"])
def test_we_open_what_zarr_wrote(shape, chunks, dtype):
    store, values = MemoryStore(), (np.random.default_rng(1).random(shape) * 200 + 1).astype(dtype)
    codecs = {"serializer": zarr.codecs.BytesCodec(endian="little"), "compressors": [zarr.codecs.Crc32cCodec()]}
    written = zarr.create_array(store, shape=shape, chunks=chunks, dtype=dtype, filters=None, **codecs)
    written[:] = values
    files = {path: asyncio.run(written_file(store, path)) for path in store._store_dict}
    array = read_array(json.loads(files["zarr.json"]), "it")
    assert (array.shape, array.dtype, array.chunk_shape) == (shape, dtype, chunks)
    for chunk in array.chunks:
        data = files[chunk.path]
        assert len(data) == array.chunk_bytes
        assert crc32c(data[:-CRC_BYTES]).to_bytes(CRC_BYTES, "little") == data[-CRC_BYTES:]
        whole = np.frombuffer(data[:-CRC_BYTES], dtype).reshape(chunks)
        rows, cols = chunk.rect.slices
        expected = values[..., cols] if array.flat else values[..., rows, cols]
        assert np.array_equal(whole[tuple(map(slice, expected.shape))], expected)


async def written_file(store, path):
    from zarr.core.buffer import default_buffer_prototype  # noqa: PLC0415 - where 3.1 has it

    return (await store.get(path, default_buffer_prototype())).to_bytes()


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("zarr_format",), 2),
        (("node_type",), "group"),
        (("data_type",), "object"),
        (("data_type",), "complex64"),
        (("data_type",), {"name": "numpy.datetime64"}),
        (("data_type",), ["float32"]),
        (("shape",), [1 << 40, 3, 9, 5]),
        (("shape",), [2, 3, 9]),
        (("shape",), [2, 3, -9, 5]),
        (("shape",), [2, 3, True, 5]),
        (("shape",), None),
        (("chunk_grid", "name"), "rectilinear"),
        (("chunk_grid", "configuration", "chunk_shape"), [1, 3, 3, 3]),
        (("chunk_grid", "configuration", "chunk_shape"), [2, 3, 0, 3]),
        (("chunk_key_encoding", "name"), "v2"),
        (("chunk_key_encoding", "configuration", "separator"), "."),
        (("codecs",), [{"name": "bytes", "configuration": {"endian": "little"}}]),
        (("codecs",), [{"name": "bytes", "configuration": {"endian": "big"}}, {"name": "crc32c"}]),
        (("codecs",), [{"name": "pickle"}, {"name": "crc32c"}]),
        (("codecs",), "bytes, crc32c"),
        (("codecs",), 2),
        (("storage_transformers",), [{"name": "x"}]),
        (("extension",), {"name": "x"}),
        (("attributes", "serfer", "edges"), [[0, 3, 5, 8], [0, 3, 5]]),
        (("attributes", "serfer", "edges"), [[0, 5, 3, 7], [0, 3, 5]]),
        (("attributes", "serfer", "edges"), [[1, 3, 5, 7], [0, 3, 5]]),
        (("attributes", "serfer", "edges"), [[0], [0]]),
        (("attributes", "serfer", "edges"), [[], []]),
        (("attributes", "serfer", "edges"), [[0, 3, 5, 7]]),
        (("attributes", "serfer", "dims"), [3, 7, 6]),
        (("attributes", "serfer", "dims"), [1] * 20),
        (("attributes", "serfer", "output"), 5),
        (("attributes", "serfer"), [1]),
        (("attributes",), "x"),
    ],
)
def test_hostile_metadata_are_refused_before_anything_is_allocated(path, value):
    document = copy.deepcopy(maps().metadata())
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(ResultDamagedError, match="it has no array"):
        read_array(document, "it")


@pytest.mark.parametrize("document", [None, [], "x", 5, {}, {"zarr_format": 3}])
def test_what_is_not_metadata_is_refused(document):
    with pytest.raises(ResultDamagedError):
        read_array(document, "it")


def test_many_edges_take_no_time_and_too_many_chunks_are_refused():
    assert read_array(maps(100_000, 1, (50_000, 1)).metadata(), "it").rows.count == 50_000
    document = maps().metadata()
    del document["attributes"]
    document["shape"], document["chunk_grid"]["configuration"]["chunk_shape"] = [2, 3, 1 << 30, 1], [2, 3, 1, 1]
    with pytest.raises(ResultDamagedError, match="too many chunks"):
        read_array(document, "it")
