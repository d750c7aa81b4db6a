"""Answers that are kept: by /v2 and by the client, with queries that run."""

import io
import time
from contextlib import ExitStack

import httpx
import numpy as np
import pytest

import serfer
from tests.e2e.dense import OUTPUTS, split_dense
from tests.e2e.small import batch
from tests.support.served import PATIENCE, served
from tests.support.tensors import plain

MAPS = ("scores", "classes", "head/depth")
IMAGE_BYTES = sum(int(np.prod(OUTPUTS[name][1])) * np.dtype(OUTPUTS[name][0]).itemsize for name in MAPS)


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return split_dense(tmp_path_factory.mktemp("dense"), MAPS)


@pytest.fixture(scope="module")
def expected(plan):
    with serfer.open(plan) as pipeline:
        return pipeline.run(batch(2))


@pytest.fixture(scope="module")
def serve(plan, forks, tmp_path_factory):
    """Serve the plan, with or without a store of results, and answers of one image; returns the URL."""
    with ExitStack() as opened:

        def start(*, results=True, keys=None, **settings):
            place = tmp_path_factory.mktemp("results").as_uri() if results else None
            limits = {"api_max_answer_bytes": IMAGE_BYTES, **settings}
            return opened.enter_context(served({"dense": plan}, forks=forks, results=place, keys=keys, **limits))

        yield start


@pytest.fixture(scope="module")
def url(serve):
    return serve()


def asked(images=2, outputs=None, **parameters):
    return plain(batch(images), id="mine", parameters=parameters, **({"outputs": outputs} if outputs else {}))


def infer(http, **request):
    return http.post("/v2/models/dense/infer", json=asked(**request))


def test_an_answer_by_link_has_no_data_and_is_found_again(http, expected):
    reply = infer(http, result="link")
    answer = reply.json()
    assert (reply.status_code, answer["id"], answer["model_name"]) == (200, "mine", "dense")
    place = answer["parameters"]["result_location"]
    assert reply.headers["Content-Location"] == place == f"/v2/results/{answer['parameters']['result']}"
    assert http.get(place).json() == {name: value for name, value in answer.items() if name != "id"}
    assert [output["name"] for output in answer["outputs"]] == [*MAPS]
    for output in answer["outputs"]:
        assert "data" not in output
        array = np.load(io.BytesIO(http.get(output["parameters"]["result_link"]).content))
        assert array.dtype == expected[output["name"]].dtype
        assert np.array_equal(array, expected[output["name"]])
    assert 86_000 < answer["parameters"]["result_expires"] - time.time() <= 86_400


def test_an_answer_that_is_too_large_is_kept_unless_it_is_wanted_inline(http):
    answer = infer(http, binary_data_output=True).json()
    assert {"result_link", "result_bytes", "result_zarr"} == {*answer["outputs"][0]["parameters"]}
    small = infer(http, images=1, binary_data_output=True)
    assert "Content-Location" not in small.headers
    refused = infer(http, binary_data_output=True, result="inline")
    assert refused.status_code == 422
    assert "with the parameter result, for a link" in refused.json()["error"]


def test_outputs_that_are_named_are_listed_in_that_order(http):
    answer = infer(http, result="link", outputs=[{"name": "head/depth"}, {"name": "scores"}]).json()
    assert [output["name"] for output in answer["outputs"]] == ["head/depth", "scores"]
    assert "result_links" in http.get("/v2").json()["extensions"]


@pytest.mark.parametrize(
    ("service", "parameters", "status", "words"),
    [
        ({}, {"result": "file"}, 400, "parameters.result: Input should be 'inline' or 'link'"),
        ({}, {"result": True}, 400, "parameters.result"),
        ({}, {"result": "link", "deadline_ms": 1}, 504, "deadline"),
        ({"results": False}, {"binary_data_output": True}, 422, "SERFER_RESULTS"),
        ({"results": False}, {"result": "link"}, 422, "SERFER_RESULTS"),
        ({"api_max_result_bytes": IMAGE_BYTES}, {"result": "link"}, 422, "SERFER_API_MAX_RESULT_BYTES"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_computed(serve, service, parameters, status, words):
    with httpx.Client(base_url=serve(**service), timeout=PATIENCE) as http:
        reply = infer(http, **parameters)
        assert (reply.status_code, words in reply.json()["error"]) == (status, True)
        keeps = service.get("results", True)
        link = {"result": "link"} if keeps else {}
        assert infer(http, images=1, binary_data_output=True, **link).status_code == 200
        assert ("result_links" in http.get("/v2").json()["extensions"]) == keeps
