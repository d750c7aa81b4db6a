"""Reductions of a map to classes or scores, in the last stage's tiles."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

import serfer
from serfer.core.errors import ModelError, UsageError
from serfer.core.exactness import difference
from serfer.splitter.network.description import Reduction
from serfer.splitter.network.reductions import class_type, reduced_answer
from tests.e2e.dense import OUTPUTS, split_dense
from tests.e2e.small import SIZE
from tests.splitter.network.test_outputs import SIZE as EXAMPLE
from tests.splitter.network.test_outputs import images, network

KINDS = {
    "argmax": lambda y: y.argmax(1),
    "softmax": lambda y: y.softmax(1),
    "sigmoid": torch.sigmoid,
    None: lambda y: y,
}


SIZES = [(50, 61), (80, 72)]


def by_torch(values, kind, size):
    values = torch.from_numpy(values)
    if size:
        values = functional.interpolate(values, size, mode="bilinear", align_corners=False)
    return KINDS[kind](values).numpy()


@given(
    st.sampled_from([*KINDS]),
    st.none() | st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.tuples(st.integers(1, 20), st.integers(1, 20)),
    st.integers(0, 2**32 - 1),
)
def test_the_reference_is_torchs(kind, size, given_size, seed):
    values = np.random.default_rng(seed).standard_normal((2, 3, *given_size), dtype=np.float32)
    answer, expected = reduced_answer(values, Reduction(kind, size)), by_torch(values, kind, size)
    assert answer.shape == expected.shape
    assert difference(answer, expected).error <= 1e-5
    assert answer.dtype == ("uint8" if kind == "argmax" else "float32")


SOME = [("argmax", None), ("softmax", SIZES[0]), ("sigmoid", SIZES[1]), (None, SIZES[0])]
REST = [case for case in product(KINDS, [*SIZES, None]) if any(case) and case not in SOME]


@pytest.mark.parametrize(("kind", "size"), [*SOME, *(pytest.param(*case, marks=pytest.mark.weekly) for case in REST)])
@pytest.mark.filterwarnings("ignore::serfer.PlanWarning")
def test_a_plan_answers_with_the_reduced_map(kind, size, tmp_path):
    net, batch = network("a map"), images()
    plan = serfer.split(net, batch[:1], tmp_path / "plan", grids="2x2", reduce=kind, resize_output=size)
    with torch.inference_mode():
        expected = by_torch(net(torch.from_numpy(batch)).numpy(), kind, size)
    with serfer.open(tmp_path / "plan") as pipeline:
        answer = pipeline.run(batch)
    assert answer.shape == expected.shape
    assert difference(answer, expected.astype(answer.dtype)).error <= 1e-4
    assert plan.stages[-1].grid.tiles == 4
    assert plan.output_tensors[0].dtype == ("uint8" if kind == "argmax" else "float32")
    assert f"bytes of {4 * 5 * EXAMPLE[0] * EXAMPLE[1]:,}" in plan.why


def test_the_first_map_alone_is_reduced(tmp_path):
    names = ["embedding", "scores", "head/depth"]
    directory = split_dense(tmp_path, names, reduce="argmax", resize_output=(SIZE * 2, SIZE * 2))
    with serfer.open(directory) as pipeline:
        answer = pipeline.run(np.zeros((1, 3, SIZE, SIZE), np.float32))
    assert {name: (value.dtype.name, value.shape[1:]) for name, value in answer.items()} == {
        "embedding": OUTPUTS["embedding"],
        "scores": ("uint8", (SIZE * 2, SIZE * 2)),
        "head/depth": OUTPUTS["head/depth"],
    }


@pytest.mark.parametrize(
    ("names", "words"), [(["embedding"], "map"), (["head/depth"], "one channel"), (["classes"], "map")]
)
def test_an_output_that_cannot_be_reduced_and_an_unknown_reduction_are_refused(names, words, tmp_path):
    with pytest.raises(ModelError, match=words):
        split_dense(tmp_path, names, reduce="argmax")
    for chosen in ({"reduce": "max"}, *({"resize_output": size} for size in ((0, 5), (5,), "5x5"))):
        with pytest.raises(UsageError, match="--re"):
            serfer.split("net.onnx", out=tmp_path / "plan", **chosen)
    assert (class_type(256), class_type(257)) == ("uint8", "int64")


def test_a_check_that_says_little_is_a_warning(tmp_path):
    class OneClass(torch.nn.Conv2d):
        def forward(self, images):
            return super().forward(images) + torch.tensor([0.0, 1000.0]).reshape(1, 2, 1, 1)

    with pytest.warns(serfer.PlanWarning, match="one class everywhere"):
        serfer.split(OneClass(3, 2, 3).eval(), images(1), tmp_path / "plan", grids="2x2", reduce="argmax")
