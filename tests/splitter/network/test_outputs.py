"""Networks whose outputs are maps, several tensors, whole numbers, or of any rank."""

from itertools import product

import numpy as np
import onnxruntime as ort
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import serfer
from serfer.core.errors import ModelError, UsageError
from serfer.core.exactness import difference
from serfer.splitter.network.description import Reduction
from serfer.splitter.network.reductions import class_type, reduced_answer
from tests.e2e.dense import OUTPUTS, split_dense
from tests.e2e.small import SIZE as SMALL
from tests.exports import run_module
from tests.splitter.models import Net

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch's exporter, about torch
SIZE = (40, 36)


class Dense(nn.Module):
    """A small encoder and decoder; `form` makes the outputs from the scores, the features and the input."""

    def __init__(self, form):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 6, 3, padding=1)
        self.down = nn.Conv2d(6, 8, 3, padding=1, stride=2)
        self.up = nn.ConvTranspose2d(8, 6, 2, stride=2)
        self.last = nn.Conv2d(12, 5, 1)
        self.classify = nn.Linear(8, 7)
        self.form = form

    def forward(self, images):
        full = self.first(images).relu()
        half = self.down(full).relu()
        scores = self.last(torch.cat([full, self.up(half)], 1))
        return self.form(self, scores, half)


def _vector(net, half):
    return net.classify(half.mean((2, 3)))


FORMS = {
    "a map": lambda _, scores, _half: scores,
    "a map and a vector": lambda net, scores, half: (scores, _vector(net, half)),
    "classes of positions": lambda _, scores, _half: scores.argmax(1),
    "one number": lambda net, _, half: _vector(net, half)[:, 0],
    "maps by names": lambda _, scores, half: {
        "half": half,
        "scores": scores,
        "more": scores + 1,
        "again": scores,
        "is positive": scores > 0,
    },
    "maps of other forms": lambda _, scores, _half: (
        scores[:, 0],
        scores.permute(0, 2, 3, 1),
        scores.flatten(2),
        scores[:, :, None] * 2,
    ),
}


def network(form):
    return Dense(FORMS[form]).eval()


def images(count=2):
    return np.random.default_rng(0).standard_normal((count, 3, *SIZE), dtype=np.float32)


def expected(net, batch):
    with torch.inference_mode():
        outputs = net(torch.from_numpy(batch))
    named = (
        outputs if isinstance(outputs, dict) else dict(enumerate(outputs if isinstance(outputs, tuple) else [outputs]))
    )
    return [value.numpy() for value in named.values()]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("grids", ["3x2", *(pytest.param(each, marks=pytest.mark.weekly) for each in ("2x2", "1"))])
@pytest.mark.filterwarnings("ignore::serfer.PlanWarning")  # not every form can be tiled
def test_a_split_network_has_the_outputs_of_the_module(form, grids, tmp_path):
    net, batch = network(form), images()
    plan = serfer.split(net, batch[:1], tmp_path / "plan", grids=grids)
    with serfer.open(tmp_path / "plan") as pipeline:
        answer = pipeline.run(batch)
    values = list(answer.values()) if isinstance(answer, dict) else [answer]
    wanted = expected(net, batch)
    assert [(value.shape, value.dtype) for value in values] == [(value.shape, value.dtype) for value in wanted]
    assert all(difference(value, whole).exact for value, whole in zip(values, wanted, strict=True))
    assert [tensor.dims for tensor in plan.output_tensors] == [value.shape[1:] for value in wanted]


@pytest.fixture(scope="module")
def a_map(tmp_path_factory):
    file = tmp_path_factory.mktemp("network") / "net.onnx"
    example, names = (torch.zeros(1, 3, *SIZE),), ["segmentation"]
    torch.onnx.export(network("a map"), example, dynamo=True, verbose=False, output_names=names).save(file)
    return file


def test_a_dense_network_is_not_asked_for_classes_and_its_labels_are_those_of_its_channels(a_map, tmp_path):
    labels = tuple(f"class {number}" for number in range(5))
    plan = serfer.split(a_map, out=tmp_path / "plan", grids="2x2", labels=labels)
    assert [tensor.name for tensor in plan.output_tensors] == ["segmentation"]
    assert plan.labels == labels
    with pytest.raises(ModelError, match="4 labels for a network with 5 outputs"):
        serfer.split(a_map, out=tmp_path / "other", labels=labels[:4])
    with serfer.open(tmp_path / "plan") as pipeline, pytest.raises(serfer.PlanError, match="no score for each class"):
        pipeline.classify([b""])


def test_an_output_that_does_not_depend_on_the_image_is_refused_by_name(tmp_path):
    net = Dense(lambda _, scores, _half: {"scores": scores, "constant": torch.ones(1, 3)}).eval()
    with pytest.raises(ModelError, match=r"output .* does not depend on its input"):
        serfer.split(net, images(1), tmp_path / "plan")


@pytest.mark.parametrize("batch", [1, "N"])
def test_a_number_for_each_image_is_an_output(tmp_path, batch):
    net = Net(3, 8, 8, batch=batch)
    path = net.save(tmp_path, net.op("ReduceMean", net.conv("x", 3, 4, [3, 3]), keepdims=0), dims=())
    images, session = net.batch_of(3), ort.InferenceSession(path)
    expected = [session.run(None, {"x": image[None]})[0] for image in images]
    for form, make in (("split", serfer.split), ("whole", serfer.whole_plan)):
        make(str(path), out=tmp_path / form)
        with serfer.open(tmp_path / form, workers="inprocess", store="memory://") as pipeline:
            np.testing.assert_allclose(pipeline.run(images), expected, rtol=1e-5, atol=1e-6)


KINDS = {"argmax": lambda y: y.argmax(1), "softmax": torch.nn.Softmax(1), "sigmoid": torch.sigmoid, None: lambda y: y}


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
    expected = by_torch(run_module(net, batch), kind, size)
    with serfer.open(tmp_path / "plan") as pipeline:
        answer = pipeline.run(batch)
    assert answer.shape == expected.shape
    assert difference(answer, expected.astype(answer.dtype)).error <= 1e-4
    assert plan.stages[-1].grid.tiles == 4
    assert plan.output_tensors[0].dtype == ("uint8" if kind == "argmax" else "float32")
    assert f"bytes of {4 * 5 * SIZE[0] * SIZE[1]:,}" in plan.why


def test_the_first_map_alone_is_reduced(tmp_path):
    names = ["embedding", "scores", "head/depth"]
    with pytest.warns(serfer.PlanWarning, match="one output, scores: embedding, head/depth as they are"):
        directory = split_dense(tmp_path, names, reduce="argmax", resize_output=(SMALL * 2, SMALL * 2))
    with serfer.open(directory) as pipeline:
        answer = pipeline.run(np.zeros((1, 3, SMALL, SMALL), np.float32))
    assert {name: (value.dtype.name, value.shape[1:]) for name, value in answer.items()} == {
        "embedding": OUTPUTS["embedding"],
        "scores": ("uint8", (SMALL * 2, SMALL * 2)),
        "head/depth": OUTPUTS["head/depth"],
    }


@pytest.mark.parametrize(
    ("names", "words"), [(["embedding"], "map"), (["head/depth"], "one channel"), (["classes"], "map")]
)
def test_an_output_that_cannot_be_reduced_and_an_unknown_reduction_are_refused(names, words, tmp_path):
    with pytest.raises(ModelError, match=words):
        split_dense(tmp_path, names, reduce="argmax")
    for chosen in ({"reduce": "max"}, *({"resize_output": size} for size in ((0, 5), (5,), "5y5"))):
        with pytest.raises(UsageError, match=r"--reduce|resize_output"):
            serfer.split("net.onnx", out=tmp_path / "plan", **chosen)
    assert (class_type(256), class_type(257)) == ("uint8", "int64")


@pytest.mark.parametrize("chosen", [{"reduce": "argmax"}, {"reduce": "softmax"}, {"resize_output": (9, 9)}])
def test_a_map_with_its_channels_last_is_not_reduced_over_its_rows(chosen, tmp_path):
    net = Net(3, 24, 32)
    last = net.op("Transpose", net.conv("x", 3, 5, 3, strides=[2, 2]), perm=[0, 2, 3, 1])
    with pytest.raises(ModelError, match=r"\(1, 12, 16, 5\), has its channels last: leave reduce out"):
        serfer.split(net.save(tmp_path, last, dims=[*"NHWC"]), out=tmp_path / "plan", **chosen)


@pytest.mark.parametrize(
    "make",
    [
        lambda net, out: serfer.split(net, images(1), out, grids="2x2", reduce="argmax"),
        lambda net, out: serfer.map_plan(net, [(300, 400)], out, window=128, reduce="argmax"),
    ],
)
def test_a_check_on_one_class_everywhere_is_a_warning(make, tmp_path):
    class OneClass(nn.Conv2d):
        def forward(self, images):
            return super().forward(images) + torch.tensor([0.0, 1000.0]).reshape(1, 2, 1, 1)

    torch.manual_seed(0)
    with pytest.warns(serfer.PlanWarning, match="one class everywhere") as warned:
        make(OneClass(3, 2, 3).eval(), tmp_path / "plan")
    assert warned[0].filename == __file__
