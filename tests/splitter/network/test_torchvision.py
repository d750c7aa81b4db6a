"""torchvision and timm are imported beside a CPU build of torch, for which torchvision's wheel is not built."""

import subprocess
import sys

import pytest

from serfer.splitter.network.zoo import with_torchvision


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
