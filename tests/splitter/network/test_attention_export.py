"""Attention that torch fuses is exported by its parts, where the exporter cannot follow a reshape of its result.

timm's test_maxvit is such a network (tests/bench/test_networks.py).
"""

import pytest
import torch

from serfer.core.errors import ModelError
from splitter.network import source

NO_VIEW = "Cannot view a tensor with shape torch.Size([1, 2]) and strides (1, 1) as a tensor with shape (2,)!"


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


@pytest.mark.parametrize(("error", "tries"), [(NO_VIEW, 2), ("another", 1)])
def test_an_export_that_fails_for_a_view_alone_is_tried_by_parts(monkeypatch, error, tries):
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
