import subprocess
import sys

import numpy as np
import pytest
import torch

from serfer.core.errors import ModelError
from serfer.splitter.network import source
from serfer.splitter.network.zoo import with_torchvision

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
    """Says on how many threads it is computed."""

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
