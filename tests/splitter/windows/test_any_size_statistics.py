"""Plans for images of any size whose networks look at the whole image: passes whose windows own each element once."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import serfer
from serfer.core.errors import InputError, PlanError
from serfer.core.plan import dump_plan, parse_plan, sealed
from serfer.core.statistics_sum import told
from serfer.plan_directory import load_plan
from tests.splitter.windows.test_any_size import image
from tests.splitter.windows.test_random_maps import by_windows, compared

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch's exporter, about torch


class Gated(nn.Module):
    """Of stride 2, with a norm over the whole image, and gates that follow from its mean, maximum, minimum and sum."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.InstanceNorm2d(4, affine=True)
        self.gate, self.last = nn.Conv2d(16, 4, 1), nn.Conv2d(4, 2, 3, padding=1)

    def forward(self, x):
        x = functional.gelu(self.norm(self.first(x)))
        least = -functional.adaptive_max_pool2d(-x, 1)
        pooled = x.mean((2, 3), keepdim=True), functional.adaptive_max_pool2d(x, 1), least, x.sum((2, 3), keepdim=True)
        return self.last(x * torch.sigmoid(self.gate(torch.cat([*pooled[:3], pooled[3] / 1e4], 1))))


def assert_maps(plan, net, *sizes):
    for size in sizes:
        with torch.inference_mode():
            expected = net(torch.from_numpy(image(*size))).numpy()
        assert not compared(by_windows(plan, image(*size)), expected), size


@pytest.fixture(scope="module")
def gated(tmp_path_factory):
    """A network that looks at the whole image in two passes, and its plan."""
    place, net = tmp_path_factory.mktemp("gated") / "plan", Gated().eval()
    serfer.map_plan(net, "any", place, window=16, statistics="exact")
    return place, net


def test_passes_add_up_the_statistics_of_images_of_any_size(gated):
    plan, net = gated
    rng = np.random.default_rng(0)
    sizes = [(39, 39), (40, 103), (104, 105), *rng.integers(40, 300, (3, 2)).tolist()]
    assert_maps(plan, net, *map(tuple, sizes))


def test_each_unit_of_an_image_of_any_size_is_owned_by_one_window_of_a_pass(gated):
    passes = load_plan(gated[0]).windows.passes

    @settings(deadline=None)
    @given(st.integers(39, 1_000), st.integers(39, 1_000))
    def check(height, width):
        for one in passes:
            windows = one.of(height, width)
            owned = np.zeros((windows.height, windows.width), int)
            for window in windows:
                owned[window.written.slices] += 1
                rows, cols = np.frombuffer(told(bytes(16), window), np.float32)[-2:]
                assert (window.made.rows.start + rows, window.made.cols.start + cols) == (
                    window.written.rows.start,
                    window.written.cols.start,
                )
            assert (owned == 1).all()

    check()


def test_a_plan_of_passes_refuses_an_image_that_is_too_small(gated):
    with pytest.raises(
        InputError, match="takes heights and widths of 39 pixels or more: make a plan with --size 30x40"
    ):
        load_plan(gated[0]).windows.of(30, 40)


def _other_unit(one):
    return replace(one, rules=None)


def _longer(one):
    side = one.rules.sides[-1]
    end = replace(side.rows.ends[0], least=side.rows.ends[0].least + side.rows.unit)
    side = replace(side, rows=replace(side.rows, ends=(end, *side.rows.ends[1:])))
    return replace(one, rules=replace(one.rules, sides=(*one.rules.sides[:-1], side)))


@pytest.mark.parametrize("change", [_other_unit, _longer, lambda one: replace(one, rules=replace(one.rules, sides=()))])
def test_a_pass_over_other_sizes_than_the_map_is_refused(change, gated):
    plan = load_plan(gated[0])
    first, *others = plan.windows.passes
    windows = replace(plan.windows, passes=(change(first), *others))
    with pytest.raises(PlanError, match=r"plan\.json"):
        parse_plan(dump_plan(sealed(replace(plan, windows=windows))))
