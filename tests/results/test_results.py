import copy
import io
import json
from dataclasses import replace

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.core.buffer import cpu
from zarr.storage import MemoryStore

from serfer.core.crc32c import crc32c
from serfer.core.errors import InputError, PlanError, ResultDamagedError, ResultGoneError
from serfer.core.geometry import Grid, Rect, Span
from serfer.core.keys import LOCAL_OWNER, MOST_RESULT_TTL_S, RESULT_MARGIN_S, ResultPlace
from serfer.core.plan.answers import answer_arrays
from serfer.core.zarr import MOST_METADATA_BYTES, Axis
from serfer.local.servers.redis import RedisServer
from serfer.results import Results, npy_bytes
from serfer.results.manifest import decode_manifest, encode_manifest, planned_manifest
from serfer.storage import open_store
from serfer_bench.core.s3_server import S3Server
from tests.core.plans import small_plan
from tests.results.stored import NOW, PLACE, dense, stored
from tests.support.counting_store import CountingStore
from tests.support.hand_clock import Clock

SEVERAL = {
    "scores": dense(),
    "mask": dense(1, 11, 7, "uint8", (11, 7)),
    "ids": dense(1, 6, 4, "int64", (6, 4)),
    "valid": dense(2, 5, 8, "bool"),
}


@pytest.fixture(scope="module")
def redis():
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def s3():
    with S3Server() as server:
        yield server


@pytest.fixture
def results(store):
    return Results(store, clock=Clock(NOW))


class TestOverEveryStore:
    @pytest.fixture(params=["memory", "file", "redis", "s3"])
    def store(self, request, tmp_path, monkeypatch):
        server = request.getfixturevalue(request.param) if request.param in ("redis", "s3") else None
        for name, value in getattr(server, "environment", {}).items():
            monkeypatch.setenv(name, value)
        url = server.url if server else {"memory": "memory://", "file": f"file://{tmp_path}/results"}[request.param]
        with open_store(url) as store:
            yield store
            store.delete(PLACE.keys(stored(open_store("memory://"), SEVERAL)[0].outputs))

    def test_a_result_is_whole_once_its_manifest_is_written(self, store, results):
        manifest, arrays = stored(store, SEVERAL)
        with pytest.raises(ResultGoneError, match=PLACE.id):
            results.read(LOCAL_OWNER, PLACE.id)
        results.write(manifest)
        assert results.read(LOCAL_OWNER, PLACE.id) == manifest
        read = results.arrays(manifest)
        assert {name: value.dtype for name, value in read.items()} == {n: v.dtype for n, v in arrays.items()}
        assert all(np.array_equal(read[name], value) for name, value in arrays.items())

    @pytest.mark.parametrize("strip_bytes", [1, 100, 1 << 20])
    def test_npy_chunks_are_numpys_own_file(self, store, results, strip_bytes):
        manifest, arrays = stored(store, SEVERAL)
        for output in manifest.outputs:
            chunks = b"".join(results.npy_chunks(manifest, output, strip_bytes))
            expected = io.BytesIO()
            np.save(expected, arrays[output.name])
            assert chunks == expected.getvalue()
            assert len(chunks) == npy_bytes(output)

    def test_a_deleted_result_leaves_nothing(self, store, results):
        manifest, _ = stored(store, SEVERAL)
        results.write(manifest)
        results.delete(manifest)
        assert not any(store.exists(PLACE.keys(manifest.outputs)))
        with pytest.raises(ResultGoneError):
            results.read(LOCAL_OWNER, PLACE.id)
        results.delete(manifest)  # nothing is wrong with that

    def test_a_missing_chunk_is_an_error_that_says_so(self, store, results):
        manifest, _ = stored(store, SEVERAL)
        key = PLACE.key("0/c/0/0/1/1")
        for damage in (lambda: store.put(key, store.get(key)[:-1], 60), lambda: store.delete([key])):
            damage()
            with pytest.raises(ResultDamagedError, match="lacks a chunk"):
                results.arrays(manifest)


class TestOverMemory:
    @pytest.fixture
    def store(self):
        with open_store("memory://") as store:
            yield store

    def test_another_owners_result_is_as_one_that_never_was(self, store, results):
        manifest, _ = stored(store, SEVERAL)
        results.write(manifest)
        with pytest.raises(ResultGoneError) as other:
            results.read("ab" * 16, PLACE.id)
        with pytest.raises(ResultGoneError) as never:
            results.read(LOCAL_OWNER, "f" * 32)
        assert str(other.value) == str(never.value).replace("f" * 32, PLACE.id)

    def test_a_result_ends_with_its_lifetime_though_the_store_still_has_it(self, store):
        manifest, _ = stored(store, SEVERAL)
        clock = Clock(NOW)
        results = Results(store, clock=clock)
        results.write(manifest)
        clock.now = manifest.expires
        with pytest.raises(ResultGoneError):
            results.read(LOCAL_OWNER, PLACE.id)
        with pytest.raises(ResultGoneError, match="before it was whole"):
            results.write(manifest)

    def test_a_manifest_under_another_key_is_refused(self, store, results):
        manifest, _ = stored(store, SEVERAL)
        results.write(manifest)
        other = ResultPlace(LOCAL_OWNER, "e" * 32)
        store.put(other.manifest_key, store.get(PLACE.manifest_key), 60)
        with pytest.raises(ResultDamagedError, match="another result"):
            results.read(LOCAL_OWNER, other.id)

    @pytest.mark.parametrize("owner", ["", "..", "LOCAL", "a" * 7, "a" * 65, "local:", "a" * 32 + "\n"])
    def test_owners_and_ids_become_keys_only_if_sound(self, results, owner):
        with pytest.raises(InputError, match="owner"):
            results.read(owner, PLACE.id)
        with pytest.raises(InputError, match="32 hex digits"):
            results.read(LOCAL_OWNER, owner)

    @given(tile=st.integers(0, 15), place=st.integers(0, 10_000), strip=st.integers(1, 2000))
    def test_an_altered_byte_never_passes(self, tile, place, strip):
        store = open_store("memory://")
        manifest, _ = stored(store, SEVERAL)
        key = PLACE.keys(manifest.outputs)[1 + tile]
        value = bytearray(store.get(key))
        value[place % len(value)] ^= 1
        store.put(key, bytes(value), 60)
        with pytest.raises(ResultDamagedError, match="altered"):
            [[*Results(store).npy_chunks(manifest, output, strip)] for output in manifest.outputs]

    @given(
        rows=st.integers(1, 4),
        cols=st.integers(1, 4),
        height=st.integers(4, 20),
        width=st.integers(4, 20),
        channels=st.integers(1, 4),
        strip=st.integers(1, 3000),
    )
    def test_any_grid_is_read_whole_and_each_byte_once(self, rows, cols, height, width, channels, strip):
        with CountingStore(open_store("memory://")) as store:
            manifest, arrays = stored(store, {"map": dense(channels, height, width)}, grid=Grid(rows, cols))
            written = store.counts.bytes_put
            [output] = manifest.outputs
            read = b"".join(Results(store).npy_chunks(manifest, output, strip))
            assert np.array_equal(np.load(io.BytesIO(read)), arrays["map"])
            assert store.counts.bytes_get == written

    def test_chunks_are_bounded(self, store, results):
        manifest, _ = stored(store, {"map": dense(8, 64, 64)})
        sizes = [len(chunk) for chunk in results.npy_chunks(manifest, manifest.outputs[0], 10_000)]
        assert max(sizes) <= 10_000
        assert sum(sizes) == npy_bytes(manifest.outputs[0])
        with pytest.raises(InputError, match="no output"):
            next(iter([*results.npy_chunks(manifest, replace(manifest.outputs[0], name="other"))]))
        manifest, arrays = stored(store, {"logits": dense(0, 1, 10)}, grid=Grid(1, 3, columns=True))
        assert np.array_equal(results.arrays(manifest)["logits"], arrays["logits"])


@pytest.fixture(scope="module")
def manifest():
    return stored(open_store("memory://"), {"map": dense(), "mask": dense(1, 5, 5, "uint8")})[0]


def damaged(manifest, path, value):
    """Return a manifest with another value at a path, whose checksum matches."""
    group = json.loads(encode_manifest(manifest))
    inner = group
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    del group["attributes"]["serfer"]["crc32c"]
    canonical = json.dumps(group, sort_keys=True, separators=(",", ":")).encode()
    group["attributes"]["serfer"]["crc32c"] = crc32c(canonical)
    return json.dumps(group).encode()


def test_a_manifest_survives_its_encoding(manifest):
    assert decode_manifest(encode_manifest(manifest), PLACE) == manifest


def test_zarr_opens_the_group(manifest):
    store = MemoryStore({"zarr.json": cpu.Buffer.from_bytes(encode_manifest(manifest))})
    group = zarr.open_group(store, mode="r")
    assert group.attrs["serfer"]["plan"] == manifest.plan
    assert {name: array.attrs["serfer"]["output"] for name, array in group.arrays()} == {"0": "map", "1": "mask"}
    assert group["0"].shape == (2, 3, 11, 7)
    documents = {path: json.dumps(document).encode() for path, document in manifest.documents().items()}
    store = MemoryStore({path: cpu.Buffer.from_bytes(document) for path, document in documents.items()})
    assert zarr.open_array(store, path="1", mode="r").dtype == "uint8"


def test_a_plans_manifest_describes_what_its_last_stage_writes():
    plan = small_plan()
    manifest = planned_manifest(plan, PLACE, 3, NOW)
    [output] = manifest.outputs
    assert (output.name, output.dims, output.dtype) == ("logits", (10,), "float32")
    assert [*output.chunks] == [("c/0/0", Rect.whole(1, 10))]
    assert (manifest.images, manifest.plan) == (3, plan.digest)
    assert manifest.expires == NOW + PLACE.ttl


def test_tiles_that_are_not_a_grids_are_refused():
    plan = small_plan()
    last = plan.stages[-1]
    rect = Rect(Span(0, 1), Span(0, 6))
    tiles = (replace(last.tiles[0], outputs=(rect,)),)
    with pytest.raises(PlanError, match="not those of a grid"):
        answer_arrays(replace(plan, stages=(*plan.stages[:-1], replace(last, tiles=tiles))), 1)


SAID = ("attributes", "serfer")
FIRST = ("consolidated_metadata", "metadata", "0")


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((*SAID, "format"), 1),
        ((*SAID, "id"), "f" * 32),
        ((*SAID, "created"), -1),
        ((*SAID, "expires"), 0),
        ((*SAID, "expires"), 1e400),
        ((*SAID, "plan"), "../../etc"),
        ((*SAID, "key"), "serfer:other"),
        (("consolidated_metadata", "metadata"), {}),
        (("consolidated_metadata", "metadata"), []),
        (("consolidated_metadata",), 5),
        ((*FIRST, "attributes", "serfer", "output"), "mask"),
        ((*FIRST, "data_type"), "float64"),
        ((*FIRST, "data_type"), "O"),
        ((*FIRST, "shape"), [1 << 30, 3, 11, 7]),
        ((*FIRST, "shape"), [1, 3, 11, 7]),
        ((*FIRST, "attributes", "serfer", "dims"), [3, 11]),
        ((*FIRST, "attributes", "serfer", "edges"), [[0, 6, 12], [0, 4, 7]]),
    ],
)
def test_a_hostile_manifest_is_refused(manifest, path, value):
    with pytest.raises(ResultDamagedError, match="manifest"):
        decode_manifest(damaged(manifest, path, value), PLACE)


def test_a_manifest_of_too_much_is_refused(manifest):
    [first, _] = manifest.outputs
    rows = Axis((*range(1026),))
    for outputs in (
        (replace(first, images=1025),),
        (replace(first, rows=rows, dims=(3, 1025, 7)),),
        tuple(replace(first, name=str(number)) for number in range(257)),
        (first, first),
        (),
    ):
        with pytest.raises(ResultDamagedError, match="manifest"):
            encode_manifest(replace(manifest, outputs=outputs))


def test_a_manifest_without_its_checksum_is_refused(manifest):
    group = json.loads(encode_manifest(manifest))
    altered = copy.deepcopy(group)
    altered["attributes"]["serfer"]["expires"] += 1
    with pytest.raises(ResultDamagedError, match="was altered"):
        decode_manifest(json.dumps(altered).encode(), PLACE)
    del group["attributes"]["serfer"]["crc32c"]
    with pytest.raises(ResultDamagedError, match="manifest"):
        decode_manifest(json.dumps(group).encode(), PLACE)


@pytest.mark.parametrize("encoded", [b"", b"[]", b"null", b"\xff", b"[" * 100_000, b" " * (MOST_METADATA_BYTES + 1)])
def test_what_is_not_a_manifest_is_refused(encoded):
    with pytest.raises(ResultDamagedError, match="manifest"):
        decode_manifest(encoded, PLACE)


@given(st.data())
def test_any_damage_is_refused_or_harmless(data):
    manifest, _ = stored(open_store("memory://"), {"map": dense()})
    encoded = bytearray(encode_manifest(manifest))
    for _ in range(data.draw(st.integers(1, 4))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    try:
        read = decode_manifest(bytes(encoded), PLACE)
    except ResultDamagedError:
        return
    assert read == manifest


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), MOST_RESULT_TTL_S + 1])
def test_a_lifetime_is_bounded(ttl):
    assert PLACE.chunks_ttl == PLACE.ttl + RESULT_MARGIN_S, "chunks outlive the manifest, so that downloads can end"
    with pytest.raises(InputError, match="lifetime"):
        ResultPlace("local", "0" * 32, ttl)
