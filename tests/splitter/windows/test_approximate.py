"""Windows that are images of their own: each is what the network makes of its pixels, and a sample says how far off."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import serfer
from serfer.core.errors import InputError, ModelError, PlanError, UsageError
from serfer.core.exactness import agreement, relative_error
from serfer.core.plan import Preprocess, dump_plan, parse_plan, sealed
from serfer.plan_directory import load_plan
from serfer.splitter.windows.sample import generated
from tests.raster.files import pixels, write
from tests.splitter.windows.test_map_plan import Aligned, Attention, Gated, Placed, Unet, by_windows, image, whole

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch's exporter, about torch
EXACT = 1e-5
PREPROCESS = Preprocess(
    resize=None, interpolation="bilinear", channels="BGR", scale=1 / 255, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.25)
)


class Pooled(nn.Module):
    """A coarse map beside its average, as in DeepLab: strides of 4, and a result that is enlarged."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.down = nn.Conv2d(3, 8, 5, stride=4, padding=2)
        self.last = nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, batch):
        coarse = self.down(batch).relu()
        mean = functional.adaptive_avg_pool2d(coarse, 1).expand(-1, -1, *coarse.shape[2:])
        result = self.last(torch.cat([coarse, mean], 1))
        return functional.interpolate(result, scale_factor=4, mode="bilinear")


class Pyramid(Pooled):
    """Averages of 3 x 3 parts beside the map, as in PSPNet."""

    def forward(self, batch):
        coarse = self.down(batch).relu()
        parts = functional.adaptive_avg_pool2d(coarse, 3)
        parts = functional.interpolate(parts, size=coarse.shape[2:], mode="bilinear")
        return functional.interpolate(self.last(torch.cat([coarse, parts], 1)), scale_factor=4, mode="bilinear")


class Classes(Pooled):
    def forward(self, batch):
        return super().forward(batch).argmax(1)


class Narrow(Gated):
    """Without padding, so that its result is smaller than the image."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 5)


NETWORKS = {
    "squeeze and excite": Gated,
    "a pooled branch": Pooled,
    "its classes": Classes,
    "a pyramid of pools": Pyramid,
    "attention": Attention,
    "resizing with aligned corners": Aligned,
    "instance norm": lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.InstanceNorm2d(4)),
    "positions": Placed,
    "without padding": Narrow,
}


def difference_on(directory, batch, net):
    """Return how far the plan's windows of an image are from the network on all of it, as the plan measures it."""
    got, _ = by_windows(directory, batch)
    expected = whole(net, batch)
    error = relative_error(got, expected) if expected.dtype == np.float32 else None
    return error, agreement(got, expected) if expected.dtype != np.float32 or expected.shape[1] > 1 else None


def some(values, *daily):
    """The others are run weekly: each takes seconds of torch's exporter."""
    return [value if value in daily else pytest.param(value, marks=pytest.mark.weekly) for value in values]


@pytest.mark.parametrize("name", some(NETWORKS, "squeeze and excite", "its classes"))
def test_the_plan_says_how_far_windows_are_from_the_whole_network_on_a_sample(name, exported, tmp_path):
    net, file = exported(NETWORKS[name])
    plan = serfer.map_plan(file, [(192, 192)], tmp_path / "plan", window=64, approximate=16, name="fields")
    assert plan.model == "fields"
    measured = plan.windows.difference
    assert not plan.windows.exact
    assert measured.sample == "a generated image"
    sample = generated(3, measured.height, measured.width)
    if (measured.height, measured.width) != (192, 192):
        serfer.map_plan(file, [sample.shape[2:]], tmp_path / "plan", window=64, approximate=16)
    error, same = difference_on(tmp_path / "plan", sample, net)
    assert measured.agreement == pytest.approx(same, abs=1e-3)
    if error is not None:
        assert measured.error == pytest.approx(error, rel=1e-2, abs=1e-6)
    assert measured.error is None or 0 <= measured.mean_error <= measured.error
    assert str(measured) in plan.why


def test_where_the_sample_has_one_class_everywhere_the_plan_says_that_nothing_was_measured(tmp_path):
    class OneClass(Classes):
        def __init__(self):
            super().__init__()
            self.last.bias = nn.Parameter(torch.tensor([0.0, 1000.0, 0.0]))

    with pytest.warns(serfer.PlanWarning, match="a generated image.*one class everywhere"):
        plan = serfer.map_plan(OneClass().eval(), [(192, 192)], tmp_path / "plan", window=64, approximate=16)
    assert plan.windows.difference.of_one_class
    assert load_plan(tmp_path / "plan").windows == plan.windows
    assert "nothing is known of the difference" in plan.why
    assert "another class" not in plan.why


@pytest.mark.parametrize("size", some([(203, 318), (192, 320), (64, 401)], (203, 318)))
@pytest.mark.parametrize("name", ["squeeze and excite", "without padding"])
def test_each_window_is_the_networks_answer_to_its_own_pixels(name, size, exported, tmp_path):
    net, file = exported(NETWORKS[name])
    plan = serfer.map_plan(file, [size], tmp_path / "plan", window=48, approximate=16)
    batch = image(*size)
    result, count = by_windows(tmp_path / "plan", batch)
    windows = plan.windows.of(*size)
    assert count == len(windows) > 4
    assert result.shape == whole(net, batch).shape
    for window in windows:
        own = whole(net, np.ascontiguousarray(batch[:, :, *window.read.slices]))
        inside = window.written.within(window.read)
        assert relative_error(result[..., *window.written.slices], own[..., *inside.slices]) <= EXACT


@pytest.mark.parametrize("size", some([(200, 300), (64, 500)], (200, 300)))
def test_every_window_of_an_image_has_as_many_pixels_and_the_overlap_around_what_it_writes(size, exported, tmp_path):
    plan = serfer.map_plan(exported(Gated)[1], [size], tmp_path / "plan", window=48, approximate=16)
    height, width = size
    for window in plan.windows.of(*size):
        assert window.read.rows.size == min(height, 48 + 32)
        assert window.read.cols.size == min(width, 48 + 32)
        for read, written, end in (
            (window.read.rows, window.written.rows, height),
            (window.read.cols, window.written.cols, width),
        ):
            assert read.start <= max(0, written.start - 16)
            assert read.stop >= min(end, written.stop + 16)


def test_a_network_that_looks_at_less_than_the_overlap_makes_its_result_on_the_whole_image(exported, tmp_path):
    (net, file), batch = exported(Unet), image(128, 160)
    plan = serfer.map_plan(file, [(128, 160)], tmp_path / "plan", window=32, approximate=32)
    assert plan.windows.difference.error <= EXACT
    assert relative_error(by_windows(tmp_path / "plan", batch)[0], whole(net, batch)) <= EXACT


def test_an_image_that_is_one_window_is_computed_whole(exported, tmp_path):
    (net, file), batch = exported(Gated), image(60, 72)
    plan = serfer.map_plan(file, [(60, 72)], tmp_path / "plan", window=128, approximate=16)
    result, count = by_windows(tmp_path / "plan", batch)
    assert count == 1
    assert relative_error(result, whole(net, batch)) <= EXACT
    assert plan.windows.difference.error <= EXACT


def test_one_approximate_plan_is_for_images_of_several_sizes(exported, tmp_path):
    serfer.map_plan(exported(Gated)[1], [(130, 160), (60, 203)], tmp_path / "plan", window=48, approximate=16)
    for height in (130, 60):
        for width in (160, 203):
            result, _ = by_windows(tmp_path / "plan", image(height, width))
            assert result.shape[2:] == (height, width)


@pytest.mark.weekly
def test_a_larger_overlap_is_closer_to_the_whole(tmp_path):
    errors = [
        serfer.map_plan(
            Pooled().eval(), [(512, 512)], tmp_path / "plan", window=64, approximate=overlap
        ).windows.difference.mean_error
        for overlap in (8, 128)
    ]
    assert errors[1] < errors[0]


@pytest.mark.weekly
def test_windows_are_chosen_by_price_where_none_are_given(tmp_path):
    plan = serfer.map_plan(Gated().eval(), [(9000, 12000)], tmp_path / "plan", approximate=32)
    assert len(plan.windows.of(9000, 12000)) > 4
    assert len(plan.stages[0].tiles) <= 16
    assert max(plan.windows.difference.height, plan.windows.difference.width) < 9000


@pytest.mark.weekly
def test_chosen_windows_do_not_compute_an_image_twice_because_it_is_little_more_than_one(tmp_path):
    plan = serfer.map_plan(Gated().eval(), [(2100, 2100)], tmp_path / "plan", approximate=16)
    read = sum(window.read.area for window in plan.windows.of(2100, 2100))
    assert read < 1.4 * 2100 * 2100  # windows of 2048 would read 3.9 times as much


def test_the_sample_is_the_middle_of_an_image_as_the_network_takes_it(exported, tmp_path):
    (net, file), values = exported(Pooled), pixels(300, 340, 3, "uint16")
    sample = write(tmp_path / "sample.tif", values)
    plan = serfer.map_plan(
        file, [(900, 900)], tmp_path / "plan", window=64, approximate=16, sample=sample, preprocess=PREPROCESS
    )
    measured = plan.windows.difference
    assert measured.sample == "sample.tif"
    top, left = (300 - measured.height) // 2, (340 - measured.width) // 2
    crop = values[::-1, top : top + measured.height, left : left + measured.width] / 65535
    mean, std = (np.array(each)[:, None, None] for each in (PREPROCESS.mean, PREPROCESS.std))
    batch = np.ascontiguousarray((crop - mean) / std, np.float32)[None]
    serfer.map_plan(file, [batch.shape[2:]], tmp_path / "plan", window=64, approximate=16)
    error, same = difference_on(tmp_path / "plan", batch, net)
    assert measured.error == pytest.approx(error, rel=1e-2)
    assert measured.agreement == pytest.approx(same, abs=1e-3)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"approximate": 0}, UsageError, "from 1 to 8,192, not 0"),
        ({"approximate": True}, UsageError, "from 1 to 8,192, not True"),
        ({"approximate": 10_000}, UsageError, "from 1 to 8,192"),
        ({"sample": "some.tif"}, UsageError, "--sample is what --approximate"),
        ({"approximate": 16, "sample": "missing.tif"}, InputError, "missing.tif does not exist"),
        ({"approximate": 16, "window": 30}, UsageError, "the nearest ones are 28 and 32"),
        ({"approximate": 8000, "window": 4096, "memory_mb": 512}, UsageError, "with 8000 around them take about"),
    ],
)
def test_approximations_that_cannot_be_are_refused(options, error, message, exported, tmp_path):
    with pytest.raises(error, match=re.escape(message)):
        serfer.map_plan(exported(Pooled)[1], [(90_000, 90_000)], tmp_path / "plan", **options)
    assert not (tmp_path / "plan").exists()


@pytest.mark.parametrize(("shape", "message"), [((4, 300, 300), "has 4 bands"), ((3, 60, 300), "has at least")])
def test_a_sample_of_other_bands_or_of_one_window_is_refused(shape, message, exported, tmp_path):
    bands, height, width = shape
    file = write(tmp_path / "sample.tif", pixels(height, width, bands))
    with pytest.raises(InputError, match=message):
        serfer.map_plan(exported(Gated)[1], [(900, 900)], tmp_path / "plan", window=64, approximate=16, sample=file)


def test_an_overlap_that_is_less_than_what_the_network_takes_off_is_refused(tmp_path):
    net = nn.Sequential(nn.Conv2d(3, 4, 31), nn.InstanceNorm2d(4)).eval()
    with pytest.raises(UsageError, match="--approximate 4 is less than what the network takes off"):
        serfer.map_plan(net, [(600, 600)], tmp_path / "plan", window=64, approximate=4)


def test_a_network_whose_result_does_not_grow_with_the_image_is_refused(tmp_path):
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1)).eval()
    with pytest.raises(ModelError, match=r"does not grow with the image|needs outputs that are maps"):
        serfer.map_plan(net, [(600, 600)], tmp_path / "plan", window=64, approximate=16)


@pytest.fixture(scope="module")
def gated(exported, tmp_path_factory):
    directory = tmp_path_factory.mktemp("gated") / "plan"
    serfer.map_plan(exported(Gated)[1], [(128, 128)], directory, window=64, approximate=16)
    return directory


@pytest.mark.parametrize(
    "change",
    [
        lambda windows: replace(windows, difference=None),
        lambda windows: replace(windows, overlap=0),
        lambda windows: replace(windows, difference=replace(windows.difference, error=-1.0)),
        lambda windows: replace(windows, difference=replace(windows.difference, mean_error=None)),
        lambda windows: replace(windows, difference=replace(windows.difference, agreement=1.5)),
    ],
)
def test_a_difference_that_no_splitter_writes_is_refused(change, gated):
    plan = load_plan(gated)
    with pytest.raises(PlanError, match=r"plan\.json has"):
        parse_plan(dump_plan(sealed(replace(plan, windows=change(plan.windows)))))
