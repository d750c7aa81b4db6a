"""A module whose Python looks at the image's size: a plan is made of the way that images of its own sizes go."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import serfer
from serfer.core.errors import ModelError
from serfer.core.exactness import relative_error
from tests.splitter.windows.test_map_plan import EXACT, by_windows, image, whole

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch's exporter, about torch


class Branching(nn.Module):
    """Pads to patches, filters large images, treats portraits otherwise: common things that depend on the size."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 2, 3, padding=1)
        self.patches, self.back = nn.Conv2d(6, 8, 6, 6), nn.ConvTranspose2d(8, 6, 6, 6)

    def forward(self, x):
        height, width = x.shape[2:]
        if max(height, width) > 400:
            x = functional.avg_pool2d(x, 3, 1, 1)
        if height % 6:
            x = functional.pad(x, (0, 0, 0, 6 - height % 6))
        if width % 6:
            x = functional.pad(x, (0, 6 - width % 6))
        y = self.back(self.patches(self.first(x)).relu())
        if height > width:
            y = y.relu()
        return self.last(y)[:, :, :height, :width]


class Filtering(nn.Conv2d):
    """Filters large images alone."""

    def forward(self, x):
        return super().forward(functional.avg_pool2d(x, 3, 1, 1) if max(x.shape[2:]) > 400 else x)


class OnlySmall(nn.Conv2d):
    def forward(self, x):
        y = super().forward(x)
        return y if x.shape[2] <= 256 else y if y.mean() > 0 else -y


def test_a_module_that_looks_at_the_images_size_is_planned_as_it_treats_images_of_that_size(tmp_path):
    net, size = Branching().eval(), (452, 414)  # of 192 to 255 pixels an image is small, and wider than high
    serfer.map_plan(net, [size], tmp_path / "plan", window=96)
    batch = image(*size)
    got, _ = by_windows(tmp_path / "plan", batch)
    assert got.shape == (1, 2, *size)
    assert relative_error(got, whole(net, batch)) <= EXACT


def test_what_a_module_does_to_images_that_no_memory_holds_is_planned(tmp_path):
    size = (91_002, 91_008)  # 99 GB
    plan = serfer.map_plan(Filtering(3, 2, 3, padding=1).eval(), [size], tmp_path / "plan")
    assert "AveragePool" in [each.kind for each in plan.stages[0].operators]


def test_what_a_module_does_only_to_large_images_is_refused_by_its_own_reason(tmp_path):
    with pytest.raises(ModelError, match="depends on the values of the image"):
        serfer.map_plan(OnlySmall(3, 2, 3).eval(), [(300, 300)], tmp_path / "plan")


def test_the_check_takes_a_larger_image_where_the_network_does_not_take_a_small_one(tmp_path):
    net = nn.Conv2d(3, 2, 3, dilation=120).eval()  # looks at 241 pixels: 219 are too few
    serfer.map_plan(net, [(475, 475)], tmp_path / "plan", window=64)
    batch = image(475, 475)
    got, _ = by_windows(tmp_path / "plan", batch)
    assert relative_error(got, whole(net, batch)) <= EXACT
