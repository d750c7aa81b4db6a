"""A pooling of the whole map is traced as a mean or a maximum, and every other one as it is."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from serfer.splitter.network.whole_pools import whole_pools_as_means


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
