"""split() writes an exact and complete plan, or raises one clear error and leaves nothing behind."""

import os
import re

import numpy as np
import onnx
import pytest
import torch

from serfer.core.errors import InputError, ModelError, UnavailableError, UsageError
from serfer.plan_directory import check_artefacts, load_plan
from serfer.splitter import build
from serfer.splitter.network import zoo
from serfer.splitter.network.onnx_models import session_of
from serfer.splitter.network.source import load
from serfer.splitter.plan_dir import assemble as assembling
from serfer.splitter.plan_dir.check import run_tiles
from serfer.splitter.split import split
from serfer.splitter.whole import whole_plan
from tests.e2e.small import small_onnx
from tests.splitter.models import Net, plan_error, relative_error, saved

LABELS = [f"class {index}" for index in range(5)]


def network(dims=("N", "K")):
    net = Net(3, 16, 16)
    x = net.op("Relu", net.conv("x", 3, 4, 3))
    x = net.op("Relu", net.conv(x, 4, 4, 3, strides=[2, 2]))
    return net.model(net.linear(net.flat(x), 256, 5), dims=dims)


@pytest.fixture
def file(tmp_path):
    return saved(tmp_path, network())


@pytest.fixture(scope="module")
def example():
    return np.random.default_rng(5).standard_normal((1, 3, 16, 16), dtype=np.float32)


@pytest.fixture
def home(tmp_path):
    path = tmp_path / "home"
    path.mkdir()
    return path


def test_an_output_directory_is_complete_when_it_appears(file, home):
    plan = split(file, out=home / "a" / "plan", grids=["2x2", "1"], labels=LABELS, activation="softmax")
    assert load_plan(home / "a" / "plan") == plan
    check_artefacts(plan, home / "a" / "plan")
    assert plan.labels == tuple(LABELS)
    assert [path.name for path in (home / "a").iterdir()] == ["plan"]


@pytest.mark.who_may
def test_directory_permissions_follow_the_umask(file, home):
    old = os.umask(0o027)
    try:
        split(file, out=home / "plan")
    finally:
        os.umask(old)
    assert (home / "plan").stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize("error", [RuntimeError("disk on fire"), KeyboardInterrupt(), OSError(28, "No space left")])
@pytest.mark.parametrize("step", ["write_functions", "check_exact", "write_plan"])
def test_a_failed_split_leaves_no_directory(file, home, monkeypatch, error, step):
    def fail(*_):
        raise error

    monkeypatch.setattr(build if step == "check_exact" else assembling, step, fail)
    with pytest.raises(UnavailableError if isinstance(error, OSError) else type(error)):
        split(file, out=home / "plan")
    assert list(home.iterdir()) == []


def test_an_existing_plan_is_kept_by_a_split_that_fails_and_replaced_completely_by_another(file, home, monkeypatch):
    plan = split(file, out=home / "plan", grids="1", stages="3")
    with monkeypatch.context() as patch:
        patch.setattr(build, "check_exact", lambda *_: pytest.fail("stop"))
        with pytest.raises(pytest.fail.Exception):
            split(file, out=home / "plan", grids="2x2")
    assert load_plan(home / "plan") == plan
    plan = split(file, out=home / "plan", grids="2x2", stages=2)
    assert load_plan(home / "plan") == plan
    assert not (home / "plan" / "stage-2").exists()
    assert [path.name for path in home.iterdir()] == ["plan"]


def test_a_model_is_not_deleted_by_its_own_plan(file, home):
    split(file, out=home / "plan", grids="1")
    split(file, out=home / "again", grids="1")
    with pytest.raises(InputError, match="which is to be read"):
        split(home / "plan" / "unsplit.onnx", out=home / "plan")
    split(home / "plan" / "unsplit.onnx", out=home / "again")
    assert sorted(path.name for path in home.iterdir()) == ["again", "plan"]


def test_a_network_may_give_its_name_to_its_plan(home, monkeypatch):
    monkeypatch.chdir(home)
    monkeypatch.setattr(build, "load", lambda *_: pytest.fail("got so far"))
    with pytest.raises(pytest.fail.Exception, match="got so far"):
        split("alexnet", out="alexnet")


@pytest.mark.parametrize(
    "bad",
    [
        np.ones((1, 3, 16, 16)),
        np.ones((3, 16, 16), np.float32),
        np.ones((1, 3, 16, 16), np.uint8),
        np.ones((0, 3, 16, 16), np.float32),
        np.ones((1, 3, 0, 16), np.float32),
        np.ones((1, 1, 16, 16), np.float32),
        np.float32(3),
        "text",
        [[1.0], [1.0, 2.0]],
    ],
    ids=["float64", "three axes", "uint8", "no image", "no rows", "channels", "scalar", "text", "ragged"],
)
def test_an_example_of_the_wrong_kind_is_refused(file, home, bad):
    with pytest.raises(ModelError):
        split(file, bad, home / "plan")
    assert list(home.iterdir()) == []


@pytest.mark.parametrize(("height", "width"), [(1_000_000, 1_000_000), (-4, 16)])
def test_a_file_that_fixes_an_impossible_size_is_refused(home, height, width):
    model = network()
    for axis, size in ((2, height), (3, width)):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_value = size
    with pytest.raises(ModelError, match=rf"3 x {height} x {width}: .*268,435,456"):
        split(saved(home, model), out=home / "plan")


FACTORY = """
import torch
def make():
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(784, 5))
"""


@pytest.mark.parametrize("command", [split, whole_plan])
def test_a_name_that_is_given_takes_the_place_of_the_files(command, example, home):
    (home / "mine.py").write_text(FACTORY)
    plan = command(f"{home}/mine.py:make", example, home / "plan")
    assert (plan.model, plan.output.elements) == ("mine", 5)
    plan = command(f"{home}/mine.py:make", example, home / "plan", name="faces-2")
    assert (plan.model, load_plan(home / "plan").model) == ("faces-2", "faces-2")
    assert plan.function(0, 0).startswith("serfer-faces-2-")


class Random(torch.nn.Module):
    """Its export, where nothing is random, takes nearly all of the time of a test."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(768, 5)

    def forward(self, x):
        scores = self.layer(x.reshape(-1, 768))
        return scores if torch.compiler.is_compiling() else scores + torch.rand(1)


@pytest.fixture(scope="module")
def random_module(example):
    return load(Random().eval(), example)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_module_whose_answers_are_random_is_refused_as_such(random_module, precision, example, home, monkeypatch):
    monkeypatch.setattr(build, "load", lambda *_: random_module)
    with pytest.raises(ModelError, match="operator is random"):
        split("the module", example, home / "plan", precision=precision)
    assert not (home / "plan").exists()


def test_a_module_that_takes_channels_last_is_refused(home):
    (home / "last.py").write_text(
        "import torch\nclass Last(torch.nn.Module):\n    def forward(self, x):\n"
        "        return x.permute(0, 3, 1, 2).mean((2, 3))\n"
    )
    with pytest.raises(ModelError, match=r"\(N, 16, 16, 3\), .*channels last"):
        split(f"{home / 'last.py'}:Last", np.zeros((1, 16, 16, 3), np.float32), out=home / "plan")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        *(
            ({"labels": labels}, ModelError, f"{len(labels)} labels .* 5 outputs")
            for labels in (["one"], LABELS[:4], [*LABELS, "more"])
        ),
        ({"activation": "argmax"}, UsageError, "softmax, sigmoid or none"),
        *(({"memory_mb": memory}, UsageError, "128 to 10240 MB") for memory in (0, 127, 10241, -1)),
        *(({"limit_mb": limit}, UsageError, r"111\.6 MB.*at least 112 MB") for limit in (0, -5, 89)),
        *(({"stages": stages}, UsageError, "stages must be") for stages in ("two", "", "1.5", 2.5, True)),
        *(({"name": name}, UsageError, "--name") for name in ("", "../x", "a b", "x" * 65, "-x", "größe")),
    ],
)
def test_options_out_of_bounds_are_refused_by_name(file, home, options, error, words):
    with pytest.raises(error, match=words):
        split(file, out=home / "plan", **options)
    assert list(home.iterdir()) == []


def test_the_package_limit_uses_the_measured_size_of_dependencies(file, home):
    with pytest.raises(UsageError, match=r"83\.4 MB.*at least 84 MB"):
        split(file, out=home / "plan", limit_mb=83, dependency_bytes=87_500_000)
    assert (
        split(file, out=home / "plan", limit_mb=84, dependency_bytes=87_500_000).limit.room == 84 * 2**20 - 87_500_000
    )


def test_progress_reports_each_step(file, home):
    steps = []
    split(file, out=home / "plan", stages=2, progress=steps.append)
    assert steps[0].startswith("reading the network (about ")
    assert any(step.startswith("writing stage 1 of 2 (about ") for step in steps)
    assert steps[-1].startswith("checking the parts against the whole (about ")


def test_stages_are_replanned_where_graphs_exceed_the_remaining_room(tmp_path):
    """What graphs take is known only when they are written: the plan is chosen again with so much less room."""
    weights = 4 * (8 * 3 * 9 + 8 * 8 * 9 + 12 * 8 * 9 + 7 * 12 + 7)
    room = weights + 300
    onnx.save(small_onnx(), tmp_path / "small.onnx")
    limits = {"limit_mb": 1, "dependency_bytes": (1 << 20) - room}
    plan = split(str(tmp_path / "small.onnx"), out=tmp_path / "plan", weights="zip", **limits)
    assert len(plan.stages) > 1
    assert all(function.bytes <= room for stage in plan.stages for function in stage.functions)
    assert plan.limit.room == room
    assert sorted(path.name for path in (tmp_path / "plan").iterdir() if path.is_dir()) == [
        f"stage-{number}" for number in range(len(plan.stages))
    ]


SIZES = ((32, 32), (48, 48), (64, 64), (96, 96), (97, 131))
A_COMMIT = {("alexnet", (32, 32)), ("squeezenet", (48, 48))}
EVERY = [
    pytest.param(
        name, size, id=f"{name}-{size[0]}x{size[1]}", marks=() if (name, size) in A_COMMIT else pytest.mark.weekly
    )
    for name in zoo.ZOO
    for size in SIZES
]


def images(count, size):
    return np.random.default_rng(count).standard_normal((count, 3, *size), dtype=np.float32)


def own_reason(name, size):
    """Return why a network itself does not take images of a size, as PyTorch says it; None where it takes them."""
    with torch.no_grad():
        try:
            zoo.find(name).build()(torch.from_numpy(images(1, size)))
        except RuntimeError as error:
            return str(error).splitlines()[0]
    return None


@pytest.mark.exact
@pytest.mark.parametrize(("name", "size"), EVERY)
def test_a_network_of_the_zoo_has_a_plan_or_does_not_take_the_size_itself(name, size, tmp_path):
    if reason := own_reason(name, size):
        with pytest.raises(ModelError, match=re.escape(reason[:60])):
            split(name, images(1, size), tmp_path / "plan")
        return
    plan = split(name, images(1, size), tmp_path / "plan")
    whole = session_of(tmp_path / "plan" / plan.unsplit.path).run(None, {"input0": images(2, size)})[0]
    assert relative_error(run_tiles(plan, tmp_path / "plan", images(2, size)), whole) < 1e-4


def text_classifier():
    """Return a network as those that classify lines of text are: strides of rows alone, 48 x 192 to 2 x 96."""
    net = Net(3, 48, 192)
    x = net.op("HardSwish", net.conv("x", 3, 8, 3, strides=[2, 2]))
    for _ in range(4):
        y = net.conv(x, 8, 8, 5, groups=8, strides=[2, 1])
        squeezed = net.op("Relu", net.conv(net.op("GlobalAveragePool", y), 8, 4, 1))
        y = net.op("Mul", y, net.op("HardSigmoid", net.conv(squeezed, 4, 8, 1)))
        x = net.op("HardSwish", net.conv(y, 8, 8, 1))
    x = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    return net, net.linear(net.flat(net.op("GlobalAveragePool", x)), 8, 2)


@pytest.mark.exact
@pytest.mark.parametrize("gang", ["auto", "always"])
def test_lines_of_text_whose_maps_become_a_row_or_two_have_a_plan(tmp_path, gang):
    net, output = text_classifier()
    plan = split(net.save(tmp_path, output), out=tmp_path / "plan", gang=gang)
    assert plan_error(net, output, plan, tmp_path / "plan") < 1e-5
