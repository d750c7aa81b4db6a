"""Modules of public reports: what torch exports, or runtimes compute, wrongly. The module is the reference.

The numbers are those of the projects' issues.
"""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import serfer
from serfer.core.errors import ModelError, PlanWarning

pytestmark = pytest.mark.slow


class Row(nn.Module):
    """Layers in a row, each a module or a function."""

    def __init__(self, *layers):
        super().__init__()
        self.row = layers
        self.layers = nn.ModuleList(layer for layer in layers if isinstance(layer, nn.Module))
        torch.manual_seed(0)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.3)

    def forward(self, x):
        for layer in self.row:
            x = layer(x)
        return x


def conv(before, after, **more):
    return nn.Conv2d(before, after, 3, **{"padding": 1, **more})


class UNet(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.down, self.deep, self.up = conv(3, 8), conv(8, 8, stride=2), nn.ConvTranspose2d(8, 8, 2, 2)
        self.first, self.second, self.last = norm(8), norm(8), conv(16, 2)

    def forward(self, x):
        x = self.first(self.down(x)).relu()
        return self.last(torch.cat([x, self.up(self.second(self.deep(x)).relu())], 1))


class Biased(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution, self.bias = conv(8, 8, groups=4), nn.Parameter(torch.zeros(1, 8, 1, 1))

    def forward(self, x):
        return self.convolution(x) + self.bias


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        x = x.flatten(2).transpose(1, 2)
        return self.attention(x, x, x, need_weights=False)[0]


def resized(*size, **more):
    return lambda x: functional.interpolate(x, size, **more)


def boxes(x):
    """Return sides of boxes as the means of 8 bins, of two scales, as heads of the YOLO family do."""
    flat = torch.cat([x.flatten(2), functional.max_pool2d(x, 2).flatten(2)], 2)
    bins = flat.reshape(-1, 4, 8, flat.shape[2]).softmax(2)
    return (bins * torch.arange(8.0).reshape(1, 1, 8, 1)).sum(2)


def rolled(x):
    return torch.roll(x, (3, 5), (2, 3))


def masked(x):
    """Return a map without its upper rows, which are set in place."""
    x = x.clone()
    x[:, :, 0:4] = 0
    return x


ceil, counted = {"ceil_mode": True}, {"ceil_mode": True, "count_include_pad": True}
REPORTS = {
    "pytorch 186080: order of pixel_unshuffle": (lambda: Row(nn.PixelUnshuffle(2), conv(12, 4)), (16, 12)),
    "pytorch 183528: edges of counted windows": (lambda: Row(conv(3, 4), nn.AvgPool2d(3, 2, 1, **counted)), (16, 12)),
    "pytorch 131272: a window that torch drops": (lambda: Row(conv(3, 4), nn.AvgPool2d(3, 3, 1, **ceil)), (16, 14)),
    "onnx 4958: NaN of ceil pools": (lambda: Row(conv(3, 4), nn.MaxPool2d(3, 2, 1, **ceil)), (33, 36)),
    "pytorch 183523: linear to 1 x 1": (lambda: Row(conv(3, 4), resized(1, 1, mode="bilinear"), conv(4, 4)), (16, 12)),
    "onnxruntime 25264: antialias": (
        lambda: Row(conv(3, 4), resized(20, 20, mode="bicubic", antialias=True)),
        (48, 48),
    ),
    "onnxruntime 12498: sums fused with groups": (lambda: Row(conv(3, 8), Biased()), (16, 12)),
    "CycleGAN 32: instance norm": (lambda: Row(UNet(lambda c: nn.InstanceNorm2d(c, affine=True))), (16, 12)),
    "onnx 6561: group norm": (lambda: Row(UNet(lambda c: nn.GroupNorm(4, c))), (16, 12)),
    "ScaleCrafter 2: circular and reflected padding, roll": (
        lambda: Row(conv(3, 4, padding_mode="circular"), conv(4, 4, padding_mode="reflect"), rolled),
        (16, 12),
    ),
    "ultralytics: boxes of bins": (lambda: Row(conv(3, 32, stride=2), boxes), (32, 32)),
}


@pytest.mark.parametrize(("build", "size"), REPORTS.values(), ids=REPORTS.keys())
@pytest.mark.filterwarnings(f"ignore::{PlanWarning.__module__}.{PlanWarning.__name__}")
def test_tiles_give_what_the_module_gives(build, size, tmp_path):
    example = np.random.default_rng(0).standard_normal((1, 3, *size), dtype=np.float32)
    plan = serfer.split(build().eval(), example, tmp_path / "plan", grids=["2x2", "1"], stages=2)
    assert len(plan.stages[0].tiles) == 4


def test_nearest_pixels_that_the_exporter_takes_from_elsewhere_are_refused(tmp_path):
    """onnxruntime 28310: nearest from 26 to 64 takes other pixels than torch."""
    module = Row(conv(3, 4), resized(64, 64, mode="nearest")).eval()
    with pytest.raises(ModelError, match="torch's exporter writes an operator wrongly"):
        serfer.split(module, np.random.default_rng(0).standard_normal((1, 3, 26, 26), dtype=np.float32), tmp_path / "p")


@pytest.mark.weekly
def test_a_resnet_with_group_norm_is_tiled(tmp_path):
    timm = pytest.importorskip("timm")
    example = np.random.default_rng(0).standard_normal((1, 3, 96, 96), dtype=np.float32)
    plan = serfer.split(timm.create_model("resnet50_gn").eval(), example, tmp_path / "plan", grids="2x2", gang="always")
    assert any(len(stage.tiles) == 4 for stage in plan.stages)


@pytest.mark.parametrize("build", [lambda: Row(conv(3, 4), masked), lambda: Row(conv(3, 8), Attention())])
def test_what_moves_images_from_the_first_axis_runs_as_it_is(build, tmp_path):
    example = np.random.default_rng(0).standard_normal((1, 3, 8, 8), dtype=np.float32)
    assert len(serfer.split(build().eval(), example, tmp_path / "plan").stages[-1].tiles) == 1
