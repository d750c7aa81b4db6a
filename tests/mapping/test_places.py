"""Where a result lies on its image, and which of its pixels hold no data: by what the network's pixels read."""

import warnings

import numpy as np
import pytest
import rasterio
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

import serfer as package
from serfer.core.errors import InputError, SerferError
from serfer.core.geometry import Rect, Span
from serfer.core.plan.windows import AxisWindow, AxisWindows
from serfer.mapping.engine import Spending
from serfer.mapping.no_data import Gaps, Place, Sampling, missing_written
from tests.mapping.networks import Network, rows_read, run
from tests.raster.files import UTM, WHERE, write


def cropped(top, left, bottom=0, right=0):
    net = Network(channels=2)
    net.crop(net.conv("image", channels=2), top, left, bottom, right)
    return net


def valid(kernel, stride, pad=0):
    net = Network(channels=2)
    net.conv("image", (kernel, kernel), (stride, stride), (pad,) * 4, channels=2)
    return net


def lopsided():
    net = Network(channels=2)
    net.crop(net.conv("image", (3, 1), (2, 1), channels=2), 3, 5)
    return net


def disagreeing(crop=8):
    """A stem of stride 2 that pads both ends, enlarged again, beside a skip: their middles are half a pixel apart."""
    net = Network(channels=2)
    stem = net.enlarge(net.conv("image", (3, 3), (2, 2), (1, 1, 1, 1), channels=2), 2)
    both = net.add(net.conv("image", channels=2), stem)
    if crop:
        net.crop(both, crop, crop)
    return net


def mapped(net, size, folder, values, window=None, mask=None, **profile):
    path = net.save(folder / "net.onnx")
    package.map_plan(path, [size], folder / "plan", window=window or "auto", channels=net.channels)
    image = write(folder / "image.tif", values, **{"crs": UTM, "transform": WHERE, **profile})
    if mask is not None:
        with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True), rasterio.open(image, "r+") as dataset:
            dataset.write_mask((~mask * 255).astype("uint8"))
    report = package.map(image, folder / "plan", folder / "out.tif", workers="inprocess", overwrite=True, restart=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        with rasterio.open(folder / "out.tif") as result:
            return report, result.read(), result.transform, result.crs


def test_a_map_plan_says_what_an_image_costs_and_needs_no_resizing(serfer, tmp_path):
    (tmp_path / "pixels.toml").write_text('channels = "RGB"\nmean = [0.5, 0.5, 0.5]')
    net = Network(channels=3)
    net.conv("image", (3, 3), channels=3)
    path = net.save(tmp_path / "net.onnx")
    described = ("--preprocess", tmp_path / "pixels.toml", "--set", "window=512")
    command = ("map-plan", path, "--out", tmp_path / "plan", *described)
    done = serfer(*command, "--size", "1000x1000", "--size", "10001x10000").ends(0)
    assert "an image of 1,000 x 1,000 pixels: 4 windows, $" in done.out
    assert "of images with more than 100,000,000 pixels, interlaced PNG and progressive JPEG are refused" in done.err
    assert len(done.out.splitlines()) == 3


@pytest.mark.parametrize(
    ("net", "size", "start", "step"),
    [
        (cropped(40, 60), (200, 200), (40, 60), (1, 1)),
        (cropped(0, 0, 50, 0), (200, 200), (0, 0), (1, 1)),
        (valid(96, 32), (411, 411), (32, 32), (32, 32)),
        (valid(64, 8), (207, 206), (28, 28), (8, 8)),
        (valid(16, 16), (175, 175), (0, 0), (16, 16)),
        (valid(3, 2), (201, 200), (0.5, 0.5), (2, 2)),
        (valid(3, 2, pad=1), (201, 200), (0, 0), (2, 2)),
        (lopsided(), (200, 200), (6.5, 5), (2, 1)),
        (disagreeing(crop=0), (200, 200), (0, 0), (1, 1)),
    ],
    ids=["crop", "crop after", "k96 s32", "k64 s8", "patches", "k3 s2", "k3 s2 p1", "lopsided", "stem and skip"],
)
def test_a_result_lies_in_the_middle_of_what_it_reads(net, size, start, step, tmp_path):
    values = np.random.default_rng(0).uniform(1, 2, (2, *size)).astype(np.float32)
    _, _, transform, _ = mapped(net, size, tmp_path, values, nodata=-1)
    expected = WHERE @ rasterio.Affine.translation(start[1], start[0]) @ rasterio.Affine.scale(step[1], step[0])
    assert transform.almost_equals(expected)


def test_an_image_that_is_smaller_than_the_networks_stride_has_a_map(tmp_path):
    net = Network(channels=2)
    net.conv(net.conv("image", (12, 12), (12, 12), (0,) * 4, channels=2), (5, 5), (12, 12))
    values = np.random.default_rng(0).uniform(1, 2, (2, 64, 64)).astype(np.float32)
    _, result, _, _ = mapped(net, (64, 64), tmp_path, values)
    assert result.shape[1:] == (1, 1)
    np.testing.assert_allclose(result, run(tmp_path / "net.onnx", values[None])[0], rtol=1e-5)


def test_branches_that_are_off_from_one_another_leave_a_cropped_result_without_a_georeference(tmp_path):
    values = np.random.default_rng(0).uniform(1, 2, (2, 200, 200)).astype(np.float32)
    report, result, transform, crs = mapped(disagreeing(), (200, 200), tmp_path, values)
    assert (transform, crs) == (rasterio.Affine.identity(), None)
    assert "no georeference: where the result lies on its image has no one answer" in " ".join(report.notes)
    np.testing.assert_allclose(result, run(tmp_path / "net.onnx", values[None])[0], rtol=1e-5)
    with pytest.raises(InputError, match="--no-data none"):
        mapped(disagreeing(), (200, 200), tmp_path, values, nodata=-1)


def expected_missing(missing, start, step, result):
    """Which pixels of a result have no data: all that they cover, by the definition in docs/how-to/map.md."""
    empty = np.zeros(result, bool)
    for row, col in np.ndindex(result):
        spans = zip(start, step, (row, col), missing.shape, strict=True)
        (top, bottom), (left, right) = (
            (np.clip(np.floor(first + at * each), 0, size - 1), np.ceil(first + (at + 1) * each))
            for first, each, at, size in spans
        )
        empty[row, col] = missing[int(top) : int(max(top + 1, bottom)), int(left) : int(max(left + 1, right))].all()
    return empty


@st.composite
def chains(draw):
    """Networks of one branch: convolutions, pools, crops and enlargements, each with other rows than columns."""
    net, source = Network(), "image"
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["conv", "pool", "crop", "enlarge"]))
        pair = lambda low, high: (draw(st.integers(low, high)), draw(st.integers(low, high)))  # noqa: E731 - short
        if kind == "conv":
            source = net.conv(source, kernel := pair(1, 6), pair(1, 3), (*(k // 2 for k in kernel), 0, 0))
        elif kind == "pool":
            source = net.pool(source, pair(1, 3), pair(1, 2))
        elif kind == "crop":
            source = net.crop(source, *pair(0, 9), *pair(0, 9))
        else:
            source = net.enlarge(source, 2, draw(st.sampled_from(["nearest", "linear"])))
    return net


def check_against_probes(net, size, window, folder, rng, *, masked):
    """Map an image with holes; compare its place and its pixels without data with what images of one row show."""
    path = net.save(folder / "net.onnx")
    missing = rng.random((max(1, size[0] // 12), max(1, size[1] // 12))) < 0.5
    missing = np.kron(missing, np.ones((12, 12), bool))
    missing = np.pad(missing, [(0, each - have) for each, have in zip(size, missing.shape, strict=True)])
    values = rng.uniform(1, 2, (1, *size)).astype(np.float32)
    values[:, missing] = 1 if masked else -9
    said = {"mask": missing} if masked else {"nodata": -9}
    try:
        _, result, transform, _ = mapped(net, size, folder, values, window, **said)
    except SerferError as refused:
        return str(refused)
    whole = run(path, np.where(missing, 0, values)[None])[0]
    assert result.shape == whole.shape
    place = ~WHERE @ transform
    start, step = (place.f, place.c), (place.e, place.a)
    for axis in (0, 1):
        read = rows_read(path, *size, axis=axis)
        inner = [row for row, (first, stop) in enumerate(read) if first > 0 and stop < size[axis]]
        middles = {round(sum(read[row]) / 2 - (row + 0.5) * step[axis], 6) for row in inner}
        covers = -step[axis] < size[axis] - len(read) * step[axis] <= step[axis]  # one short: a fraction's rounding
        if len(inner) > 1 and len(middles) == 1 and not covers:  # one row may begin at the edge of what a slice left
            assert start[axis] == pytest.approx(middles.pop())
    empty = np.isnan(result[0])
    np.testing.assert_array_equal(empty, expected_missing(missing, start, step, empty.shape))
    np.testing.assert_allclose(result[0][~empty], whole[0][~empty], rtol=1e-4)
    return ""


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], phases=[Phase.generate])
@given(net=chains(), data=st.data())
def test_places_and_missing_pixels_of_random_networks_are_those_of_their_receptive_fields(net, data, tmp_path_factory):
    size = data.draw(st.integers(60, 110)), data.draw(st.integers(60, 110))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**31)))
    window = data.draw(st.sampled_from([None, 12, 24]))
    masked = data.draw(st.booleans())
    refused = check_against_probes(net, size, window, tmp_path_factory.mktemp("net"), rng, masked=masked)
    event(f"refused: {refused[:60]}" if refused else "exact")
    assert not refused or "multiple of the network's stride" in refused


@pytest.mark.parametrize(
    ("usd", "steps", "spent"),
    [
        (4.0, ["reserve", "reserve", "full", 1.0, "reserve"], 1.0),  # what is in flight counts
        (1.0, ["reserve", 4.0, "reserve", "full"], 4.0),  # dearer than predicted: those in flight are dearer too
        (9.0, ["reserve", "release", "reserve", None, "full"], 9.0),  # failed counts as predicted, not sent does not
    ],
)
def test_spending_is_reserved_within_the_ceiling(usd, steps, spent):
    spending = Spending(10.0)
    for step in steps:
        if step in ("reserve", "full"):
            assert spending.reserve(usd) == (step == "reserve")
        elif step == "release":
            spending.release(usd)
        else:
            spending.settle(usd, step)
    assert spending.spent == spent


@given(st.lists(st.tuples(st.floats(0.01, 2), st.floats(0, 1)), max_size=60), st.floats(0.1, 20))
def test_no_ceiling_is_passed_by_windows_that_cost_no_more_than_predicted(windows, ceiling):
    spending = Spending(ceiling)
    for predicted, share in windows:
        if spending.reserve(predicted):
            spending.settle(predicted, predicted * share)
    assert spending.spent <= ceiling + 1e-9


@given(st.data())
def test_a_written_pixel_is_missing_where_all_that_it_covers_is(data):
    step = data.draw(st.sampled_from([0.5, 1.0, 2.0, 4.0]))
    result = data.draw(st.integers(2, 12)), data.draw(st.integers(2, 12))
    height, width = (int(np.ceil(each * step)) for each in result)
    missing = np.array(data.draw(st.lists(st.booleans(), min_size=height * width, max_size=height * width)))
    missing = missing.reshape(height, width)
    place = Place(Sampling(0.0, step), Sampling(0.0, step))
    whole = missing_written(missing, Rect.whole(height, width), Rect.whole(*result), place)
    for row in range(result[0]):
        for col in range(result[1]):
            top, left = int(row * step), int(col * step)
            bottom, right = int(np.ceil((row + 1) * step)), int(np.ceil((col + 1) * step))
            assert whole[row, col] == missing[top:bottom, left:right].all()
    half = result[0] // 2
    lower = Rect(Span(half, result[0]), Span(0, result[1]))
    read = Rect(Span(int(half * step), height), Span(0, width))
    np.testing.assert_array_equal(missing_written(missing[read.rows.start :], read, lower, place), whole[half:])


def test_a_result_lies_where_the_plan_says():
    windows = (AxisWindow(0, Span(0, 101), Span(0, 51)),)
    assert Sampling.of(AxisWindows(101, 51, windows, start=-0.5, step=2.0)) == Sampling(-0.5, 2.0)
    assert Sampling.of(AxisWindows(101, 51, windows, step=2.0)) is None


@pytest.mark.parametrize("no_data", [0.0, float("nan")])
def test_pixels_are_missing_where_none_of_the_networks_bands_holds_data_or_one_does_not(no_data):
    pixels = np.full((3, 2, 2), 5.0, np.float32)
    pixels[:2, 0, 1] = no_data
    pixels[0, 1, 1] = no_data
    missing, partly = Gaps((0, 1), (no_data, no_data)).missing(pixels, None)
    assert missing.tolist() == [[False, True], [False, False]]
    assert partly.tolist() == [[False, False], [False, True]]
    missing, partly = Gaps((0, 1), (no_data, no_data), any_band=True).missing(pixels, None)
    assert (missing.tolist(), partly) == ([[False, True], [False, True]], None)
    assert not Gaps((0, 1, 2), (no_data,) * 3).missing(pixels, None)[0].any()
    assert not Gaps((0, 1), (None, None)).possible
