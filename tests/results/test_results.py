import io
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.errors import InputError, ResultDamagedError, ResultGoneError
from serfer.core.geometry import Grid
from serfer.core.keys import LOCAL_OWNER, ResultPlace
from serfer.local.servers.redis import RedisServer
from serfer.results import Results, npy_bytes
from serfer.storage import open_store
from serfer.storage.intercepting import CountingStore
from serfer_bench.core.s3_server import S3Server
from tests.results.stored import NOW, PLACE, dense, stored
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


class ResultsContract:
    @pytest.fixture
    def results(self, store):
        return Results(store, clock=Clock(NOW))

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


class TestOverMemory(ResultsContract):
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


class TestOverFiles(ResultsContract):
    @pytest.fixture
    def store(self, tmp_path):
        with open_store(f"file://{tmp_path}/results") as store:
            yield store


class TestOverRedis(ResultsContract):
    @pytest.fixture
    def store(self, redis):
        with open_store(redis.url) as store:
            yield store
            store.delete(PLACE.keys(stored(open_store("memory://"), SEVERAL)[0].outputs))


class TestOverS3(ResultsContract):
    @pytest.fixture
    def store(self, s3, monkeypatch):
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        with open_store(s3.url) as store:
            yield store
            store.delete(PLACE.keys(stored(open_store("memory://"), SEVERAL)[0].outputs))
