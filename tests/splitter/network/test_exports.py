"""How torch modules are exported: attention by parts, poolings of the whole map as means, sizes as torch has them."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import serfer
from serfer.core.errors import ModelError
from serfer.core.exactness import TOLERANCE, relative_error
from serfer.splitter.network import source
from serfer.splitter.network.whole_pools import whole_pools_as_means
from serfer.splitter.plan_dir.check import run_tiles
from tests.splitter.windows.test_map_plan import by_windows

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
    with torch.no_grad():
        expected = module(torch.from_numpy(images)).numpy()
    assert relative_error(run_tiles(plan, tmp_path / "plan", images), expected) < TOLERANCE


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


class Pooled(nn.Module):
    def __init__(self, pool):
        super().__init__()
        self.pool = pool

    def forward(self, x):
        return x - self.pool(x)


def operators(pool):
    x = torch.randn(1, 2, 24, 32)
    free = {2: torch.export.Dim("height", min=4), 3: torch.export.Dim("width", min=4)}
    with whole_pools_as_means():
        program = torch.export.export(Pooled(pool), (x,), dynamic_shapes=(free,), strict=False)
    larger = torch.randn(1, 2, 40, 52)
    torch.testing.assert_close(program.module()(larger), larger - pool(larger), rtol=0, atol=1e-6)
    return {str(node.target) for node in program.graph.nodes if node.op == "call_function"}


@pytest.mark.parametrize(
    ("pool", "operator"),
    [
        (lambda x: functional.avg_pool2d(x, x.shape[2:]), "aten.mean.dim"),
        (lambda x: functional.avg_pool2d(input=x, kernel_size=(x.shape[2], x.shape[3])), "aten.mean.dim"),
        (lambda x: functional.max_pool2d(x, kernel_size=x.shape[-2:]), "aten.amax.default"),
    ],
)
def test_a_pooling_of_the_whole_map_is_for_any_size(pool, operator):
    assert operator in operators(pool)


@pytest.mark.parametrize(
    "pool",
    [
        lambda x: functional.avg_pool2d(x, 3, 1, 1),
        lambda x: functional.max_pool2d(x, 3, stride=1, padding=1),
    ],
)
def test_a_pooling_of_neighbourhoods_stays(pool):
    assert not operators(pool) & {"aten.mean.dim", "aten.amax.default"}


pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch's exporter, about torch


class Resized(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 2, 3, padding=1)

    def forward(self, x):
        y = functional.interpolate(self.first(x), scale_factor=(0.7, 1.3), mode="bilinear")
        return self.last(functional.interpolate(y, scale_factor=0.7))


def test_a_module_that_resizes_by_seven_tenths_is_split_with_the_rows_that_torch_makes(tmp_path):
    net, batch = Resized().eval(), np.random.default_rng(0).standard_normal((1, 3, 210, 180), dtype=np.float32)
    plan = serfer.split(net, batch, tmp_path / "plan", grids=(2, 2))
    with torch.inference_mode():
        expected = net(torch.from_numpy(batch)).numpy()
    assert plan.output_tensors[0].dims == expected.shape[1:]


def test_a_map_by_seven_tenths_has_the_rows_that_torch_makes(tmp_path):
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Upsample(scale_factor=0.7), nn.Conv2d(4, 2, 3)).eval()
    batch = np.random.default_rng(0).standard_normal((1, 3, 210, 180), dtype=np.float32)
    serfer.map_plan(net, [(210, 180)], tmp_path / "plan", window=70)
    with torch.inference_mode():
        expected = net(torch.from_numpy(batch)).numpy()
    result, count = by_windows(tmp_path / "plan", batch)
    assert (result.shape, count) == (expected.shape, 6)
    assert relative_error(result, expected) <= TOLERANCE
