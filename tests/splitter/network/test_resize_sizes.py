"""Networks that resize by factors whose products with the image's size are rounded have the rows that torch makes."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import serfer
from serfer.core.exactness import TOLERANCE, relative_error
from tests.splitter.windows.test_map_plan import by_windows

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
