"""A network that computes NaN, served: every way to ask gets an error that says so, and never JSON that is none."""

import json
import shutil

import pytest

import serfer
from serfer.core.errors import NotFiniteError
from tests.e2e.small import batch, give_nan
from tests.support.served import png, served
from tests.support.tensors import plain

INFER = "/v2/models/small/infer"


@pytest.fixture(scope="module")
def plan(small_plan, tmp_path_factory):
    return give_nan(shutil.copytree(small_plan, tmp_path_factory.mktemp("nan") / "plan"))


@pytest.fixture(scope="module")
def url(plan, forks):
    with served({"small": plan}, forks=forks) as url:
        yield url


def strict(reply):
    """Read a response's JSON as strict parsers do, to which NaN is a syntax error."""

    def refuse(word):
        raise ValueError(word)

    return json.loads(reply.content, parse_constant=refuse)


def test_classify_is_a_problem_that_says_so(http):
    reply = http.post("/v1/classify", files={"image": ("a.png", png())})
    assert (reply.status_code, reply.headers["content-type"]) == (500, "application/problem+json")
    assert "not a finite number" in strict(reply)["detail"]


@pytest.mark.parametrize("wanted", [{}, {"binary_data": True}, {"classification": 3}])
def test_inference_is_an_error_in_every_form(http, wanted):
    outputs = {"outputs": [{"name": "logits", "parameters": wanted}]} if wanted else {}
    reply = http.post(INFER, json=plain(batch(), **outputs))
    assert reply.status_code == 500
    assert "not a finite number" in strict(reply)["error"]


def test_python_raises(plan):
    with (
        serfer.open(plan, workers="inprocess") as pipeline,
        pytest.raises(NotFiniteError, match=r"output .* for image 0 is nan"),
    ):
        pipeline.run(batch(2))
