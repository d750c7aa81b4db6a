"""Map plans: windows of an image make the network's result on the whole image, or the network is refused by name."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional

import serfer
from serfer.core.errors import InputError, ModelError, PlanError, UsageError, WrongAnswerError
from serfer.core.exactness import relative_error
from serfer.core.plan import dump_plan, parse_plan, sealed
from serfer.drivers.driver import RequestContext
from serfer.plan_directory import load_plan
from serfer.splitter.windows.window_sessions import WindowSessions
from tests.exports import run_module

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch's exporter, about torch
EXACT = 1e-5


class Unet(nn.Module):
    """Two halvings and back; `enlarge` is how: transposed convolutions, a factor, another map's size, or both."""

    def __init__(self, enlarge="transposed", **attributes):
        super().__init__()
        torch.manual_seed(0)
        self.enlarge, self.attributes = enlarge, attributes
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 8, 3, padding=1)
        self.third = nn.Conv2d(8, 8, 3, padding=2, dilation=2)
        self.up_one, self.up_two = nn.ConvTranspose2d(8, 8, 2, stride=2), nn.ConvTranspose2d(8, 6, 2, stride=2)
        self.narrow = nn.Conv2d(8, 6, 1)
        self.last = nn.Conv2d(12, 4, 3, padding=1)

    def forward(self, image):
        full = self.first(image).relu()
        half = self.second(functional.max_pool2d(full, 2)).relu()
        quarter = self.third(functional.avg_pool2d(half, 2)).relu()
        if self.enlarge == "transposed":
            again = self.up_two(half + self.up_one(quarter))
        else:
            again = self.narrow(self._larger(half + self._larger(quarter, half, "factor"), full, "size"))
        return self.last(torch.cat([full, again], 1))

    def _larger(self, small, like, how):
        to = {"factor": {"scale_factor": 2}, "size": {"size": like.shape[-2:]}}
        each = self.attributes if self.enlarge != "both" else {"mode": {"factor": "nearest", "size": "bicubic"}[how]}
        return functional.interpolate(small, **to.get(self.enlarge, to[how]), **each)


def layers(*modules):
    torch.manual_seed(0)
    return nn.Sequential(*modules).eval()


class Best(nn.Sequential):
    def forward(self, image):
        return super().forward(image).argmax(1)


NETWORKS = {
    "transposed convolutions": Unet,
    "bilinear to a size": lambda: Unet("size", mode="bilinear"),
    "nearest by a factor and bicubic to a size": lambda: Unet("both"),
    "a coarse map": lambda: layers(nn.Conv2d(3, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 5, 3, stride=2, padding=1)),
    "a finer map": lambda: layers(nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.PixelShuffle(2)),
    "padding by reflection": lambda: layers(nn.Conv2d(3, 6, 5, padding=2, padding_mode="reflect"), nn.ReLU()),
    "without padding": lambda: layers(nn.Conv2d(3, 6, 7), nn.ReLU(), nn.Conv2d(6, 2, 5)),
    "the best class": lambda: Best(*layers(nn.Conv2d(3, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1))),
}


def image(height, width, channels=3):
    return np.random.default_rng(height + width).standard_normal((1, channels, height, width), dtype=np.float32)


def by_windows(directory, batch):
    """Run an image through the windows of a plan; return the result, (1, ..., H, W), and how many there were."""
    plan = load_plan(directory)
    windows = plan.windows.of(*batch.shape[2:])
    result = None
    with serfer.open(directory) as pipeline:
        for window in windows:
            part = np.ascontiguousarray(batch[:, :, *window.read.slices])
            context = RequestContext(window=window.tile, statistics=plan.windows.vector(b"", window))
            values = pipeline.submit(part, context=context).result().logits
            if result is None:
                result = np.empty((*values.shape[:-2], windows.height, windows.width), values.dtype)
            result[..., *window.written.slices] = values[..., *window.kept]
    return result, len(windows)


@pytest.mark.exact
@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "bilinear to a size"])
@pytest.mark.parametrize(
    ("size", "window"), [((148, 100), 32), pytest.param((212, 308), 64, marks=pytest.mark.weekly)], ids=str
)
def test_windows_make_the_result_of_the_whole_image(exported, name, size, window, tmp_path):
    """Random networks (test_random_maps.py) have other sizes, windows and modes of resizing."""
    net, file = exported(NETWORKS[name])
    serfer.map_plan(file, [size], tmp_path / "plan", window=window // {"a coarse map": 4}.get(name, 1))
    result, count = by_windows(tmp_path / "plan", image(*size))
    expected = run_module(net, image(*size))
    assert (result.shape, count >= 12) == (expected.shape, True)
    if result.dtype == np.int64:
        assert (result != expected).mean() < 1e-3  # where the two best scores are as good as equal
    else:
        assert relative_error(result, expected) <= EXACT


def check(net, size, directory, window):
    """Compare the map of a module that is planned for images of one size with its own."""
    serfer.map_plan(net.eval(), [size], directory, window=window)
    result, _ = by_windows(directory, image(*size))
    expected = run_module(net, image(*size))
    assert result.shape == expected.shape
    assert relative_error(result, expected) <= EXACT


def test_a_module_is_exported_for_images_of_any_size(tmp_path):
    check(NETWORKS["bilinear to a size"](), (128, 160), tmp_path / "plan", 64)


def test_an_image_of_many_windows_has_nine_kinds(exported, tmp_path):
    plan = serfer.map_plan(exported(Unet)[1], [(90_000, 120_000)], tmp_path / "plan", window=512)
    assert len(plan.stages[0].tiles) == 9
    assert len(plan.windows.of(90_000, 120_000)) == 176 * 235
    assert plan.windows.stride == 4
    assert (tmp_path / "plan" / "plan.json").stat().st_size < 200_000
    assert "windows" in plan.why


class Placed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, image):
        values = self.first(image)
        return values + torch.arange(values.shape[2], dtype=torch.float32)[:, None]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 4, stride=4)

    def forward(self, image):
        values = self.first(image)
        tokens = values.flatten(2).transpose(1, 2)
        mixed = (tokens @ tokens.transpose(1, 2)).softmax(2) @ tokens
        return mixed.transpose(1, 2).reshape(values.shape)


@pytest.mark.exact
@pytest.mark.parametrize(
    ("net", "operator"),
    [
        (Placed, "Add"),
        (Attention, "MatMul|Reshape|Transpose"),
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1)), "ReduceMean|GlobalAveragePool|exported"),
        (lambda: Unet("both"), r"Resize.*multiples"),
    ],
)
def test_a_network_that_looks_at_the_whole_image_is_refused(exported, net, operator, tmp_path):
    with pytest.raises(ModelError, match=operator):
        serfer.map_plan(exported(net)[1], [(1281, 1280)], tmp_path / "plan", window=128)
    assert not (tmp_path / "plan").exists()


def test_a_network_of_the_zoo_is_refused(tmp_path):
    with pytest.raises(ModelError, match="classifies whole images"):
        serfer.map_plan("squeezenet", [(128, 128)], tmp_path / "plan")


@pytest.mark.parametrize(
    ("sizes", "options", "message"),
    [
        ([(9000, 9000)], {"window": 30}, "--window 30 is not a multiple .*: the nearest ones are 28 and 32"),
        ([(9000, 9000)], {"window": 4096, "memory_mb": 512}, "windows of 4096 pixels take about"),
        ([(9000, 9000)], {"window": "large"}, "window is .*large"),
        ([(9000, 9000)], {"window": 0}, "window is at least 1"),
        *((sizes, {}, r"size|pixels a side") for sizes in ([], [(0, 10)], [(10, 3_000_000)])),
    ],
)
def test_windows_and_sizes_that_cannot_be_are_refused(exported, sizes, options, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        serfer.map_plan(exported(Unet)[1], sizes, tmp_path / "plan", **options)


@pytest.fixture(scope="module")
def map_directory(exported, tmp_path_factory):
    place = tmp_path_factory.mktemp("map") / "plan"
    serfer.map_plan(exported(Unet)[1], [(128, 160)], place, window=64)
    return place


def test_a_query_without_a_window_or_with_one_that_the_plan_lacks_is_refused(map_directory, exported, tmp_path):
    with serfer.open(map_directory) as pipeline:
        with pytest.raises(PlanError, match="a map plan, whose queries are windows"):
            pipeline.run(image(128, 160))
        with pytest.raises(InputError, match="no window of kind 99"):
            pipeline.submit(image(128, 160), context=RequestContext(window=99))
        with pytest.raises(InputError, match="this plan takes"):
            pipeline.submit(image(10, 10), context=RequestContext(window=0))
    serfer.split(exported(Unet)[1], image(64, 64), tmp_path / "plan", grids="1")
    with serfer.open(tmp_path / "plan") as pipeline, pytest.raises(InputError, match="not a map plan"):
        pipeline.submit(image(64, 64), context=RequestContext(window=0))


def check_refused(plan, windows):
    with pytest.raises(PlanError, match=r"plan\.json"):
        parse_plan(dump_plan(sealed(replace(plan, windows=windows))))


def _with_ends(windows, *, first, last):
    """Leave out the first window of each row, or let the last one read past the image."""
    axis = windows.widths[0]
    kept = [*axis.windows[first:]]
    kept[-1] = replace(kept[-1], read=replace(kept[-1].read, stop=kept[-1].read.stop + last))
    return replace(windows, widths=(replace(axis, windows=tuple(kept)),))


@pytest.mark.parametrize(
    "change",
    [
        lambda windows: _with_ends(windows, first=1, last=0),
        lambda windows: _with_ends(windows, first=0, last=1),
        lambda windows: replace(windows, heights=()),
        lambda windows: replace(windows, tiles=()),
        lambda windows: replace(windows, tiles=((0, 0), (0, 99))),
        lambda windows: replace(windows, tiles=((0, 1), (3,))),
        lambda windows: replace(windows, stride=0),
    ],
)
def test_windows_that_no_splitter_writes_are_refused(change, map_directory):
    plan = load_plan(map_directory)
    check_refused(plan, change(plan.windows))


class Doubtful(nn.Module):
    """Probabilities that are all near 0, of scores in the thousands behind a gate of the whole image."""

    def __init__(self, size):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 1, 3, padding=1)
        self.shift, self.checked = 0.0, np.random.default_rng(0).standard_normal((1, 3, *size), dtype=np.float32)
        with torch.inference_mode():
            self.shift = float(self._scores(torch.from_numpy(self.checked)).max()) + 7

    def _scores(self, image):
        maps = self.first(image)
        return 5000 * self.last(maps * maps.mean((2, 3), keepdim=True).sigmoid()) - self.shift

    def forward(self, image):
        return self._scores(image).sigmoid()


class TestProbabilitiesNearZero:
    """A detector finds nothing in the random image of the check, where rounding is large relative to what it says."""

    size = (128, 128)

    def test_rounding_before_the_sigmoid_is_no_difference(self, tmp_path):
        network = Doubtful(self.size).eval()
        assert run_module(network, network.checked).max() < 0.001
        serfer.map_plan(network, [self.size], tmp_path / "plan", window=32)

    def test_a_window_with_other_scores_is(self, tmp_path, monkeypatch):
        run = WindowSessions.run
        monkeypatch.setattr(WindowSessions, "run", lambda self, image: [2 * values for values in run(self, image)])
        with pytest.raises(WrongAnswerError, match="differ from the network on the whole image"):
            serfer.map_plan(Doubtful(self.size).eval(), [self.size], tmp_path / "plan", window=32)


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
    def forward(self, x):
        return super().forward(functional.avg_pool2d(x, 3, 1, 1) if max(x.shape[2:]) > 400 else x)


class OnlySmall(nn.Conv2d):
    def forward(self, x):
        y = super().forward(x)
        return y if x.shape[2] <= 256 else y if y.mean() > 0 else -y


def test_a_module_that_looks_at_the_images_size_is_planned_as_it_treats_images_of_that_size(tmp_path):
    check(Branching(), (452, 414), tmp_path / "plan", 96)  # of 192 to 255 pixels an image is small, wider than high


def test_what_a_module_does_to_images_that_no_memory_holds_is_planned(tmp_path):
    size = (91_002, 91_008)  # 99 GB
    plan = serfer.map_plan(Filtering(3, 2, 3, padding=1).eval(), [size], tmp_path / "plan")
    assert "AveragePool" in [each.kind for each in plan.stages[0].operators]
    parts = onnx.load(tmp_path / "plan" / plan.unsplit.path, load_external_data=False)  # which results are compared on
    assert plan.windows.crops is not None
    assert "AveragePool" in [node.op_type for node in parts.graph.node]


def test_what_a_module_does_only_to_large_images_is_refused_by_its_own_reason(tmp_path):
    with pytest.raises(ModelError, match="depends on the values of the image"):
        serfer.map_plan(OnlySmall(3, 2, 3).eval(), [(300, 300)], tmp_path / "plan")


def test_the_check_takes_a_larger_image_where_the_network_does_not_take_a_small_one(tmp_path):
    check(nn.Conv2d(3, 2, 3, dilation=120), (475, 475), tmp_path / "plan", 64)  # 241 pixels: 219 are too few
