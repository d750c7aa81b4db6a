"""A network with maps, masks and several outputs, served beside one that classifies."""

import numpy as np
import pytest

import serfer
from serfer.core.errors import RequestRefusedError, UsageError
from serfer.core.http_messages import ModelOutput
from tests.e2e.dense import OUTPUTS, split_dense
from tests.e2e.small import CLASSES, SIZE, batch
from tests.support.served import Observed, served

DATATYPES = {"float32": "FP32", "int64": "INT64"}
IMAGE_BYTES = sum(int(np.prod(dims)) * np.dtype(dtype).itemsize for dtype, dims in OUTPUTS.values())
PIXELS = np.random.default_rng(5).integers(0, 256, (2, SIZE, SIZE, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return split_dense(tmp_path_factory.mktemp("dense"))


@pytest.fixture(scope="module")
def expected(plan):
    with serfer.open(plan) as pipeline:
        return {name: pipeline.run(array) for name, array in (("floats", batch(2)), ("pixels", PIXELS))}


@pytest.fixture(scope="module")
def observed():
    return Observed()


@pytest.fixture(scope="module")
def url(plan, small_plan, forks, observed):
    """A service whose answers of all outputs have at most two images."""
    plans = {"small": small_plan, "dense": plan}
    with served(plans, forks=forks, observed=observed, api_max_answer_bytes=2 * IMAGE_BYTES) as url:
        yield url


def same(tensors, arrays):
    return [*tensors] == [*arrays] and all(
        np.array_equal(np.asarray(tensors[name]), arrays[name])
        and np.asarray(tensors[name]).dtype == arrays[name].dtype
        for name in arrays
    )


def test_metadata_list_every_output(http):
    assert http.get("/v2/models/dense").json()["outputs"] == [
        {"name": name, "datatype": DATATYPES[dtype], "shape": [-1, *dims]} for name, (dtype, dims) in OUTPUTS.items()
    ]


def test_the_client_returns_arrays_by_name(client, expected):
    assert same(client.infer(batch(2), model="dense"), expected["floats"])
    assert same(client.infer(PIXELS, model="dense"), expected["pixels"])
    some = client.infer(batch(2), model="dense", outputs=["head/depth", "classes"], deadline_ms=60_000)
    assert same(some, {name: expected["floats"][name] for name in ("head/depth", "classes")})
    assert [*client.infer(batch(1))] == ["logits"]  # of the default model


def test_the_client_takes_an_array_in_any_order_of_memory(client, expected):
    assert same(client.infer(np.asfortranarray(batch(2)), model="dense"), expected["floats"])
    for wrong in (batch(2).astype(np.float64), batch(2)[0], [[1.0]], "text"):
        with pytest.raises(UsageError, match="batch"):
            client.infer(wrong, model="dense")


@pytest.mark.hostile
def test_an_answer_that_is_too_large_is_refused_before_it_is_computed(client, observed):
    before = len(observed.answers)
    with pytest.raises(
        RequestRefusedError, match=f"up to {3 * IMAGE_BYTES:,} bytes .*{2 * IMAGE_BYTES:,} are sent"
    ) as caught:
        client.infer(batch(3), model="dense")
    assert (caught.value.status, len(observed.answers)) == (422, before)
    assert np.asarray(client.infer(batch(3), model="dense", outputs=["embedding"])["embedding"]).shape == (3, 5)


def test_models_are_listed_with_their_outputs(http, client):
    dense, small = http.get("/v1/models/dense").json(), http.get("/v1/models/small").json()
    assert (dense["classes"], small["classes"]) == (0, CLASSES)
    assert (dense["kind"], small["kind"]) == ("map", "classes")
    assert dense["outputs"] == [
        {"name": name, "type": kind, "shape": [*dims]} for name, (kind, dims) in OUTPUTS.items()
    ]
    listed = {model.name: model for model in client.models()}
    assert listed["small"].outputs == (ModelOutput("logits", "float32", (CLASSES,)),)
    assert [output.name for output in listed["dense"].outputs] == [*OUTPUTS]
