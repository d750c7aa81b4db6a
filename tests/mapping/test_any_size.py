"""`serfer map-plan --size any` and `serfer map` of a folder whose images have sizes of their own."""

import json

import numpy as np
import pytest

from tests.mapping.plans import PREPROCESS, network
from tests.mapping.whole import assert_equal, expected, read
from tests.raster.files import pixels, write

TOML = f"mean = {[*PREPROCESS.mean]}\nstd = {[*PREPROCESS.std]}\n"
SIZES = {"a.tif": (61, 97), "b.png": (75, 80), "in/c.tif": (133, 70)}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    (path := tmp_path_factory.mktemp("network") / "net.onnx").write_bytes(network())
    return path


@pytest.fixture
def any_plan(serfer, file, tmp_path):
    """The plan that the command makes, and what it printed."""
    (tmp_path / "pixels.toml").write_text(TOML)
    options = ("--size", "any", "--set", "window=32", "--preprocess", tmp_path / "pixels.toml")
    done = serfer("map-plan", file, *options, "--out", tmp_path / "plan")
    assert done.code == 0, done.err
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
    command = ("map", scans, "--plan", plan, "--out", tmp_path / "results", "--workers", "inprocess")
    done = serfer(*command)
    assert done.code == 1
    assert "small.tif has 20 x 97 pixels, and this plan takes heights and widths of 36 pixels or more: " in done.err
    assert "make a plan with --size 20x97" in done.err
    assert (tmp_path / "results" / "retry.txt").read_text() == f"{scans / 'small.tif'}\n"
    for name, image in values.items():
        assert_equal(read((tmp_path / "results" / name).with_suffix(".tif")), expected(image))


def test_pixels_without_data_have_none_in_windows_that_are_cut_to_what_they_write(serfer, any_plan, tmp_path):
    values = np.maximum(pixels(75, 97), 1)
    values[:, 40:, 50:] = 0
    image = write(tmp_path / "image.tif", values, nodata=0)
    out = tmp_path / "result.tif"
    done = serfer("map", image, "--plan", any_plan[0], "--out", out, "--workers", "inprocess", "--json")
    report = json.loads(done.out)
    assert report["no_data_pixels"] == 35 * 47
    missing = np.zeros((75, 97), bool)
    missing[40:, 50:] = True
    result = read(out)
    assert (np.isnan(result) == missing).all()
    assert_equal(result[:, ~missing], expected(values, missing=missing)[:, ~missing])


def test_any_beside_a_size_is_refused(serfer, file, tmp_path):
    done = serfer("map-plan", file, "--size", "any", "--size", "100x100", "--out", tmp_path / "plan")
    assert done.code == 2
    assert "--size any is for images of all sizes: give no other --size with it" in done.err


def test_other_commands_show_a_plan_for_any_size(serfer, any_plan):
    explained = serfer("explain", any_plan[0])
    assert explained.code == 0, explained.err
    assert "Images of any size have windows by rules: heights and widths of 36 pixels or more." in explained.out
