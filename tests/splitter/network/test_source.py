"""Errors of loading a model are one line that names the cause and the remedy."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from serfer.core.errors import ModelError
from serfer.splitter.network import source
from serfer.splitter.network.source import load
from serfer.splitter.network.zoo import with_torchvision
from serfer.splitter.split import split
from serfer.splitter.tiling.from_onnx import from_onnx
from tests.splitter.models import Net, saved

SIZE = (8, 8)
EXAMPLE = np.zeros((1, 3, *SIZE), np.float32)


def message(model, example=EXAMPLE):
    with pytest.raises(ModelError) as refusal:
        load(model, example)
    text = str(refusal.value)
    assert "\n" not in text
    return text


FACTORIES = """
import sys
def stops():
    sys.exit(0)
def fails():
    raise ValueError("no weights\\nand more")
def helper():
    raise OSError("a file is missing")
def boom():
    helper()
def nothing():
    return None
value = 3
"""


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("mine.py:stops", "mine.py:stops failed: SystemExit: 0"),
        ("mine.py:fails", "mine.py:fails failed: ValueError: no weights"),
        ("mine.py:boom", r"a file is missing \(.*mine.py, line 8, in helper\)"),
        ("mine.py:absent", "mine.py:absent failed: AttributeError: mine.py defines no 'absent'"),
        ("mine.py:", "mine.py: failed: AttributeError: mine.py defines no ''"),
        ("mine.py", "mine.py:make"),
        ("mine.py:value", "mine.py:value failed: TypeError: 'int'"),
        *((value, r"not a torch\.nn\.Module") for value in ("mine.py:nothing", 42, None, {"a": 1})),
        ("broken.py:make", "broken.py:make"),
        ("absent.py:make", "absent.py"),
        ("absent.onnx", "absent.onnx"),
        (".", "."),
        ("restnet50", r"unknown model 'restnet50' \(did you mean resnet50\?\)"),
        ("resnet.pt", "holds weights.*write a function"),
    ],
    ids=str,
)
def test_what_is_no_model_is_told_what_it_lacks(tmp_path, monkeypatch, model, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(FACTORIES)
    (tmp_path / "broken.py").write_text("def make(:\n")
    assert re.search(words, message(model))
    with pytest.raises(ModelError, match="give --size"):
        load(f"{tmp_path / 'mine.py'}:fails", None)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(192, 5)
        self.eval()

    def forward(self, x):
        return self.layer(x.flatten(1))


class Wrapped(Model):
    def __init__(self, wrap):
        super().__init__()
        self.wrap = wrap

    def forward(self, x):
        return self.wrap(super().forward(x))


@pytest.mark.parametrize(
    ("wrap", "names"),
    [
        (lambda y: (y,), ["output0"]),
        (lambda y: {"scores": y, "none": None}, ["scores"]),
        (lambda y: [y, {"a": y, "b": (y, -y)}], ["output0", "output1.a", "output1.b.output0", "output1.b.output1"]),
    ],
)
def test_outputs_have_the_names_of_their_places_in_what_a_module_returns(wrap, names):
    source, _ = load(Wrapped(wrap), EXAMPLE)
    assert list(source.outputs) == names
    answer = source.run(EXAMPLE)
    assert list(answer) == names if len(names) > 1 else answer.shape[0] == 1


class TwoInputs(Model):
    def forward(self, x, y):
        return super().forward(x + y)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (TwoInputs, "forward() missing 1 required positional argument"),
        (lambda: Wrapped(lambda _: sys.exit(0)), "SystemExit"),
        (lambda: Wrapped(lambda y: y @ torch.ones(9, 9)), "mat1 and mat2"),
        (lambda: Wrapped(lambda y: (y, 3)), "the module's forward() returns a int as "),
        (lambda: Wrapped(lambda y: {"a": y, "b": "text"}), "the module's forward() returns a str as "),
        (lambda: torch.nn.AdaptiveMaxPool2d((7, 5)).eval(), "ONNX has no operator for aten.adaptive_max_pool2d"),
    ],
    ids=["two inputs", "stops", "fails", "number", "text", "no operator"],
)
def test_a_module_that_cannot_be_read_is_refused_with_the_reason(model, words):
    assert words in message(model())


class Branches(Model):
    def forward(self, x):
        if x.sum() > 0:
            return super().forward(x)
        return super().forward(-x)


def test_a_branch_that_depends_on_the_data_is_named_by_its_line_and_torch_says_nothing_itself(capfd):
    text = message(Branches())
    assert capfd.readouterr() == ("", "")
    line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "if x.sum() > 0:" in text)
    assert f"depends on the values of the image at {__file__}:{line} (if x.sum() > 0:)" in text


@pytest.mark.parametrize(
    ("file", "spoil", "why"),
    [
        ("net.bin", Path.unlink, "has its weights in net.bin, which is not a file beside it"),
        ("net.bin", lambda path: path.write_bytes(path.read_bytes()[:9]), "in another file, which is cut off"),
        ("net.bin", lambda path: path.write_bytes(b""), "in another file, which is cut off"),
        ("net.onnx", lambda path: path.write_bytes(b""), "not an ONNX model: it is empty"),
        ("net.onnx", lambda path: path.write_bytes(bytes(range(256)) * 40), "not an ONNX model"),
        ("net.onnx", lambda path: path.write_bytes(path.read_bytes()[:-6]), "not an ONNX model"),
        ("net.onnx", lambda path: path.write_bytes(b"hello, this is text\n"), "not an ONNX model: .*another kind"),
    ],
)
def test_files_that_are_missing_cut_off_or_of_another_kind_are_told_apart(tmp_path, file, spoil, why):
    net, x = network()
    path = tmp_path / "net.onnx"
    onnx.save(net.model(x), path, save_as_external_data=True, location="net.bin", size_threshold=0)
    spoil(tmp_path / file)
    text = message(path)
    assert re.search(why, text)
    assert ("not an ONNX model" in text) == (file == "net.onnx")


def network(channels=3, batch="N", **more):
    net = Net(channels, *SIZE, batch=batch, **more)
    return net, net.conv("x", 3, 4, 3)


@pytest.mark.parametrize("example", [None, EXAMPLE])
def test_unknown_channels_are_those_of_the_weights_or_the_examples(example, tmp_path):
    net, x = network(channels="C")
    source, taken = load(net.save(tmp_path, net.flat(x)), example)
    assert taken.shape == EXAMPLE.shape
    assert from_onnx(source.onnx, *SIZE).shape("x").channels == 3
    net = Net("C", *SIZE)
    source, _ = load(net.save(tmp_path, net.flat(net.op("Relu", "x"))), EXAMPLE)
    assert from_onnx(source.onnx, *SIZE).shape("x").channels == 3


def duplicated(net, x):
    x = net.op("Relu", x)
    net.nodes[-1].name = net.nodes[-2].name
    return x, "two nodes with same node name"


def ill_shaped(net, x):
    return net.op("Conv", x, net.floats(4, 2, 3, 3)), "Input channels C is not equal to kernel channels"


@pytest.mark.parametrize("form", [duplicated, ill_shaped])
def test_onnx_runtimes_refusal_is_reported_without_its_internals(tmp_path, form, capfd):
    net, x = network()
    x, why = form(net, x)
    path = net.save(tmp_path, net.flat(x))
    source, example = load(path, None)
    with pytest.raises(ModelError) as refusal:
        source.run(example)
    text = str(refusal.value)
    assert "\n" not in text
    assert "net.onnx does not run in ONNX Runtime: " in text
    assert why in text
    assert "onnxruntime_src" not in text
    assert "[ONNXRuntimeError]" not in text
    with pytest.raises(ModelError, match="^" + re.escape(text)):
        split(path, out=tmp_path / "plan")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("place", ["input", "output"])
def test_a_file_that_lacks_a_shape_is_read_as_onnx_runtime_reads_it(tmp_path, place):
    net, x = network()
    model = net.model(net.flat(x))
    getattr(model.graph, place)[0].type.tensor_type.ClearField("shape")
    path = saved(tmp_path, model)
    source, example = load(path, np.ones((1, 3, 8, 8), np.float32))
    assert len(source.run(example)) == 1
    assert split(path, example, tmp_path / "plan").stages


def test_future_opsets_and_outputs_that_are_sequences_are_refused(tmp_path):
    for opset in (29, 99):
        net, x = network()
        model = net.model(net.flat(x))
        model.opset_import[0].version = opset
        assert f"opset {opset}" in (text := message(saved(tmp_path, model), None))
        assert "export it with opset 20" in text
    net, x = network()
    model = net.model(net.op("SplitToSequence", x, axis=1))
    kind = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None)
    model.graph.output[0].type.CopyFrom(onnx.helper.make_sequence_type_proto(kind))
    with pytest.raises(ModelError, match="a sequence or a map and not a tensor"):
        split(saved(tmp_path, model), out=tmp_path / "plan")


FACTORY = """
from __future__ import annotations
from dataclasses import dataclass
import timm, torchvision
import neighbour

@dataclass
class Config:
    width: int = 3

def make():
    return neighbour.build(Config().width)
"""


def test_a_factory_file_may_use_dataclasses_and_its_neighbours(tmp_path):
    (tmp_path / "net.py").write_text(FACTORY)
    (tmp_path / "neighbour.py").write_text("def build(width):\n    return ['built', width]\n")
    before = list(sys.path)
    assert source.call_factory(tmp_path / "net.py", "make") == ["built", 3]
    assert sys.path == before


def test_a_module_in_training_mode_is_refused_and_not_modified():
    module = torch.nn.Linear(2, 2).train()
    with pytest.raises(ModelError, match="training mode"):
        source.load(module, None)
    assert module.training


class Threads(torch.nn.Module):
    def forward(self, image):
        return image.mean(dim=(2, 3)) * 0 + torch.get_num_threads()


@pytest.mark.parametrize(("size", "threads"), [(8, 1), (1024, 2)])
def test_small_images_are_computed_on_one_thread_and_torch_keeps_its_number(monkeypatch, size, threads):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with monkeypatch.context() as patch:
            patch.setattr(source, "_export", lambda *_: None)  # the module's own answer alone is of interest here
            given, _ = source.load(Threads().eval(), np.zeros((1, 3, size, size), np.float32))
        assert given.run(np.zeros((1, 3, size, size), np.float32)).max() == threads
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def python(code, *arguments):
    run = subprocess.run([sys.executable, "-W", "error", "-c", code, *arguments], capture_output=True, text=True)  # noqa: PLW1510 - its output says more
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


def test_importing_serfer_patches_no_import():
    code = "import sys; before = [*sys.meta_path]; import serfer; print(sys.meta_path == before)"
    assert python(code) == ["True"]


def test_torchvision_is_imported_for_a_network_and_its_operators_on_boxes_say_that_they_are_missing():
    code = """
from importlib import import_module
from serfer.splitter.network.zoo import with_torchvision
torchvision = with_torchvision(lambda: import_module("torchvision"))
import torch
try:
    torchvision.ops.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)
except RuntimeError as error:
    assert "custom C++ ops" in str(error), error
else:
    assert torchvision.extension._has_ops()
print(torchvision.models.resnet18(weights=None).fc.out_features)
"""
    assert python(code) == ["1000"]


def test_another_error_of_an_import_is_its_own():
    def fail():
        raise RuntimeError("another")

    with pytest.raises(RuntimeError, match="another"):
        with_torchvision(fail)
