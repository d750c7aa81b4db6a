"""A network that computes NaN, served: every way to ask gets an error that says so, and never JSON that is none."""

import shutil

import pytest

from tests.e2e.small import batch, give_nan
from tests.support.served import png, served
from tests.support.tensors import plain


@pytest.fixture(scope="module")
def url(small_plan, tmp_path_factory, forks):
    plan = give_nan(shutil.copytree(small_plan, tmp_path_factory.mktemp("nan") / "plan"))
    with served({"small": plan}, forks=forks) as url:
        yield url


@pytest.mark.parametrize(
    ("path", "request_", "field"),
    [
        ("/v1/classify", {"files": {"image": ("a.png", png())}}, "detail"),
        ("/v2/models/small/infer", {"json": plain(batch())}, "error"),
    ],
)
def test_an_answer_that_is_not_finite_is_an_error_that_says_so(http, path, request_, field):
    reply = http.post(path, **request_)
    assert reply.status_code == 500
    assert "not a finite number" in reply.json()[field]
    assert b"NaN" not in reply.content
