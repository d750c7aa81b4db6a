"""Plans with the statistics of a sample: what they say that these change."""

import json
from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save

import serfer as package
from serfer.core.errors import PlanError, UsageError
from serfer.core.plan import Foreground
from serfer.core.plan.windows_validation import check_windows
from serfer.plan_directory import load_plan
from tests.raster.files import write

SIZE = 128
SAMPLE = 520
STARTS = (2, 262)
"""Where parts of 256 pixels of such a sample start, in the middle of its quarters."""


def write_network(path, channels=1):
    """A network of `channels` equal weights that multiplies the sum of channels by the mean of each."""
    weight = numpy_helper.from_array(np.ones((channels, channels, 1, 1), np.float32), "weight")
    nodes = [
        helper.make_node("Conv", ["image", "weight"], ["sum"], kernel_shape=[1, 1]),
        helper.make_node("GlobalAveragePool", ["image"], ["mean"]),
        helper.make_node("Mul", ["sum", "mean"], ["map"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", channels, f"{name}h", f"{name}w"])
        for name in ("image", "map")
    ]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], [weight])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def sample_image(channels):
    """An image that is brighter to its right, so that both halves of its parts differ in their means."""
    slope = np.linspace(0.5, 2, SAMPLE, dtype=np.float32)
    noise = np.random.default_rng(0).uniform(0, 1, (channels, SAMPLE, SAMPLE)).astype(np.float32)
    return noise * slope * (1 + np.arange(channels, dtype=np.float32)[:, None, None])


def both_maps(image):
    """The maps (parts, channels, rows, cols) of half of the sample's parts, by their own means and by the others'."""
    parts = [image[:, top : top + 256, left : left + 256] for top in STARTS for left in STARTS]
    means = [np.mean(half, axis=(0, 2, 3))[:, None, None] for half in (parts[::2], parts[1::2])]
    sums = np.stack([part.sum(0, keepdims=True) for part in parts[1::2]])
    return sums * means[1], sums * means[0]


def planned(serfer, tmp_path, channels, *given):
    file = write_network(tmp_path / "net.onnx", channels)
    sample = write(tmp_path / "sample.tif", sample_image(channels))
    command = ("map-plan", file, "--size", f"{SIZE}x{SIZE}", "--out", tmp_path / "plan", "--channels", channels)
    return serfer(*command, "--statistics", "sample", "--sample", sample, *given)


def iou(one, other):
    return (one & other).sum() / (one | other).sum()


def test_a_threshold_measures_what_crosses_it_and_the_iou_of_what_is_above(serfer, tmp_path):
    made = planned(serfer, tmp_path, 1, "--threshold", 0.6)
    assert made.code == 0, made.err
    exact, other = both_maps(sample_image(1))
    above = [values > 0.6 for values in (exact, other)]
    assert 0.05 < (above[0] != above[1]).mean() < 0.5, "the test says something"
    found = load_plan(tmp_path / "plan").windows.difference.foreground
    assert found.threshold == 0.6
    assert found.other_side == pytest.approx((above[0] != above[1]).mean(), abs=1e-4)
    assert found.iou == pytest.approx([iou(*above)], abs=1e-4)
    assert f"{found.other_side:.2%} of values are on the other side of 0.6 (IoU {found.iou[0]:.3f})" in made.out
    image = write(tmp_path / "image.tif", sample_image(1)[:, :SIZE, :SIZE])
    done = serfer("map", image, "--plan", tmp_path / "plan", "--out", tmp_path / "out.tif", "--dry-run", "--json")
    assert "on the other side of 0.6" in json.loads(done.out)["approximation"]


def test_each_channel_has_an_iou_of_its_own(serfer, tmp_path):
    assert planned(serfer, tmp_path, 3, "--threshold", 9).code == 0
    exact, other = both_maps(sample_image(3))
    found = load_plan(tmp_path / "plan").windows.difference.foreground
    expected = [iou(exact[:, channel] > 9, other[:, channel] > 9) for channel in range(3)]
    assert found.iou == pytest.approx(expected, abs=1e-4)
    assert f"mean IoU {np.mean(expected):.3f} of 3 channels, the least {min(expected):.3f}" in str(found)


def test_each_class_has_an_iou_and_one_that_is_nowhere_has_none(serfer, tmp_path):
    assert planned(serfer, tmp_path, 3, "--reduce", "argmax").code == 0
    difference = load_plan(tmp_path / "plan").windows.difference
    assert difference.foreground == Foreground(None, None, (None, None, 1.0)), "the last channel is the largest"
    assert str(difference).endswith("0.00% of pixels have another class, and IoU 1.000")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"threshold": 0.3}, "give --statistics sample, too"),
        ({"threshold": float("nan"), "statistics": "sample"}, "--threshold is a number"),
        ({"threshold": 0.3, "statistics": "sample", "reduce": "argmax"}, "of which the IoU of each is measured"),
    ],
)
def test_a_threshold_that_nothing_is_measured_by_is_refused(tmp_path, given, why):
    file = write_network(tmp_path / "net.onnx", 3)
    with pytest.raises(UsageError, match=why):
        package.map_plan(file, [(SIZE, SIZE)], tmp_path / "plan", **given)
    assert not (tmp_path / "plan").exists()


def test_a_plan_whose_foreground_cannot_have_been_measured_is_refused(serfer, tmp_path):
    assert planned(serfer, tmp_path, 1, "--threshold", 0.6).code == 0
    plan = load_plan(tmp_path / "plan")
    known = plan.windows.difference
    for wrong in ({"iou": (1.5,)}, {"other_side": None}, {"threshold": float("nan")}):
        changed = replace(known, foreground=replace(known.foreground, **wrong))
        with pytest.raises(PlanError, match="cannot have been measured"):
            check_windows(plan, replace(plan.windows, difference=changed))
    doubled = replace(known.look, mean=known.look.mean * 2, deviation=known.look.deviation * 2)
    doubled = replace(doubled, texture=tuple(each * 2 for each in doubled.texture))
    with pytest.raises(PlanError, match="cannot have been measured"):  # of more channels than images have
        check_windows(plan, replace(plan.windows, difference=replace(known, look=doubled)))


def test_a_sample_is_normalised_by_the_whole_of_it_as_maps_are(serfer, tmp_path):
    """The plan's statistic is the mean of what percentiles of the whole sample make of its parts."""
    levels = tmp_path / "pixels.toml"
    levels.write_text("percentiles = [1, 99.8]\nchannels = 1\n")
    made = planned(serfer, tmp_path, 1, "--preprocess", levels)
    assert made.code == 0, made.err
    image = sample_image(1).astype(np.float64)
    low, high = np.percentile(image, (1, 99.8))
    parts = [image[:, top : top + 256, left : left + 256] for top in STARTS for left in STARTS]
    expected = (np.mean(parts) - low) / (high - low + 1e-6)
    assert load_plan(tmp_path / "plan").windows.known == pytest.approx([expected], rel=1e-5)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda image: image, ""),
        (lambda image: image * 1.05, ""),
        (lambda image: image + 2, " deviations higher. Values may differ"),
        (lambda image: image * 0.1, "in channel 1 are 0.1 times as large"),
        (lambda image: np.sort(image, axis=2), "differences at 1 px in channel 1 are 0.0"),
    ],
)
def test_an_image_that_is_unlike_the_sample_is_a_warning_and_one_that_is_like_it_is_none(
    serfer, tmp_path, change, what
):
    assert planned(serfer, tmp_path, 1, "--size", "520x520").code == 0
    image = write(tmp_path / "image.tif", np.ascontiguousarray(change(sample_image(1)), np.float32))
    command = ("map", image, "--plan", tmp_path / "plan", "--out", tmp_path / "out.tif", "--workers", "inprocess")
    done = serfer(*command, "--json")
    assert done.code == 0, done.err
    unlike = json.loads(done.out)["unlike_sample"]
    assert what in unlike
    assert bool(what) == bool(unlike) == ("unlike the sample that the plan has its statistics from" in done.err)


def test_parts_without_data_say_nothing_of_likeness(serfer, tmp_path):
    assert planned(serfer, tmp_path, 1, "--size", "520x520").code == 0
    image = sample_image(1)
    image[:, :300] = -9
    image[:, 300:310, ::100] = -9
    write(tmp_path / "image.tif", image, nodata=-9)
    command = ("map", tmp_path / "image.tif", "--plan", tmp_path / "plan", "--out", tmp_path / "out.tif")
    done = serfer(*command, "--workers", "inprocess", "--json")
    assert done.code == 0, done.err
    assert not json.loads(done.out)["unlike_sample"]
