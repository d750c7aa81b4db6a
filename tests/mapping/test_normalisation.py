"""Maps of images that are normalised by the whole of themselves, as bioimage.io, CSBDeep and Cellpose do."""

import json
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import serfer as package
from serfer.core.errors import InputError
from serfer.core.plan import Levels, Preprocess
from serfer.core.plan.image_normalisation import ImageNormalisation, ImageStatistics
from serfer.core.plan.pixels import levels_by_image, normalise, normalise_by_image
from serfer.mapping import image_job
from serfer.splitter.network.description import read_preprocess
from tests.mapping.networks import Network, run
from tests.mapping.plans import HEIGHT, WIDTH, assert_equal, make_map_plan, map_command, network, read
from tests.raster.files import pixels, write

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")


PLAIN = (1.0, (0.0,) * 3, (1.0,) * 3)


def preprocess(by_image, scale=1.0, mean=(0.0,) * 3, std=(1.0,) * 3):
    return Preprocess(None, "bilinear", "RGB", scale, mean, std, by_image=by_image)


@pytest.fixture(scope="session")
def by_percentiles(tmp_path_factory):
    directory = tmp_path_factory.mktemp("normalisation") / "plan"
    make_map_plan(directory, rows=(4,), preprocess=preprocess(ImageNormalisation((1, 99.8))))
    return directory


@pytest.fixture
def described(plan, tmp_path):
    """A map plan whose images are preprocessed as a test says."""

    def as_said(given):
        package.describe(shutil.copytree(plan, tmp_path / "plan"), preprocess=given)
        return tmp_path / "plan"

    return as_said


def normalised(image, how, missing=None):
    """The formula of `how` on the whole image (bands, rows, cols), in float64."""
    missing = np.zeros(image.shape[1:], bool) if missing is None else missing
    values = image.astype(np.float64)
    groups = [band[~missing] for band in values] if how.per_channel else [values[:, ~missing]] * len(values)
    if how.percentiles is None:
        statistics = [(each.mean(), each.std() + how.eps) for each in groups]
    else:
        bounds = [np.percentile(each, how.percentiles) for each in groups]
        statistics = [(low, high - low + how.eps) for low, high in bounds]
    offset, span = np.array(statistics).T[:, :, None, None]
    done = (values - offset) / span
    return done.clip(0, 1) if how.clip else done


def on_the_whole(values, missing=None):
    values = values.astype(np.float32)
    if missing is not None:
        values[:, missing] = 0
    return run(network(), values[None])[0]


@pytest.mark.exact
@pytest.mark.parametrize(
    ("how", "dtype", "then"),
    [
        (ImageNormalisation((1, 99.8)), "uint16", PLAIN),
        (ImageNormalisation((3, 99.8), eps=1e-20, clip=True), "uint8", PLAIN),
        (ImageNormalisation((1, 99), per_channel=False), "float32", PLAIN),
        (ImageNormalisation(), "uint8", PLAIN),
        (ImageNormalisation(per_channel=False), "int32", PLAIN),
        (ImageNormalisation((0.1, 100)), "float64", PLAIN),
        (ImageNormalisation((1, 99.8)), "uint8", (2.0, (0.5, 0.4, 0.3), (0.2, 0.3, 0.25))),
    ],
)
def test_a_map_is_the_network_on_the_whole_normalised_image(map_image, described, tmp_path, how, dtype, then):
    plan = described(preprocess(how, *then))
    values = pixels(HEIGHT, WIDTH).astype(np.int64) * np.array([1, 3, 7])[:, None, None] + 40_000 * (dtype != "uint8")
    values = values.astype(dtype)
    image, out = write(tmp_path / "image.tif", values), tmp_path / "result.npy"
    report = map_image(image, plan, out)
    scale, mean, std = (np.array(level).reshape(-1, 1, 1) for level in then)
    assert_equal(np.load(out), on_the_whole((normalised(values, how) * scale - mean) / std))
    assert report["statistics"]["pixels"] == HEIGHT * WIDTH


def test_pixels_without_data_are_left_out_of_the_statistics(map_image, by_percentiles, tmp_path):
    values = np.maximum(pixels(HEIGHT, WIDTH, dtype="uint16"), 1)
    missing = np.zeros((HEIGHT, WIDTH), bool)
    missing[:40, :50] = True
    values[:, missing] = 65_535
    values[1, 50, 60] = 65_535  # in one band alone: a value as any other
    image, out = write(tmp_path / "image.tif", values, nodata=65_535), tmp_path / "result.tif"
    report = map_image(image, by_percentiles, out)
    result, wanted = read(out), on_the_whole(normalised(values, ImageNormalisation((1, 99.8)), missing), missing)
    assert (np.isnan(result).all(axis=0) == missing).all()
    assert_equal(result[:, ~missing], wanted[:, ~missing])
    assert report["statistics"]["pixels"] == (~missing).sum()


def test_an_image_without_any_data_has_a_result_without_any(map_image, by_percentiles, tmp_path):
    image = write(tmp_path / "image.tif", np.zeros((3, HEIGHT, WIDTH), np.uint8), nodata=0)
    out = tmp_path / "result.tif"
    report = map_image(image, by_percentiles, out)
    assert np.isnan(read(out)).all()
    assert report["statistics"]["pixels"] == 0


def test_values_that_are_not_finite_are_refused_by_their_band(serfer, by_percentiles, tmp_path):
    values = pixels(HEIGHT, WIDTH, dtype="float32")
    values[2, 5, 5] = np.nan
    image, out = write(tmp_path / "image.tif", values), tmp_path / "result.tif"
    command = map_command(image, by_percentiles, out)
    serfer(*command).ends(3, "image.tif has values in band 3 that are NaN or infinite")
    assert [path.name for path in tmp_path.iterdir()] == ["image.tif"]
    assert serfer(*command, "--no-data", "nan", "--set", "no_data_bands=any").code == 0


def test_a_full_scale_is_refused_beside_it(serfer, by_percentiles, tmp_path):
    image = write(tmp_path / "image.tif", pixels(HEIGHT, WIDTH))
    command = map_command(image, by_percentiles, tmp_path / "result.tif")
    serfer(*command, "--set", "full_scale=100").ends(2, "leave full_scale out")


def test_a_resumed_map_has_the_statistics_that_it_began_with(
    serfer, report_of, by_percentiles, tmp_path, monkeypatch, before_part
):
    values = pixels(HEIGHT, WIDTH)
    image, out = write(tmp_path / "image.tif", values), tmp_path / "result.tif"
    command = map_command(image, by_percentiles, out, "--set", "concurrency=1")
    before_part(7, KeyboardInterrupt())
    assert serfer(*command).code == 130
    kept = json.loads((tmp_path / "result.tif.parts" / "zarr.json").read_text())["attributes"]["measured"]
    assert kept["pixels"] == HEIGHT * WIDTH

    def again(*_):
        raise AssertionError("the image was measured a second time")

    monkeypatch.setattr(image_job, "measure", again)
    report = report_of(*command)
    assert (report["resumed"], report["statistics"]) == (7, kept)
    assert_equal(read(out), on_the_whole(normalised(values, ImageNormalisation((1, 99.8)))))


def test_each_image_of_a_folder_is_normalised_by_itself(map_image, by_percentiles, tmp_path):
    (tmp_path / "scans").mkdir()
    images = {name: pixels(HEIGHT, WIDTH, seed=seed) // (1 + seed) for seed, name in enumerate(["a", "b"])}
    for name, values in images.items():
        write(tmp_path / "scans" / f"{name}.tif", values)
    out = tmp_path / "results"
    map_image(tmp_path / "scans", by_percentiles, out)
    for name, values in images.items():
        assert_equal(read(out / f"{name}.tif"), on_the_whole(normalised(values, ImageNormalisation((1, 99.8)))))


TOML = """
percentiles = [1, 99.8]
per_channel = false
channels = 2
eps = 1e-20
"""


def test_a_file_of_two_bands_and_a_network_of_onnx_as_numpy_and_onnx_runtime_have_it(serfer, tmp_path):
    net = Network(channels=2)
    net.conv("image", (5, 5), pads=(2, 2, 2, 2), channels=2)
    net.save(tmp_path / "net.onnx")
    (tmp_path / "pixels.toml").write_text(TOML)
    plan, out = tmp_path / "plan", tmp_path / "result.npy"
    serfer(
        *("map-plan", tmp_path / "net.onnx", "--size", "100x90", "--window", 40, "--out", plan),
        *("--preprocess", tmp_path / "pixels.toml"),
    ).ends(0)
    said = serfer("explain", plan).out
    assert "2 bands; 1 and 99.8 percentiles of the whole image to 0 and 1, by all channels together" in said
    values = pixels(100, 90, bands=2, dtype="uint16") * np.array([1, 9], np.uint16)[:, None, None]
    image = write(tmp_path / "image.tif", values)
    done = serfer(*map_command(image, plan, out)).ends(0)
    assert "2 bands" not in done.err
    how = ImageNormalisation((1, 99.8), per_channel=False, eps=1e-20)
    [wanted] = run(tmp_path / "net.onnx", normalised(values, how).astype(np.float32)[None])
    assert_equal(np.load(out), wanted)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("percentiles = [99.8, 1]", "two numbers of 0 to 100, the lower first"),
        ("percentiles = [1]", "percentiles"),
        ("percentiles = [1, 99]\nzero_mean_unit_variance = true", "give one of them"),
        ("clip = true", "clip is for percentiles"),
        ("zero_mean_unit_variance = true\nclip = true", "clip of the preprocessing is for percentiles"),
        ("percentiles = [1, 99]\neps = 0", "eps"),
        ("percentiles = [1, 99]\nchannels = 0", "channels"),
    ],
)
def test_a_description_that_means_nothing_is_refused_by_its_key(serfer, tmp_path, text, said):
    (tmp_path / "pixels.toml").write_text(text)
    serfer(
        *("map-plan", tmp_path / "net.onnx", "--size", "100x90", "--out", tmp_path / "plan"),
        *("--preprocess", tmp_path / "pixels.toml"),
    ).ends(3, "pixels.toml", said)


@pytest.mark.parametrize(("key", "value"), [("percentiles", "[1, 99]"), ("stored_values", "true")])
def test_keys_for_map_plans_are_refused_in_other_plans(tmp_path, key, value):
    (tmp_path / "pixels.toml").write_text(f'{key} = {value}\ncrop = "none"\n')
    with pytest.raises(InputError, match=f"{key} is for map plans"):
        read_preprocess(tmp_path / "pixels.toml")


@given(
    offset=st.lists(st.floats(0, 255), min_size=3, max_size=3),
    span=st.lists(st.floats(0.5, 300), min_size=3, max_size=3),
    scale=st.floats(0.1, 10),
)
def test_levels_of_bytes_do_what_the_formula_does(offset, span, scale):
    known, how = ImageStatistics(1, tuple(offset), tuple(span)), ImageNormalisation((1, 99))
    then = Levels(scale, (0.5, 0.4, 0.3), (0.2, 0.3, 0.25))
    values = np.arange(256, dtype=np.uint8).repeat(3).reshape(256, 1, 3)
    exact = normalise_by_image(values.transpose(2, 0, 1), known, how, then)
    [found] = normalise(values[None], levels_by_image(known, how, then))
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-6 * np.abs(exact).max())


def test_clipping_and_other_bands_than_colours_have_no_levels():
    known, plain = ImageStatistics(1, (1.0,), (2.0,)), Levels(1.0, (0.0,) * 4, (1.0,) * 4)
    assert levels_by_image(known, ImageNormalisation((1, 99)), plain) is None
    assert levels_by_image(known, ImageNormalisation((1, 99), clip=True), Levels(1.0, (0.0,), (1.0,))) is None


def test_stored_values_reach_the_network_whatever_the_full_scale_of_their_type(serfer, plan, tmp_path):
    values = pixels(HEIGHT, WIDTH).astype(np.uint16) * 100
    levels = tmp_path / "pixels.toml"
    levels.write_text("stored_values = true\nmean = [9000, 8000, 7000]\nstd = [3000, 4000, 5000]\n")
    described = shutil.copytree(plan, tmp_path / "plan")
    package.describe(described, preprocess=read_preprocess(levels, resized=False))
    command = ("map", write(tmp_path / "image.tif", values), "--plan", described, "--out", tmp_path / "out.tif")
    serfer(*command, "--workers", "inprocess").ends(0)
    mean, std = np.array([9000, 8000, 7000]), np.array([3000, 4000, 5000])
    assert_equal(read(tmp_path / "out.tif"), on_the_whole((values - mean[:, None, None]) / std[:, None, None]))
    serfer(*command, "--set", "full_scale=4095", "--overwrite").ends(2, "leave full_scale out")
