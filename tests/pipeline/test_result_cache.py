from types import SimpleNamespace

import numpy as np
import pytest

from serfer.core.errors import StoreUnavailableError
from serfer.core.plan import OutputTensor
from serfer.pipeline.result_cache import ResultCache
from serfer.storage.memory import MemoryStore

PLAN = SimpleNamespace(digest="d" * 64, as_split=None, output_tensors=(OutputTensor("logits", (3,), "float32"),))
LOGITS = {"logits": np.array([[1, 2, 3], [4, 5, 6]], dtype=np.float32)}


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def cache(store):
    return ResultCache(store, PLAN, 60.0)


def test_several_outputs_are_found_again_in_their_own_forms_and_types(store):
    tensors = (OutputTensor("map", (2, 3, 4), "float32"), OutputTensor("mask", (3, 4), "uint8"))
    cache = ResultCache(store, SimpleNamespace(digest="d" * 64, as_split=None, output_tensors=tensors), 60.0)
    outputs = {
        "map": np.random.default_rng(0).random((2, 2, 3, 4), np.float32),
        "mask": np.full((2, 3, 4), 7, np.uint8),
    }
    cache.keep("k", outputs)
    found = cache.find("k", 2)
    assert list(found) == ["map", "mask"]
    assert all(
        (found[name].dtype, found[name].tolist()) == (outputs[name].dtype, outputs[name].tolist()) for name in found
    )


def test_other_questions_have_other_keys(cache, store):
    other_plan = SimpleNamespace(digest="e" * 64, as_split=None, output_tensors=PLAN.output_tensors)
    keys = [cache.key(parts) for parts in ([b"ab", b"c"], [b"a", b"bc"], [b"abc"], [b"c", b"ab"], [])]
    keys.append(ResultCache(store, other_plan, 60.0).key([b"abc"]))
    assert len(set(keys)) == len(keys)


def test_the_same_input_has_the_same_key_in_any_container(cache):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert cache.key([array.data]) == cache.key([array.tobytes()]) == cache.key([bytearray(array.tobytes())])


def test_nothing_of_the_image_is_in_the_store(cache, store):
    cache.keep(cache.key([b"a secret picture"]), LOGITS)
    assert not any(b"secret" in value or "secret" in key for key, (value, _) in store._values.items())


def test_answers_are_found_until_they_expire():
    now = [0.0]
    cache = ResultCache(MemoryStore(lambda: now[0]), PLAN, 60.0)
    key = cache.key([b"one", b"two"])
    assert cache.find(key, 2) is None
    cache.keep(key, LOGITS)
    now[0] = 59.0
    assert np.array_equal(cache.find(key, 2)["logits"], LOGITS["logits"])
    now[0] = 61.0
    assert cache.find(key, 2) is None


@pytest.mark.parametrize("value", [b"", b"x" * 23, b"x" * 25, b"x" * 12])
def test_a_cached_value_of_another_size_is_ignored(cache, store, value):
    key = cache.key([b"x"])
    store.put(key, value, 60)
    assert cache.find(key, 2) is None


def test_store_errors_count_as_cache_misses():
    class Gone(MemoryStore):
        def put(self, *_):
            raise StoreUnavailableError("gone")

        def get_many(self, _):
            raise StoreUnavailableError("gone")

    cache = ResultCache(Gone(), PLAN, 60.0)
    cache.keep("k", LOGITS)
    assert cache.find("k", 2) is None
