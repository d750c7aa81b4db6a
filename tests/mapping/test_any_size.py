"""`serfer map-plan --size any` and `serfer map` of a folder whose images have sizes of their own."""

import shutil

import numpy as np
import pytest
from PIL import Image

from serfer.core.plan.window_plan import priced_query
from serfer.plan_directory import load_plan
from tests.mapping.plans import PREPROCESS, assert_equal, expected, map_command, network, read
from tests.raster.files import pixels, write
from tests.study.sim.worlds import TOML as SCENARIO

TOML = f"mean = {[*PREPROCESS.mean]}\nstd = {[*PREPROCESS.std]}\n"
SIZES = {"a.tif": (61, 97), "b.png": (75, 80), "in/c.tif": (133, 70)}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    (path := tmp_path_factory.mktemp("network") / "net.onnx").write_bytes(network())
    return path


@pytest.fixture
def any_plan(serfer, file, tmp_path):
    (tmp_path / "pixels.toml").write_text(TOML)
    options = ("--size", "any", "--set", "window=32", "--preprocess", tmp_path / "pixels.toml")
    done = serfer("map-plan", file, *options, "--out", tmp_path / "plan").ends(0)
    return tmp_path / "plan", done.out


def test_a_folder_of_images_of_any_size_is_mapped_by_one_plan(serfer, any_plan, tmp_path):
    plan, said = any_plan
    assert "for images of any size: heights and widths of 36 pixels or more" in said
    scans, values = tmp_path / "scans", {}
    (scans / "in").mkdir(parents=True)
    for name, size in SIZES.items():
        values[name] = pixels(*size)
        write(scans / name, values[name], driver="PNG" if name.endswith("png") else "GTiff")
    write(scans / "small.tif", pixels(20, 97))
    command = map_command(scans, plan, tmp_path / "results")
    serfer(*command).ends(
        1,
        "small.tif has 20 x 97 pixels, and this plan takes heights and widths of 36 pixels or more: ",
        "make a plan with --size 20x97",
    )
    assert (tmp_path / "results" / "retry.txt").read_text() == f"{scans / 'small.tif'}\n"
    for name, image in values.items():
        assert_equal(read((tmp_path / "results" / name).with_suffix(".tif")), expected(image))


def test_pixels_without_data_have_none_in_windows_that_are_cut_to_what_they_write(map_image, any_plan, tmp_path):
    values = np.maximum(pixels(75, 97), 1)
    values[:, 40:, 50:] = 0
    image = write(tmp_path / "image.tif", values, nodata=0)
    out = tmp_path / "result.tif"
    report = map_image(image, any_plan[0], out)
    assert report["no_data_pixels"] == 35 * 47
    missing = np.zeros((75, 97), bool)
    missing[40:, 50:] = True
    result = read(out)
    assert (np.isnan(result) == missing).all()
    assert_equal(result[:, ~missing], expected(values, missing=missing)[:, ~missing])


def test_other_commands_show_a_plan_for_any_size(serfer, any_plan):
    explained = serfer("explain", any_plan[0]).ends(0)
    assert "Images of any size have windows by rules: heights and widths of 36 pixels or more." in explained.out


def test_what_is_priced_is_the_commonest_window_and_its_own_share_of_the_work(plan):
    whole = load_plan(plan)
    [stage] = priced_query(whole).stages
    [tile] = stage.tiles
    assert whole.stages[0].tiles.index(tile) == whole.windows.first[1].tile, "three of the first image's 15"
    assert 1 < stage.inflation < 2


def test_explain_and_cost_are_of_one_window(serfer, plan, tmp_path):
    done = serfer("explain", plan, "--picture", tmp_path / "plan.svg").ends(0)
    assert (tmp_path / "plan.svg").exists()
    [_, after] = done.out.split("the commonest window:\n")
    header = after.splitlines()[0].split()
    assert "work" in header
    assert not {"halo", "grid"} & {*header}
    assert "1 task " in after
    assert "9 tasks" not in done.out
    done = serfer("cost", plan, "--json").ends(0)
    assert [stage["tasks"] for stage in done.report["query"]["stages"]] == [1]


@pytest.mark.exact
@pytest.mark.parametrize(
    "command",
    [
        ("explain", "PLAN", "--pareto"),
        ("verify", "PLAN"),
        ("study", "cluster-profile", "PLAN", "--out", "SCENARIO"),
        ("serve", "--plan", "PLAN"),
        ("serve", "--drivers", "2", "--plan", "PLAN"),
        ("serve", "--drivers", "2", "--plan", "named=PLAN"),
        ("study", "simulate", "poisson:rate=1,hours=1", "--scenario", "SCENARIO", "--plan", "PLAN"),
    ],
)
def test_commands_whose_queries_are_whole_images_refuse_a_map_plan(serfer, plan, command, tmp_path):
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    names = {"PLAN": plan, "SCENARIO": tmp_path / "scenario.toml", "named=PLAN": f"named={plan}"}
    serfer(*(names.get(word, word) for word in command)).ends(3, "is a map plan", "serfer map")


def test_a_map_plan_that_was_described_again_scales_pixels_by_its_new_levels(serfer, map_image, plan, tmp_path):
    """An image's map is that of its negative by the levels of the negative."""
    described, before = shutil.copytree(plan, tmp_path / "plan"), load_plan(plan)
    levels = before.preprocess.levels
    mean = ", ".join(str(value - 1) for value in levels.mean)
    (tmp_path / "negative.toml").write_text(f"scale = {-levels.scale}\nmean = [{mean}]\nstd = {list(levels.std)}")
    assert serfer("describe", described, "--preprocess", tmp_path / "negative.toml").code == 0
    assert load_plan(described).digest == before.digest
    pixels = np.random.default_rng(0).integers(0, 256, (48, 80, 3), dtype=np.uint8)
    results = []
    for name, values, used in (("image", pixels, described), ("negative", 255 - pixels, plan)):
        Image.fromarray(values).save(tmp_path / f"{name}.png")
        result = tmp_path / f"{name}.npy"
        map_image(tmp_path / f"{name}.png", used, result)
        results.append(np.load(result))
    assert np.abs(results[0] - results[1]).max() < 1e-5 * np.ptp(results[1])
