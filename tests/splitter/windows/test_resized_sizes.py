"""Maps of networks that resize by a fraction: torch, ONNX Runtime and shape inference round their sizes otherwise."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from torch.nn import functional

import serfer
from serfer.core.geometry import Span
from serfer.plan_directory import load_plan
from serfer.splitter.network.interpolation import made_size
from serfer.splitter.network.onnx_models import model_of, run_once, session_of
from serfer.splitter.network.source import load
from serfer.splitter.network.unsupported import CannotSplitError
from serfer.splitter.windows.any_size_network import any_size_networks
from serfer.splitter.windows.network_at_sizes import Network
from serfer.splitter.windows.wanted_sizes import AnySize
from tests.splitter.models import saved
from tests.splitter.windows.test_random_maps import by_windows

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch's exporter, about torch
SCALES = (0.35, 0.7, 0.75, 0.9, 1.1, 1.15, 1.25, 1.3, 1.4, 1.5)
SIZES = np.arange(130, 4001)


def resize(scale, mode="nearest", channels=1):
    attributes = {"mode": mode} | ({"nearest_mode": "floor"} if mode == "nearest" else {})
    return model_of(
        [helper.make_node("Resize", ["x", "", "scales"], ["y"], **attributes)],
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, channels, "h", "w"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, channels, None, None])],
        [numpy_helper.from_array(np.array([1, 1, scale, scale], np.float32), "scales")],
    )


@pytest.mark.parametrize(
    ("scale", "step"),
    [(0.7, 10), (1.15, 10), (1.3, 10), *(pytest.param(scale, 1, marks=pytest.mark.weekly) for scale in SCALES)],
)
def test_resized_sizes_are_those_of_torch_and_of_onnx_runtime(scale, step):
    sizes = SIZES[::step]
    torchs = [functional.interpolate(torch.empty(1, 1, n, device="meta"), scale_factor=scale).shape[2] for n in sizes]
    assert made_size(np.float32(scale), sizes, by_torch=True).tolist() == torchs
    run = session_of(resize(scale))
    runtimes = [run.run(None, {"x": np.zeros((1, 1, n, 4), np.float32)})[0].shape[2] for n in sizes]
    assert made_size(np.float32(scale), sizes, by_torch=False).tolist() == runtimes


class Resized(nn.Module):
    def __init__(self, scale, mode):
        super().__init__()
        torch.manual_seed(0)
        stride = 1 if scale else 2
        self.before, self.after = nn.Conv2d(3, 4, 3, stride, padding=1), nn.Conv2d(4, 2, 3, padding=1)
        self.scale, self.mode = scale, mode

    def forward(self, image):
        size = {"scale_factor": self.scale} if self.scale else {"size": image.shape[2:]}
        return self.after(functional.interpolate(self.before(image), mode=self.mode, **size))


@pytest.mark.parametrize("scale", [0.7, 1.15, 1.5])
def test_sizes_of_a_modules_plan_are_in_groups_that_torch_rounds_alike(scale, tmp_path):
    source, _ = load(saved(tmp_path, resize(scale)), np.zeros((1, 1, 192, 192), np.float32), any_size=(11_520,) * 2)
    network = Network.of(replace(source, exported=True, outputs=("y",)), None)
    [sized] = any_size_networks(network, AnySize(20))
    groups = [
        np.concatenate([np.arange(run.start, run.stop, 20) for run in runs or [Span(20, 4001)]])
        for runs in sized.endings(2, 11_520)
    ]
    sizes = np.concatenate(groups)
    assert sorted(sizes[(sizes > 0) & (sizes <= 4000)]) == [*range(20, 4001, 20)]
    torchs = [{*(made_size(np.float32(scale), group, by_torch=True) - group * scale).round(2)} for group in groups]
    assert [len(way) for way in torchs] == [1] * len(groups)


def test_plan_says_why_it_leaves_out_sizes_that_two_resizes_round(tmp_path):
    model = resize(0.7)
    model.graph.node.append(
        helper.make_node("Resize", ["y", "", "second"], ["z"], mode="nearest", nearest_mode="floor")
    )
    model.graph.output[0].name = "z"
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 1, 2 / 3, 2 / 3], np.float32), "second"))
    example = np.zeros((1, 1, 192, 192), np.float32)
    source, _ = load(saved(tmp_path, model), example, any_size=(11_520,) * 2)
    network = Network.of(replace(source, exported=True, outputs=("z",)), None)
    [sized] = any_size_networks(network, AnySize(30))
    assert "Resize" in sized.axes(2)[1]


@pytest.mark.exact
@pytest.mark.weekly
@pytest.mark.parametrize("scale", SCALES)
def test_map_of_any_size_has_the_modules_size_and_is_as_near_as_it(scale, tmp_path):
    module = Resized(scale, "bilinear").eval()
    plan = serfer.map_plan(module, "any,multiple=20", tmp_path / "plan", window=round(100 * scale))
    ends, wide = plan.windows.rules.sides[-1].rows.ends, 420
    multiples = np.arange(20, 40_001, 20)
    ways = {*(made_size(np.float32(scale), multiples, by_torch=True) - multiples * round(100 * scale) // 100)}
    assert [end.residue for end in ends] == [0] * len(ways)
    for high in {high for end in ends for high in (end.least, *(span.start for span in end.sizes[1:2]))}:
        image = torch.from_numpy(np.random.default_rng(high).standard_normal((1, 3, high, wide), np.float32))
        with torch.no_grad():
            own, exact = module.float()(image).numpy(), module.double()(image.double()).numpy()
        made = by_windows(tmp_path / "plan", image.numpy())
        assert made.shape == own.shape
        assert np.abs(made - exact).max() <= 2 * np.abs(own - exact).max() + 1e-6


@pytest.mark.exact
@pytest.mark.parametrize(("scale", "size"), [(0.75, (301, 263)), (0.7, (300, 260))], ids=str)
def test_map_of_one_size_shifts_by_the_scale_and_not_by_sizes(scale, size, tmp_path):
    model = resize(scale, "linear", 3)
    serfer.map_plan(saved(tmp_path, model), [size], tmp_path / "plan")
    assert not load_plan(tmp_path / "plan").windows.positioned
    image = np.random.default_rng(0).standard_normal((1, 3, *size), np.float32)
    [own] = run_once(model, {"x": image})
    assert np.abs(by_windows(tmp_path / "plan", image) - own).max() <= 1e-4 * np.ptp(own)


@pytest.mark.exact
@pytest.mark.parametrize(
    ("scale", "sizes", "size"),
    [
        (1.3, [(245, 333)], (245, 333)),
        (2.0, "any", (301, 407)),
        (0.7, "any,multiple=10", (310, 440)),
        (None, "any,multiple=10", (160, 210)),
    ],
)
def test_map_resized_to_the_nearest_exact_has_the_modules_pixels(scale, sizes, size, tmp_path):
    """torch's exporter lists the place of every pixel, which plans would compute for thousands of rows and columns."""
    module = Resized(scale, "nearest-exact").eval()
    serfer.map_plan(module, sizes, tmp_path / "plan")
    image = torch.from_numpy(np.random.default_rng(0).standard_normal((1, 3, *size), np.float32))
    with torch.no_grad():
        own = module(image).numpy()
    assert np.abs(by_windows(tmp_path / "plan", image.numpy()) - own).max() <= 1e-5 * np.ptp(own)


def test_refusal_of_a_factor_advises_another_factor_and_no_size(tmp_path):
    with pytest.raises(CannotSplitError, match=r"resize linearly or by a plain factor such as 1\.5"):
        serfer.map_plan(Resized(1.3, "nearest").eval(), "any,multiple=10", tmp_path / "plan")
