"""`serfer bench maps`: a large image, and a page: how it is made, boxes, and the windows of SAHI and MONAI."""

import json
import os
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import rasterio
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.errors import UnavailableError
from serfer_bench.mapping.command import measure, results
from serfer_bench.mapping.engines import _maps
from serfer_bench.mapping.images import normalised, strip, write_image
from serfer_bench.mapping.page import read, write_page
from serfer_bench.mapping.page_ways import PREPROCESS, blended, sliced, starts
from serfer_bench.mapping.runs import MapRun
from serfer_bench.mapping.text_boxes import fates, merged, text_boxes
from tests.bench.running import run
from tests.package_networks import RAPIDOCR, unpacked


def test_the_generated_image_is_the_same_however_large_it_is(tmp_path):
    write_image(tmp_path / "a.tif", (600, 128))
    with rasterio.open(tmp_path / "a.tif") as dataset:
        assert (dataset.read()[:, :512] == strip(0, 512, 128)).all()
        assert dataset.crs is not None


@pytest.mark.weekly
def test_a_small_image_is_mapped_beside_its_multiply_accumulates(tmp_path):
    options = {"width": 4, "scores": True, "rounds": 1, "sample": 4}
    maps = measure((608, 800), [64, 80], tmp_path, progress=lambda _: None, **options)
    assert [each.window for each in maps] == [64, 80]
    assert all(each.driver_bytes > each.overlap > 0 for each in maps)
    assert all(each.processor_ratio > 1 for each in maps), "the map computes what is timed alone, and more"
    assert "Windows of 80" in results(maps).text()


def test_engines_without_their_packages_are_named(monkeypatch):
    monkeypatch.setattr("serfer_bench.mapping.engines.find_spec", lambda _: None)
    with pytest.raises(UnavailableError, match="install distributed ray"):
        run("bench", "maps", "engines", "--side", 128)


def test_maps_of_engines_are_compared_beyond_their_starts():
    starts = {name: MapRun({}, 4.0, 2.0, 0, 0, 0) for name in ("serfer map", "ray")}
    own, other = MapRun({"windows": 9}, 14.0, 12.0, 7, 0, 0), MapRun({}, 19.0, 14.0, 8, 0, 0)
    _, row = _maps(512, starts, [{"serfer map": own, "ray": other}])
    assert (row.ratio, row.processor_ratio, row.driver_bytes, row.windows) == (1.5, 1.2, 8, 9)


SIZE = (640, 480)


def test_the_page_is_the_same_each_time_and_has_ink_within_its_margins(tmp_path):
    for name in ("page.tif", "again.tif"):
        write_page(tmp_path / name, SIZE)
    pixels = read(tmp_path / "page.tif")
    assert (pixels.shape, pixels.dtype) == ((3, *SIZE), np.uint8)
    assert (read(tmp_path / "again.tif") == pixels).all()
    dark = pixels.max(axis=0) < 120
    assert 0.02 < dark.mean() < 0.4
    assert dark[:, 20:-20].sum() == dark.sum(), "no line is cut at the page's sides"


def test_boxes_surround_text_alone():
    values = np.zeros((200, 300), np.float32)
    values[50:70, 100:180] = 0.9  # a box of 21 x 81 pixels when widened, enlarged by 1.6 * 21 * 81 / (2 * 102)
    values[100:102, 20:21] = 0.9  # narrow
    values[150:170, 200:280] = 0.4  # text, but with a mean below 0.5
    values[0:10, 290:300] = 1.0  # in a corner: clipped to the map
    corner, box = text_boxes(values)
    assert box[:4].tolist() == [50 - 13, 100 - 13, 71 + 13, 181 + 13]
    assert box[4] == pytest.approx(0.9 * 20 * 80 / (21 * 81), rel=1e-4)
    assert corner[:4].tolist() == [0, 290 - 4, 11 + 4, 300]
    nothing = text_boxes(np.zeros((64, 64), np.float32))
    assert merged(nothing).shape == nothing.shape == (0, 5)
    assert fates(nothing, nothing).of == ()


def box(top, left, bottom, right, score=0.9):
    return [top, left, bottom, right, score]


def boxes(*many):
    return np.array(many, np.float32).reshape(-1, 5)


def test_boxes_of_overlapping_windows_merge_as_in_sahi():
    """What sahi 0.12.8 returns for the same boxes: GreedyNMMPostprocess(0.5, "IOS")."""
    line, its_end, next_line = box(0, 0, 40, 400, 0.8), box(2, 300, 38, 700, 0.7), box(60, 0, 100, 400, 0.6)
    inside, best = box(5, 20, 35, 60, 0.5), box(0, 200, 40, 500, 0.95)
    found = merged(boxes(line, its_end, next_line, inside, best))
    assert found[:, :4].tolist() == [[0, 0, 40, 700], [60, 0, 100, 400], [5, 20, 35, 60]]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (2, 1, 0)])
def test_boxes_as_good_merge_as_in_sahi_in_any_order(order):
    """What sahi 0.12.8 returns: of equal scores, the smallest x comes first, then y."""
    three = [box(0, 80, 100, 180, 0.9), box(0, 0, 100, 100, 0.9), box(0, 40, 100, 140, 0.9)]
    found = merged(boxes(*(three[index] for index in order)))
    assert found[:, :4].tolist() == [[0, 0, 100, 140], [0, 80, 100, 180]]


def test_a_line_is_the_same_cut_doubled_or_lost_and_boxes_elsewhere_are_added():
    reference = boxes(*(box(top, 0, top + 40, 1000) for top in (0, 100, 200, 300, 400)))
    found = boxes(
        box(0, 2, 40, 1000),  # the same
        box(100, 0, 140, 600),  # cut
        *(box(200, 0, 240, 550), box(200, 450, 240, 1000)),  # doubled
        box(320, 0, 420, 100),  # as much of the fourth as of the fifth, and not more than half of it
        box(600, 0, 640, 500),  # where there is nothing
    )
    ends = fates(found, reference)
    assert ends.of == ("same", "cut", "doubled", "lost", "lost")
    assert ends.added == 2


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 900)), unique_by=lambda one: one[0], max_size=20))
def test_all_boxes_are_the_same_beside_themselves(lines):
    reference = boxes(*(box(100 * number, 0, 100 * number + 60, wide) for number, wide in lines))
    ends = fates(reference, reference)
    assert ends.count("same") == len(lines)
    assert ends.added == 0


@given(st.integers(1, 3000), st.integers(1, 1024), st.floats(0, 0.9))
def test_windows_cover_an_axis_and_none_leaves_it(size, side, overlap):
    step = max(1, int(side * (1 - overlap)))
    found = starts(size, side, step)
    assert found[0] == 0 == min(found)
    assert max(found) + min(side, size) == size
    assert all(0 < after - before <= step for before, after in pairwise(found))


def darkness(image):
    """A network whose result depends on the window's mean, as gates do."""
    values = image.astype(np.float32).mean(axis=0)
    return values - values.mean()


def test_blended_maps_are_the_weighted_means_of_their_windows():
    image = np.random.default_rng(0).integers(0, 255, (3, 40, 100)).astype(np.uint8)
    constant, bell = blended(darkness, image, 64, ("constant", "gaussian"))
    first, last = darkness(image[:, :, :64]), darkness(image[:, :, 36:])
    assert np.allclose(constant[:, :36], first[:, :36], atol=1e-4)
    assert np.allclose(constant[:, 36:64], (first[:, 36:] + last[:, :28]) / 2, atol=1e-4)
    weight = np.exp(-0.5 * ((np.arange(64) - 31.5) / 8) ** 2).clip(1e-3)
    left, right = weight[36:], weight[:28]
    assert np.allclose(bell[20, 36:64], (left * first[20, 36:] + right * last[20, :28]) / (left + right), atol=0.05)


def test_a_line_across_slices_is_one_box_only_where_they_share_half_of_it_and_pixels_are_the_plans():
    image = np.zeros((3, 64, 200), np.uint8)
    image[:, 20:40, 10:190] = 255
    found = sliced(lambda pixels: pixels[0] / np.float32(255), image, 64)
    assert len(found) > 1, "windows of 64 share 12 pixels"
    assert found[:, 1].min() == 0
    whole = sliced(lambda pixels: pixels[0] / np.float32(255), image, 256)
    assert len(whole) == 1
    image = np.random.default_rng(0).integers(0, 255, (3, 8, 8)).astype(np.uint8)
    wanted = ((image[::-1] * np.float32(PREPROCESS.scale) - 0.5) / 0.5)[None]
    assert PREPROCESS.channels == "BGR"
    assert np.allclose(normalised(image, PREPROCESS), wanted, atol=1e-6)


@pytest.mark.slow
def test_serfer_finds_the_boxes_of_the_whole_page_and_fixed_windows_do_not(tmp_path):
    network = unpacked(RAPIDOCR, tmp_path) / "rapidocr_onnxruntime" / "models" / "ch_PP-OCRv4_det_infer.onnx"
    words = [sys.executable, "-m", "serfer", "bench", "maps", "page", network]
    options = ["--rows", "1024", "--cols", "768", "--side", "320", "--draw", tmp_path / "page.png", "--json"]
    done = subprocess.run([*words, *options], capture_output=True, text=True, timeout=900, check=True, env=os.environ)
    shown = json.loads(done.stdout.splitlines()[0])
    whole, exact, *others = shown["ways"]
    assert whole["boxes"] == whole["same"] == exact["same"] == exact["boxes"] > 5
    assert exact["difference"] <= 1e-4
    assert exact["across"] == exact["cut"] == exact["doubled"] == exact["lost"] == exact["added"] == 0
    assert all(way["cut"] + way["doubled"] + way["lost"] > 0 for way in others)
    assert shown["killed"]["resumed"] == shown["killed"]["kept"] > 0
    assert (tmp_path / "page.png").stat().st_size > 10_000
