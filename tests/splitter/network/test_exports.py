"""How torch modules are exported: attention by parts, poolings of the whole map as means, sizes as torch has them."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import serfer
from serfer.core.errors import ModelError, PlanWarning
from serfer.core.exactness import TOLERANCE, relative_error
from serfer.splitter.network import source
from serfer.splitter.network.size_guards import mean_pools
from serfer.splitter.plan_dir.check import run_tiles
from tests.exports import run_module
from tests.splitter.windows.test_map_plan import by_windows

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch's exporter, about torch
NO_VIEW = "Cannot view a tensor with shape torch.Size([1, 2]) and strides (1, 1) as a tensor with shape (2,)!"
NO_RANK = "only 4D query, key, and value are supported"


class _Windows(torch.nn.Module):
    """Attention in each of four windows, on an axis of their own, as in Hiera, NesT and Twins."""

    def __init__(self):
        super().__init__()
        self.project = torch.nn.Conv2d(3, 24, 2, 2)
        self.head = torch.nn.Linear(8, 5)

    def forward(self, images):
        maps = self.project(images).reshape(-1, 3, 2, 4, 4, 16).permute(1, 0, 2, 4, 5, 3)
        query, key, value = maps.reshape(3, -1, 2, 4, 16, 4).unbind(0)
        attended = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        return self.head(attended.mean((2, 3)).reshape(-1, 2 * 4))


def test_attention_of_windows_on_an_axis_of_their_own_is_exported(tmp_path):
    torch.manual_seed(0)
    module, images = _Windows().eval(), np.random.default_rng(0).random((2, 3, 16, 16), np.float32)
    plan = serfer.split(module, images, out=tmp_path / "plan")
    assert relative_error(run_tiles(plan, tmp_path / "plan", images), run_module(module, images)) < TOLERANCE


@pytest.mark.parametrize(
    ("options", "heads"),
    [
        ({}, 4),
        ({"scale": 0.3}, 4),
        ({"is_causal": True}, 4),
        ({"attn_mask": torch.tensor([[True, False, True]] * 5)}, 4),
        ({"attn_mask": torch.linspace(-1, 1, 15).reshape(5, 3)}, 4),
        ({"enable_gqa": True}, 2),
    ],
)
def test_the_parts_are_what_torch_computes(options, heads):
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, 5, 8, generator=generator)
    key, value = (torch.randn(2, heads, 3, 8, generator=generator) for _ in range(2))
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, **options)
    assert torch.allclose(source._attention_by_parts(query, key, value, **options), expected, atol=1e-5)


@pytest.mark.parametrize(("error", "tries"), [(NO_VIEW, 2), (NO_RANK, 2), ("another", 1)])
def test_an_export_that_fails_for_its_attention_alone_is_tried_by_parts(monkeypatch, error, tries):
    used = []

    def export(_module, _example):
        used.append(torch.nn.functional.scaled_dot_product_attention)
        raise RuntimeError(error)

    own = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(source, "_as_onnx", export)
    with pytest.raises(ModelError, match="cannot be exported"):
        source._export(torch.nn.Identity(), torch.zeros(1, 3, 4, 4))
    assert used == [own, source._attention_by_parts][:tries]
    assert torch.nn.functional.scaled_dot_product_attention is own


@pytest.mark.parametrize(
    ("condition", "other"),
    [
        (lambda high, _: high % 1_000_003 == 5, (1_000_008, 40)),
        (lambda _, wide: (wide > 1_999_900) & (wide < 1_999_909), (40, 1_999_901)),
        (lambda high, wide: high - wide == 7, (1_234_567, 1_234_560)),
        (lambda high, wide: high * wide == 1_001_000, (1_001, 1_000)),
        (lambda high, wide: (high == 304) & (wide == 500), (304, 500)),
        (lambda high, wide: high == wide, (1_440, 1_441)),
        (lambda high, wide: high == 2 * wide, (80, 40)),
        (lambda high, _: int(high / 3) == 100_000, (300_001, 40)),
        (lambda high, _: high // 7 == 400_000, None),
        (lambda high, wide: (wide % 8 < 8) & (high * wide > 1_000), None),
        (lambda high, _: int(high * 2.0) == high * 2, None),
    ],
)
def test_a_condition_on_the_size_is_known_to_be_the_same_at_all_or_not(condition, other):
    class Sized(nn.Module):
        def forward(self, x):
            return x * (2 if condition(*x.shape[2:]) else 3)

    guards = source._export_for_any_size(Sized(), torch.zeros(1, 1, 40, 40), (1_440, 1_440)).guards
    assert (guards.unproven([np.arange(40.0, 2_000_001)] * 2) is None) == (other is None)
    assert other is None or (condition(*other) != condition(1_440, 1_440) and guards.broken(other))


class Pooled(nn.Module):
    def __init__(self, pool):
        super().__init__()
        self.pool = pool

    def forward(self, x):
        return x - self.pool(x)


WHOLE_MAP = {"aten.mean.dim", "aten.amax.default"}


@pytest.mark.parametrize(
    ("pool", "operators"),
    [
        (lambda x: functional.avg_pool2d(x, x.shape[2:]), {"aten.mean.dim"}),
        (lambda x: functional.avg_pool2d(input=x, kernel_size=(x.shape[2], x.shape[3])), {"aten.mean.dim"}),
        (lambda x: functional.max_pool2d(x, kernel_size=x.shape[-2:]), {"aten.amax.default"}),
        (lambda x: functional.avg_pool2d(x, 3, 1, 1), set()),
        (lambda x: functional.max_pool2d(x, 3, stride=1, padding=1), set()),
    ],
)
def test_a_pooling_of_the_whole_map_is_for_any_size_and_one_of_neighbourhoods_stays(pool, operators):
    free = {2: torch.export.Dim("height", min=4), 3: torch.export.Dim("width", min=4)}
    with mean_pools():
        program = torch.export.export(Pooled(pool), (torch.randn(1, 2, 24, 32),), dynamic_shapes=(free,), strict=False)
    larger = torch.randn(1, 2, 40, 52)
    torch.testing.assert_close(program.module()(larger), larger - pool(larger), rtol=0, atol=1e-6)
    assert {str(node.target) for node in program.graph.nodes if node.op == "call_function"} & WHOLE_MAP == operators


def test_a_map_by_seven_tenths_has_the_rows_that_torch_makes(tmp_path):
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Upsample(scale_factor=0.7), nn.Conv2d(4, 2, 3)).eval()
    batch = np.random.default_rng(0).standard_normal((1, 3, 210, 180), dtype=np.float32)
    serfer.map_plan(net, [(210, 180)], tmp_path / "plan", window=70)
    expected = run_module(net, batch)
    result, count = by_windows(tmp_path / "plan", batch)
    assert (result.shape, count) == (expected.shape, 6)
    assert relative_error(result, expected) <= TOLERANCE


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
    x = x.clone()
    x[:, :, 0:4] = 0
    return x


ceil, counted = {"ceil_mode": True}, {"ceil_mode": True, "count_include_pad": True}
ANTIALIAS = {"mode": "bicubic", "antialias": True}
REPORTS = {
    "pytorch 186080: order of pixel_unshuffle": (lambda: Row(nn.PixelUnshuffle(2), conv(12, 4)), (16, 12)),
    "pytorch 183528: edges of counted windows": (lambda: Row(conv(3, 4), nn.AvgPool2d(3, 2, 1, **counted)), (16, 12)),
    "pytorch 131272: a window that torch drops": (lambda: Row(conv(3, 4), nn.AvgPool2d(3, 3, 1, **ceil)), (16, 14)),
    "onnx 4958: NaN of ceil pools": (lambda: Row(conv(3, 4), nn.MaxPool2d(3, 2, 1, **ceil)), (33, 36)),
    "pytorch 183523: linear to 1 x 1": (lambda: Row(conv(3, 4), resized(1, 1, mode="bilinear"), conv(4, 4)), (16, 12)),
    "onnxruntime 25264: antialias": (lambda: Row(conv(3, 4), resized(20, 20, **ANTIALIAS)), (48, 48)),
    "onnxruntime 12498: sums fused with groups": (lambda: Row(conv(3, 8), Biased()), (16, 12)),
    "ScaleCrafter 2: circular and reflected padding, roll": (
        lambda: Row(conv(3, 4, padding_mode="circular"), conv(4, 4, padding_mode="reflect"), rolled),
        (16, 12),
    ),
    "ultralytics: boxes of bins": (lambda: Row(conv(3, 32, stride=2), boxes), (32, 32)),
}


@pytest.mark.slow
@pytest.mark.parametrize(("build", "size"), REPORTS.values(), ids=REPORTS.keys())
@pytest.mark.filterwarnings(f"ignore::{PlanWarning.__module__}.{PlanWarning.__name__}")
def test_tiles_give_what_the_module_gives(build, size, tmp_path):
    example = np.random.default_rng(0).standard_normal((1, 3, *size), dtype=np.float32)
    plan = serfer.split(build().eval(), example, tmp_path / "plan", grids=["2x2", "1"], stages=2)
    assert len(plan.stages[0].tiles) == 4


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("build", [lambda: Row(conv(3, 4), masked), lambda: Row(conv(3, 8), Attention())])
def test_what_moves_images_from_the_first_axis_runs_as_it_is(build, tmp_path):
    example = np.random.default_rng(0).standard_normal((1, 3, 8, 8), dtype=np.float32)
    assert len(serfer.split(build().eval(), example, tmp_path / "plan").stages[-1].tiles) == 1
