"""torchvision and timm are imported beside a CPU build of torch, for which torchvision's wheel is not built."""

import subprocess
import sys

import numpy as np

from serfer.splitter.network.source import load

EXAMPLE = np.zeros((1, 3, 32, 32), np.float32)
FACTORY = """
import timm
import torch
import torchvision
def network():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 2))
"""


def python(code, *arguments):
    run = subprocess.run([sys.executable, "-W", "error", "-c", code, *arguments], capture_output=True, text=True)  # noqa: PLW1510 - its output says more
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


def test_a_users_module_may_import_torchvision_and_timm(tmp_path):
    (tmp_path / "user.py").write_text(FACTORY)
    source, _ = load(f"{tmp_path}/user.py:network", EXAMPLE)
    assert source.name == "user"


def test_torchvision_can_be_imported_after_serfer():
    code = """
import serfer, sys
assert not {"torch", "torchvision"} & set(sys.modules)
import importlib.util
assert importlib.util.find_spec("torchvision") is not None
assert "torch" not in sys.modules, "looking for torchvision does not load torch"
import torchvision
assert type(torchvision.__spec__.loader).__name__ == "SourceFileLoader"
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


def test_a_complete_torchvision_keeps_its_own_operators(tmp_path):
    """A second declaration of an operator would end its import."""
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "_C.so").touch()
    (package / "__init__.py").write_text(
        "import torch\n"
        "torch.ops.load_library(__path__[0] + '/_C.so')\n"
        "print(torch.ops.torchvision.nms(torch.ones(1), torch.zeros(1), 0.5).item())\n"
    )
    code = """
import sys, serfer, torch
sys.path.insert(0, sys.argv[1])
loaded = []
def load_library(path):
    if path not in loaded:  # as the loader of shared libraries does
        loaded.append(path)
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.impl("nms", lambda dets, scores, threshold: dets + 1, "CPU")
        loaded.append(library)
torch.ops.load_library = load_library
import torchvision
"""
    assert python(code, str(tmp_path)) == ["2.0"]


def test_without_torchvision_the_error_is_pythons_own():
    code = """
import sys, serfer
sys.path[:] = [path for path in sys.path if "site-packages" not in path]
try:
    import torchvision
except ModuleNotFoundError as error:
    print(error.name)
"""
    assert python(code) == ["torchvision"]
