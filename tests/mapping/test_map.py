"""`serfer map` on images that fit into memory: its results are the network's on the whole image."""

import numpy as np
import pytest
import rasterio
from PIL import Image

import serfer as package
from serfer.core.errors import IncompleteMapError, TaskFailedError
from serfer.mapping.engine import Spending
from serfer.pipeline.blocking import Pipeline
from tests.mapping.plans import HEIGHT, WIDTH, assert_equal, expected, map_command, network, read
from tests.raster.files import UTM, WHERE, pixels, write

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")


@pytest.mark.exact
def test_a_result_is_the_network_on_the_whole_image_with_its_georeference(report_of, command, tmp_path):
    report = report_of(*command)
    assert (report["windows"], report["computed"], report["resumed"], report["failures"]) == (20, 20, 0, [])
    assert report["cost_usd"] > 0
    assert set(report["window_ms"]) == {"p50", "p90", "p99", "p100"}
    assert_equal(read(tmp_path / "result.tif"), expected(pixels(HEIGHT, WIDTH)))
    with rasterio.open(tmp_path / "result.tif") as dataset:
        assert (dataset.crs, dataset.transform) == (rasterio.CRS.from_string(UTM), WHERE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["image.tif", "result.tif"]


def test_the_python_function_maps_another_size_of_the_same_plan(plan, tmp_path):
    image = write(tmp_path / "image.png", pixels(48, WIDTH), driver="PNG")
    report = package.map(image, plan, tmp_path / "result.npy")
    assert isinstance(report, package.MapReport)
    assert (report.windows, report.result) == (15, str(tmp_path / "result.npy"))
    assert_equal(np.load(tmp_path / "result.npy"), expected(pixels(48, WIDTH)))


@pytest.mark.parametrize(
    ("dtype", "options", "scale"),
    [
        ("uint16", [], 1 / 65535),
        ("uint16", ["--set", "full_scale=10000"], 1 / 10000),
        ("int16", [], 1 / 32767),
        ("float32", ["--set", "full_scale=255"], 1 / 255),
        ("float64", [], 1.0),
        ("uint8", ["--set", "full_scale=128"], 1 / 128),
    ],
)
def test_other_types_are_normalised_to_their_own_range(map_image, plan, tmp_path, dtype, options, scale):
    values = pixels(48, WIDTH, dtype=dtype)
    image = write(tmp_path / "image.tif", values)
    out = tmp_path / "result.npy"
    map_image(image, plan, out, *options)
    assert_equal(np.load(out), expected(values, scale))


def test_bands_are_chosen_and_ordered(serfer, plan, tmp_path):
    values = pixels(48, WIDTH, bands=5)
    image = write(tmp_path / "image.tif", values)
    command = map_command(image, plan, tmp_path / "result.npy")
    serfer(*command).ends(3, "image.tif has 5 bands, and the network takes 3 channels: choose them with --bands")
    assert serfer(*command, "--bands", "4,2,9").code == 3
    assert serfer(*command, "--bands", "4,2").code == 3
    assert serfer(*command, "--bands", "4,2,5").code == 0
    assert_equal(np.load(tmp_path / "result.npy"), expected(values[[3, 1, 4]]))


def test_pixels_without_data_have_none_in_the_result_and_their_windows_are_not_computed(map_image, plan, tmp_path):
    values = np.maximum(pixels(HEIGHT, WIDTH), 1)
    values[:, :40, :50] = 0
    values[0, 60, 60] = 0  # in one band only: a value as any other
    image = write(tmp_path / "image.tif", values, nodata=0, crs=UTM, transform=WHERE)
    out = tmp_path / "result.tif"
    report = map_image(image, plan, out)
    assert (report["empty"], report["computed"]) == (6, 14)
    missing = np.zeros((HEIGHT, WIDTH), bool)
    missing[:40, :50] = True
    result = read(out)
    assert (np.isnan(result) == missing).all()
    wanted = expected(values, missing=missing)
    assert_equal(result[:, ~missing], wanted[:, ~missing])
    with rasterio.open(out) as dataset:
        assert np.isnan(dataset.nodata)
    map_image(image, plan, out, "--no-data=none", "--overwrite")
    assert_equal(read(out), expected(values))


def test_a_window_that_fails_is_listed_and_computed_when_it_is_run_again(
    serfer, report_of, command, tmp_path, monkeypatch
):
    submit, calls = Pipeline.submit, []

    def failing(pipeline, batch, **given):
        calls.append(given["context"].window)
        if len(calls) == 3:
            raise TaskFailedError("the function ran out of memory")
        return submit(pipeline, batch, **given)

    monkeypatch.setattr(Pipeline, "submit", failing)
    done = serfer(*command, "--json").ends(1, "19 of 20 windows are kept in", "run the same command again")
    [failure] = done.report["failures"]
    assert failure["error"] == "the function ran out of memory"
    assert not (tmp_path / "result.tif").exists()
    again = report_of(*command)
    assert (again["resumed"], again["computed"]) == (19, 1)
    assert_equal(read(tmp_path / "result.tif"), expected(pixels(HEIGHT, WIDTH)))


def test_the_error_of_the_python_function_has_the_report(plan, image, tmp_path, monkeypatch):
    def failing(*_, **__):
        raise TaskFailedError("the function ran out of memory")

    monkeypatch.setattr(Pipeline, "submit", failing)
    with pytest.raises(TaskFailedError, match="ran out of memory"):  # after so many in a row
        package.map(image, plan, tmp_path / "result.tif", concurrency=1)
    small = write(tmp_path / "small.tif", pixels(48, WIDTH))
    with pytest.raises(IncompleteMapError) as caught:
        package.map(small, plan, tmp_path / "small-result.tif", concurrency=1)
    assert len(caught.value.report.failures) == 15
    assert caught.value.report.result is None


def test_dollars_end_at_the_ceiling_with_those_in_flight_at_their_predicted_price(
    serfer, report_of, command, tmp_path, monkeypatch
):
    settle = Spending.settle  # a busy machine takes its time, which costs more than predicted
    monkeypatch.setattr(Spending, "settle", lambda spending, predicted, _: settle(spending, predicted, predicted))
    predicted = report_of(*command, "--dry-run")["usd"]
    serfer(*command, "--max-cost-usd", predicted / 2).ends(2, "more than --max-cost-usd")
    assert not [*tmp_path.glob("result.tif.parts/c.*")]
    limited = ("--max-cost-usd", predicted / 20, "--set", "force=true", "--json")
    report = serfer(*command, *limited).ends(1, "run the same command again with more to spend").report
    assert 0 < report["computed"] < 20
    assert report["cost_usd"] <= predicted / 20
    assert report_of(*command)["resumed"] == report["computed"]
    assert_equal(read(tmp_path / "result.tif"), expected(pixels(HEIGHT, WIDTH)))


@pytest.mark.parametrize("more", [("--workers", "local"), ("--set", "concurrency=40")])
def test_local_workers_and_more_windows_in_flight_than_slots_compute_the_same(report_of, command, tmp_path, more):
    report_of(*command, *more)
    assert_equal(read(tmp_path / "result.tif"), expected(pixels(HEIGHT, WIDTH)))


REFUSED = [
    ("map image.tif --out out.tif", 2, "there is nothing to map with: give --plan DIR"),
    ("map image.tif --out out.tif --plan x --network y", 2, "--plan and --network exclude each other"),
    ("map image.tif --out out.tif --plan x --reduce argmax --set random=true", 2, "--reduce and random describe a"),
    ("map image.tif --out out.tif --plan x --set kept_maps=never", 2, "kept_maps describe a network, --network FILE"),
    ("map image.tif --out out.tif --network nowhere.onnx", 3, "nowhere.onnx does not exist"),
    ("map image.tif --out out.tif --network net.pt", 3, "net.pt holds weights"),
    ("map image.tif --out out.tif --network net.onnx --set weights_file=x", 2, "weights_file says where the weights"),
    ("map image.tif --out out.tif --network net.onnx --workers aws", 2, "net.onnx has no functions in AWS: write a"),
    ("map image.tif --out out.tif --network net.onnx --reduce most", 2, "--reduce is argmax, softmax or sigmoid"),
    ("map image.tif --out out.geojson --plan PLAN", 2, "the plan's network gives maps and no boxes"),
    ("map image.tif --out out.zarr --plan PLAN", 2, "serfer.windows gives windows to write into zarr"),
    ("map image.tif --out out.tif --plan PLAN --workers local --set engine=stepfunctions", 2, "use push or poll"),
    ("map other.tif --out out.tif --plan PLAN", 3, "other.tif has 50 x 80 pixels"),
    ("map other.tif --out out.tif --plan PLAN", 3, "--size 50x80"),
    ("map image.tif --out other.tif --plan PLAN", 3, "other.tif exists: name another result"),
    ("map image.tif --out out.tif --plan WHOLE", 3, "this is not a map plan"),
    ("map-plan net.onnx --size any --size 9x9 --out out", 2, "--size any is for images of all sizes: give no other"),
    ("map-plan net.onnx --size any,multiple=8 --set kept_maps=always --out out", 2, "for images of any size keeps no"),
]


@pytest.fixture(scope="module")
def whole_plan(tmp_path_factory):
    (path := tmp_path_factory.mktemp("whole") / "net.onnx").write_bytes(network())
    package.whole_plan(path, np.zeros((1, 3, HEIGHT, WIDTH), np.float32), path.with_name("plan"))
    return path.with_name("plan")


@pytest.mark.usefixtures("image")
@pytest.mark.parametrize(("words", "code", "message"), REFUSED)
def test_wrong_use_is_refused_and_leaves_nothing(serfer, plan, whole_plan, tmp_path, monkeypatch, words, code, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SERFER_CACHE_DIR", str(whole_plan.with_name("cache")))
    write(tmp_path / "other.tif", pixels(50, WIDTH))
    plans = {"PLAN": plan, "WHOLE": whole_plan}
    serfer(*(plans.get(word, word) for word in words.split())).ends(code, message)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["image.tif", "other.tif"]


HOLE = np.zeros((HEIGHT, WIDTH), bool)
HOLE[10:33, 12:41] = True


@pytest.fixture
def mapped(serfer, plan, tmp_path):
    """Map an image: its report, the result, and what was said beside it."""

    def run(image, *options):
        out = tmp_path / "result.tif"
        done = serfer(*map_command(image, plan, out, "--json", *options)).ends(0)
        return done.report, read(out), done.err

    return run


def check(report, result, values, hole=HOLE, scale=1 / 255):
    """The hole and nothing else holds no data, each pixel of it is counted once, and the network saw 0 there."""
    assert report["no_data_pixels"] == hole.sum()
    np.testing.assert_array_equal(np.isnan(result).all(axis=0), hole)
    assert_equal(result[:, ~hole], expected(values, scale, hole)[:, ~hole])


def test_masked_pixels_hold_no_data(mapped, tmp_path):
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
        image = write(tmp_path / "image.tif", values := pixels(HEIGHT, WIDTH), crs=UTM, transform=WHERE)
        with rasterio.open(image, "r+") as dataset:
            dataset.write_mask((~HOLE * 255).astype("uint8"))
    report, result, said = mapped(image)
    check(report, result, values)
    assert "pixels that its mask or palette hides count as without data" in said
    report, result, said = mapped(image, "--no-data", "none", "--overwrite")
    assert_equal(result, expected(values))
    assert report["no_data_pixels"] == 0
    assert "pixels that its mask or palette hides are taken as they are" in said


def test_transparent_pixels_hold_no_data_unless_the_network_takes_their_alpha(mapped, tmp_path):
    values = pixels(HEIGHT, WIDTH, 4)
    values[3] = np.where(HOLE, 0, np.maximum(values[3], 1))
    image = write(tmp_path / "image.tif", values, photometric="RGB", alpha="YES")
    report, result, said = mapped(image, "--bands", "1,2,3")
    check(report, result, values[:3])
    assert "its band 4 is alpha: pixels of alpha 0 count as without data" in said
    report, result, said = mapped(image, "--bands", "4,3,2", "--overwrite")
    assert_equal(result, expected(values[[3, 2, 1]]))
    assert "which the network takes as a channel" in said


def test_a_pixel_may_hold_no_data_where_one_of_its_bands_has_none(mapped, tmp_path):
    values = np.maximum(pixels(HEIGHT, WIDTH), 1)
    values[1, HOLE] = 0
    image = write(tmp_path / "image.tif", values, nodata=0)
    report, result, said = mapped(image)
    assert_equal(result, expected(values))
    assert f"{HOLE.sum():,} pixels have the value for no data in some of the bands alone" in report["notes"][-1]
    assert report["notes"][-1] in said
    check(*mapped(image, "--set", "no_data_bands=any", "--overwrite")[:2], values)


def test_white_is_what_the_bits_of_a_sample_hold(mapped, tmp_path):
    image = write(tmp_path / "image.tif", values := pixels(HEIGHT, WIDTH, 3, "uint16") * 16, nbits=12)
    _, result, said = mapped(image)
    assert_equal(result, expected(values, 1 / 4095))
    assert "4,095 counts as full" in said


def test_pages_are_no_bands_and_no_band_is_offered_three_times_in_their_place(serfer, plan, tmp_path):
    page = Image.fromarray(pixels(HEIGHT, WIDTH, 1)[0])
    page.save(tmp_path / "a.tif", save_all=True, append_images=[page, page])
    done = serfer(*map_command(tmp_path / "a.tif", plan, tmp_path / "b.tif")).ends(
        3, "3 pages, of which the first is read"
    )
    assert "1,1,1" not in done.err


def test_how_many_pixels_hold_no_data_is_said_and_notes_come_before_a_dry_run(serfer, plan, tmp_path):
    values = np.maximum(pixels(HEIGHT, WIDTH), 1)
    values[:, HOLE] = 0
    image = write(tmp_path / "image.tif", values, nodata=0, nbits=7)
    command = map_command(image, plan, tmp_path / "b.tif")
    assert "127 counts as full" in serfer(*command, "--dry-run").err
    assert f"{HOLE.sum():,} pixels of the image ({HOLE.mean():.2%}) count as without data" in serfer(*command).out
