import math
import subprocess
import sys
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from serfer.control.alternatives import choices
from serfer.core.errors import InputError, PlanError, UsageError
from serfer.core.geometry import Rect, Span
from serfer.core.plan import IMAGE, Alternative, Cell, ImageLimits, Input, Padding, Preprocess, Shape
from serfer.pictures import SUFFIXES, draw_plan, picture_pixels, text_picture
from serfer.pictures.anatomy import Area, halo, middle_tile, scaled, tensors, traced, view
from serfer.pictures.plan_figure import plan_figure
from serfer.splitter.split import split
from tests.core.plans import small_plan
from tests.splitter.models import Net

ROOT = Path(__file__).parents[2]
SIGNATURES = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
NONE = Padding(0, 0, 0, 0)
IMAGE_SHAPE, FIRST, SECOND = Shape(3, 64, 64, flat=False), Shape(8, 32, 32, flat=False), Shape(8, 16, 16, flat=False)


@cache
def chain(grid="2x2"):
    """Two stages of maps, the first on `grid`, the second on 2x2, a vector on four columns, and a single task."""
    net = Net(3, 64, 64)
    first = net.op("Relu", net.conv("x", 3, 8, [7, 7], pads=[3] * 4, strides=[2, 2]))
    second = net.op("Relu", net.conv(first, 8, 8, [3, 3], pads=[1] * 4, strides=[2, 2]))
    third = net.linear(net.flat(second), SECOND.elements, 64)
    with TemporaryDirectory() as folder:
        path = net.save(Path(folder), net.linear(third, 64, 10))
        options = {"grids": [grid, "2x2", "col4", "1"], "cuts": [first, second, third]}
        return split(path, out=Path(folder) / "plan", **options).stages


def make_plan(stages, model="small", channels="RGB"):
    preprocess = Preprocess(72, "bilinear", channels, 1 / 255, (0.5,) * 3, (0.5,) * 3)
    image = {"input": IMAGE_SHAPE, "preprocess": preprocess, "output": stages[-1].outputs[0]}
    return replace(small_plan(), model=model, stages=tuple(stages), alternatives=(), **image)


def branched():
    """The first stage hands on two tensors; the second of them is read by the last stage only."""
    first, second, third, last = chain()
    both = [
        replace(tile, outputs=tile.outputs * 2, cells=(*tile.cells, Cell(1, tile.outputs[0]))) for tile in first.tiles
    ]
    wide = replace(first, outputs=(FIRST, FIRST), tiles=tuple(both))
    [tile] = last.tiles
    tile = replace(tile, inputs=(*tile.inputs, FIRST.whole), padding=(NONE, NONE))
    joined = replace(last, inputs=(*last.inputs, Input(0, 1, FIRST)), tiles=(tile,))
    return [wide, second, third, joined]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_picture_has_the_format_of_its_suffix_and_is_the_same_twice(tmp_path, suffix):
    plan, out = make_plan(chain()), tmp_path / f"picture{suffix}"
    draw_plan(plan, out)
    first = out.read_bytes()
    assert first.startswith(SIGNATURES[suffix])
    draw_plan(plan, out)
    assert out.read_bytes() == first
    assert [path.name for path in tmp_path.iterdir()] == [out.name]
    draw_plan(make_plan(chain(), model="網路 $x^2 \\frac{ $ \u202e"), out)
    assert out.stat().st_size > 10_000, "formula signs are drawn as text"
    untiled = make_plan([replace(chain()[-1], inputs=(Input(IMAGE, IMAGE, IMAGE_SHAPE),))])
    draw_plan(untiled, out)
    assert "stage 0" in text_picture(untiled)


def test_unwritable_file_is_named_and_nothing_is_left(tmp_path):
    plan = make_plan(chain())
    with pytest.raises(InputError, match=r"missing/x\.png"):
        draw_plan(plan, tmp_path / "missing" / "x.png")
    (tmp_path / "taken.png").mkdir()
    with pytest.raises(InputError, match=r"taken\.png"):
        draw_plan(plan, tmp_path / "taken.png")
    with pytest.raises(UsageError, match=r"\.png, \.svg, \.pdf"):
        draw_plan(plan, tmp_path / "picture.jpeg")
    assert [path.name for path in tmp_path.iterdir()] == ["taken.png"]


def test_image_is_drawn_as_preprocessed(tmp_path):
    plan = make_plan(chain())
    pixels = picture_pixels(plan, ROOT / "examples" / "images" / "chelsea.png", ImageLimits())
    assert pixels.shape == (64, 64, 3)
    swapped = make_plan(chain(), channels="BGR")
    assert np.array_equal(picture_pixels(swapped, ROOT / "examples" / "images" / "chelsea.png", ImageLimits()), pixels)
    draw_plan(plan, tmp_path / "image.png", pixels)
    draw_plan(plan, tmp_path / "gradient.png")
    draw_plan(plan, tmp_path / "grey.png", pixels[..., :1])
    assert len({(tmp_path / name).read_bytes() for name in ("image.png", "gradient.png", "grey.png")}) == 3


def texts_of(figure):
    return [text for axes in figure.axes for text in axes.texts]


def test_every_stage_cut_and_tile_is_in_the_picture():
    figure = plan_figure(make_plan(chain()), None)
    joined = "\n".join(text.get_text() for text in texts_of(figure))
    for wanted in ("stage 0  ·  2x2", "stage 2  ·  col4", "8x32x32", "2 operators, Conv to Relu", "10 values, softmax"):
        assert wanted in joined
    labels = "\n".join(axes.get_xlabel() for axes in figure.axes)
    assert "computes 16x16 of the 32x32 map" in labels
    assert "reads 34x34 of the image (64x64)" in labels
    assert "reads 16x16 of stage 0 (32x32)" in labels


@pytest.mark.parametrize("stages", [chain, branched])
def test_everything_lies_on_the_page_and_no_texts_of_the_network_overlap(stages):
    figure = plan_figure(make_plan(stages()), None)
    figure.canvas.draw()
    page, texts = figure.bbox, [text.get_window_extent() for text in figure.axes[0].texts if text.get_text()]
    assert all(page.x0 <= box.x0 <= box.x1 <= page.x1 and page.y0 <= box.y0 <= box.y1 <= page.y1 for box in texts)
    assert not any(first.overlaps(second) for first, second in combinations(texts, 2))


def test_importing_the_command_line_does_not_import_matplotlib():
    modules = "serfer.cli.explain, serfer_bench.study.cli.simulate, serfer_bench.cli"
    code = f"import sys, {modules}; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_tile_of_the_first_stage_lies_on_the_image_with_its_padding_beyond_it():
    seen = view(make_plan(chain()), 0, 0)
    assert seen.own == Area(0, 0, 32, 32)
    assert seen.reads == Area(0, 0, 34, 34)  # row 15 of the output reads up to 2 * 15 + 3
    assert seen.padded == Area(-3, -3, 34, 34)
    assert seen.neighbours == (Area(0, 32, 32, 64), Area(32, 0, 64, 32), Area(32, 32, 64, 64))
    assert seen.pixels is None


def test_a_later_tile_is_traced_to_pixels_through_the_stages_before():
    plan = make_plan(chain())
    seen = view(plan, 1, 3)
    assert seen.own == Area(32, 32, 64, 64)
    assert seen.reads == Area(30, 30, 64, 64)  # rows 15 to 31 of a map of 32
    assert seen.padded == Area(30, 30, 64, 64)
    assert seen.pixels == Area(27, 27, 64, 64)  # 2 * 15 - 3, and padding beyond the edge does not count
    assert traced(plan, 1, Area(4, 8, 5, 9)) == Area(5, 13, 12, 20)  # one position is a window of 7
    for stages in (chain("1x2"), branched()):  # whose tiles do not determine the region
        assert view(make_plan(stages), 1, 0).pixels is None
    map_ = Shape(8, 4, 8, flat=False)
    assert scaled(Rect(Span(1, 2), Span(2, 8)), map_, Shape(3, 64, 32, flat=False)) == Area(16, 8, 32, 32)
    assert [middle_tile(chain(grid)[0]) for grid in ("3x4", "2x2")] == [5, 0]
    assert halo(chain()[0]) == pytest.approx((34 + 35) ** 2 / 64**2 - 1), "the region read more than once"
    assert halo(chain()[2]) == 3


def test_a_text_picture_shows_stages_cuts_and_skip_connections():
    edges = [(tensor.stage, tensor.readers) for tensor in tensors(make_plan(branched()))]
    assert edges == [(IMAGE, (0,)), (0, (1,)), (0, (3,)), (1, (2,)), (2, (3,))]
    lines = text_picture(make_plan(branched())).splitlines()
    assert all(len(line) <= 100 for line in lines)
    for number, grid in enumerate(("2x2", "2x2", "col4", "1")):
        assert any(f"stage {number}  ·  {grid}" in line for line in lines)
    assert sum("╭" in line for line in lines) == 1
    assert sum("╰" in line for line in lines) == 1
    start = next(index for index, line in enumerate(lines) if line.startswith("╭"))
    stop = next(index for index, line in enumerate(lines) if line.startswith("╰"))
    assert all(line.startswith("│") for line in lines[start + 1 : stop])
    assert "to stage 3" in lines[start]
    assert not lines[stop + 1].startswith("│")


def test_tensors_that_skip_stages_side_by_side_each_have_a_lane():
    first, second, third, last = branched()
    wide = replace(
        second, outputs=(SECOND, SECOND), tiles=tuple(replace(tile, outputs=tile.outputs * 2) for tile in second.tiles)
    )
    joined = replace(last, inputs=(*last.inputs, Input(1, 1, SECOND)))
    lines = text_picture(make_plan([first, wide, third, joined])).splitlines()
    assert [line[:4] for line in lines if "╭" in line] == ["╭───", "│ ╭─"]
    assert [line[:4] for line in lines if "╰" in line] == ["│ ╰─", "╰───"]


def test_a_text_picture_of_a_chain_has_no_margin():
    lines = text_picture(make_plan(chain())).splitlines()
    assert not any("╭" in line or "╰" in line for line in lines)
    assert any(line.startswith("┌─┴") for line in lines)
    assert lines[-1].strip() == "10 values, softmax"


def competed(*others):
    """A plan of 100 ms and 4 dollars a million that competed with others: (ms, dollars a million, tasks, fits)."""
    mine = Alternative("2x2 at 1769 MB, then 1 at 1769 MB", 5, 100.0, 4e-6, fits=True, chosen=True)
    made = [
        Alternative(
            f"one function of {ms:g} MB" if tasks == 1 else f"{tasks} tasks", tasks, ms, usd / 1e6, fits, chosen=False
        )
        for ms, usd, tasks, fits in others
    ]
    return replace(small_plan(), alternatives=(*made, mine))


PLAN = competed((60, 9, 9, True), (80, 5, 1, False), (110, 5, 7, True), (200, 1, 1, True))


def test_alternatives_are_numbered_by_time_and_compared():
    rows = choices(PLAN)
    assert [choice.plan.ms for choice in rows] == [60, 80, 100, 110, 200]
    assert [choice.number for choice in rows] == [1, 2, 3, 4, 5]
    assert [choice.verdict for choice in rows] == ["best", "does not fit", "chosen", "beaten", "best"]
    assert rows[0].usd == pytest.approx(9)


def test_equal_plans_and_plans_that_do_not_fit_dominate_none():
    assert [choice.best for choice in choices(competed((100, 4, 2, True), (50, 1, 1, False)))] == [False, True, True]


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_impossible_numbers_are_refused(value):
    with pytest.raises(PlanError, match="impossible figures"):
        choices(competed((value, 1, 2, True)))


def test_a_plan_without_alternatives_is_refused():
    with pytest.raises(PlanError, match="plan competed with"):
        choices(replace(small_plan(), alternatives=()))
