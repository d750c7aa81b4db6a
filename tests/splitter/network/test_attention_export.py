"""Attention that torch fuses is exported by its parts, where the exporter cannot follow a reshape of its result.

timm's test_maxvit is such a network (tests/study/planner/test_networks.py).
"""

import numpy as np
import pytest
import torch

import serfer
from serfer.core.errors import ModelError
from serfer.core.exactness import TOLERANCE, relative_error
from serfer.splitter.network import source
from serfer.splitter.plan_dir.check import run_tiles

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
