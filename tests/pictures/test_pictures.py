import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from serfer.core.errors import InputError, PlanError, UsageError
from serfer.core.geometry import Grid, Rect, Span, grid_rects
from serfer.core.plan import (
    CACHE,
    FORMAT,
    IMAGE,
    INLINE,
    Artefact,
    Cell,
    Function,
    ImageLimits,
    Input,
    Operator,
    PackageLimit,
    Padding,
    Plan,
    Preprocess,
    Shape,
    Stage,
    Tile,
)
from serfer.pictures import SUFFIXES, draw_network, draw_plan, draw_tiles, picture_pixels, text_picture
from serfer.pictures.anatomy import Area, halo, middle_tile, scaled, tensors, traced, view
from serfer.pictures.draw_network import network_scene
from serfer.pictures.draw_tiles import tiles_scene
from serfer.pictures.layout import arrange, wrapped
from serfer.pictures.network import MOST_BOXES, Box, Step, fold, lanes_of, read_steps, rows_of, slots_of
from serfer.pictures.scene import Block, Text
from serfer.pictures.scene import Path as Line

ROOT = Path(__file__).parents[2]
SIGNATURES = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
IDLE = (0.0, 0.0)
FIGURES = {"predicted_ms": 1.0, "predicted_usd": 1e-6}
NONE = Padding(0, 0, 0, 0)


def _span(start, stop, step, reach, size):
    """Rows start to stop of a layer's output, as it reads them: (clipped, padding before, padding after)."""
    first, last = start * step - reach, (stop - 1) * step + reach + 1
    return Span(max(first, 0), min(last, size)), max(-first, 0), max(last - size, 0)


def spread_stage(number, source, target, grid, step, reach, kinds, source_shape):
    """A stage like one convolution of kernel 2 * reach + 1 and stride `step`."""
    tiles = []
    for rect in grid_rects(target.height, target.width, grid):
        rows, top, bottom = _span(rect.rows.start, rect.rows.stop, step, reach, source_shape.height)
        cols, left, right = _span(rect.cols.start, rect.cols.stop, step, reach, source_shape.width)
        padding = Padding(top, left, bottom, right)
        tiles.append(Tile("", 0, (Rect(rows, cols),), (padding,), (rect,), (Cell(0, rect),), (), 150, *IDLE))
    operators = tuple(Operator(f"{number}.{index}", kind, 600) for index, kind in enumerate(kinds))
    inputs = (Input(*source, source_shape),)
    return Stage(operators, grid, 1769, inputs, (target,), tuple(tiles), (_function(),), CACHE, **FIGURES)


def _function():
    return Function(Artefact("w", 4096, ""), (Artefact("g", 10, ""),))


def vector_stage(source, shape, length, columns, kinds, *, cells=True):
    whole = shape.whole
    grid = Grid(1, columns, columns > 1)
    tiles = tuple(
        Tile("", 0, (whole,), (NONE,), (rect,), (Cell(0, rect),) if cells else (), (), 10, *IDLE)
        for rect in grid_rects(1, length, grid)
    )
    operators = tuple(Operator(kind, kind, 40) for kind in kinds)
    return Stage(
        operators,
        grid,
        1769,
        (Input(*source, shape),),
        (Shape.vector(length),),
        tiles,
        (_function(),),
        CACHE if cells else INLINE,
        **FIGURES,
    )


def make_plan(stages, model="small", artefact=None, channels="RGB"):
    preprocess = Preprocess(72, "bilinear", channels, 1 / 255, (0.5,) * 3, (0.5,) * 3)
    return Plan(
        format=FORMAT,
        model=model,
        weights="random",
        input=Shape(3, 64, 64, flat=False),
        output=stages[-1].outputs[0],
        activation="softmax",
        preprocess=preprocess,
        labels=(),
        limit=PackageLimit(250, 50),
        memory_per_vcpu=1769.0,
        store="redis",
        why="",
        alternatives=(),
        stages=tuple(stages),
        unsplit=artefact or Artefact("unsplit.onnx", 0, ""),
        original=(),
        changes=(),
        ways=(),
        digest="0" * 64,
    )


IMAGE_SHAPE = Shape(3, 64, 64, flat=False)
FIRST, SECOND = Shape(8, 32, 32, flat=False), Shape(8, 16, 16, flat=False)


def chain():
    """Two stages of maps on 2x2 grids, a vector on four columns, and a single task."""
    return [
        spread_stage(0, (IMAGE, IMAGE), FIRST, Grid(2, 2), 2, 3, ["Conv", "Relu"], IMAGE_SHAPE),
        spread_stage(1, (0, 0), SECOND, Grid(2, 2), 2, 1, ["Conv", "Relu"], FIRST),
        vector_stage((1, 0), SECOND, 64, 4, ["Flatten", "Gemm"]),
        vector_stage((2, 0), Shape.vector(64), 10, 1, ["Gemm"], cells=False),
    ]


def branched():
    """The first stage hands on two tensors; the second of them is read by the last stage only."""
    first, second, third, last = chain()
    wide = Stage(
        first.operators, first.grid, 1769, first.inputs, (FIRST, FIRST),
        tuple(
            replace(tile, outputs=tile.outputs * 2, cells=(*tile.cells, Cell(1, tile.outputs[0])))
            for tile in first.tiles
        ),
        first.functions, first.path, **FIGURES,
    )  # fmt: skip
    joined = Stage(
        last.operators, last.grid, 1769, (*last.inputs, Input(0, 1, FIRST)), last.outputs,
        tuple(
            replace(tile, inputs=(*tile.inputs, FIRST.whole), padding=(NONE, NONE), cells=()) for tile in last.tiles
        ),
        last.functions, last.path, **FIGURES,
    )  # fmt: skip
    return [wide, second, third, joined]


def write_network(directory, stages, nodes, model="small"):
    """Write an unsplit.onnx of (kind, inputs, output, attributes), and return the plan that has it."""
    protos = [helper.make_node(kind, inputs, [output], **attributes) for kind, inputs, output, attributes in nodes]
    image = helper.make_tensor_value_info("input0", TensorProto.FLOAT, ["N", 3, 64, 64])
    result = helper.make_tensor_value_info("output0", TensorProto.FLOAT, ["N", 10])
    data = helper.make_model(helper.make_graph(protos, "tile", [image], [result])).SerializeToString()
    directory.mkdir(exist_ok=True)
    (directory / "unsplit.onnx").write_bytes(data)
    return make_plan(stages, model, Artefact("unsplit.onnx", len(data), hashlib.sha256(data).hexdigest()))


CHAIN = [
    ("Concat", ["w|0", "w|1"], "w", {"axis": 0}),
    ("Conv", ["input0", "w"], "a", {"kernel_shape": [7, 7], "strides": [2, 2]}),
    ("Relu", ["a"], "b", {}),
    ("Slice", ["b", "b.view0.starts"], "b.view0", {}),
    ("Conv", ["b.view0", "v"], "c", {"kernel_shape": [3, 3], "strides": [2, 1]}),
    ("Relu", ["c"], "d", {}),
    ("Flatten", ["d"], "e", {}),
    ("Gemm", ["e", "m"], "f", {}),
    ("Gemm", ["f", "n"], "output0", {}),
]


@pytest.fixture
def small(tmp_path):
    directory = tmp_path / "plan"
    return write_network(directory, chain(), CHAIN), directory


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_picture_is_written_in_the_format_of_its_suffix_and_the_same_twice(small, tmp_path, suffix):
    plan, directory = small
    out = tmp_path / f"picture{suffix}"
    draw_plan(plan, directory, out)
    first = out.read_bytes()
    assert first.startswith(SIGNATURES[suffix])
    draw_plan(plan, directory, out)
    assert out.read_bytes() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == [out.name, "plan"]


def test_another_suffix_is_refused_before_anything_is_drawn(small, tmp_path):
    plan, directory = small
    for draw in (
        lambda out: draw_plan(plan, directory, out),
        lambda out: draw_network(plan, directory / "nowhere", out),
        lambda out: draw_tiles(plan, None, out),
    ):
        with pytest.raises(UsageError, match=r"\.png, \.svg, \.pdf"):
            draw(tmp_path / "picture.jpeg")
    assert list(tmp_path.iterdir()) == [directory]


def test_an_unwritable_file_is_named_and_nothing_is_left(small, tmp_path):
    plan, _ = small
    with pytest.raises(InputError, match=r"missing/x\.png"):
        draw_tiles(plan, None, tmp_path / "missing" / "x.png")
    (tmp_path / "taken.png").mkdir()
    with pytest.raises(InputError, match=r"taken\.png"):
        draw_tiles(plan, None, tmp_path / "taken.png")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan", "taken.png"]


def test_unusual_characters_and_formula_signs_are_drawn_as_text(tmp_path):
    plan = write_network(tmp_path / "plan", chain(), CHAIN, model="網路 $x^2 \\frac{ $ \u202e")
    draw_plan(plan, tmp_path / "plan", tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 10_000


def test_an_image_is_drawn_as_preprocessed(small, tmp_path):
    plan, _ = small
    pixels = picture_pixels(plan, ROOT / "examples" / "images" / "chelsea.png", ImageLimits())
    assert pixels.shape == (64, 64, 3)
    swapped = make_plan(chain(), channels="BGR")
    assert np.array_equal(picture_pixels(swapped, ROOT / "examples" / "images" / "chelsea.png", ImageLimits()), pixels)
    draw_tiles(plan, pixels, tmp_path / "image.png")
    draw_tiles(plan, None, tmp_path / "gradient.png")
    draw_tiles(plan, pixels[..., :1], tmp_path / "grey.png")
    assert len({(tmp_path / name).read_bytes() for name in ("image.png", "gradient.png", "grey.png")}) == 3


def test_importing_the_command_line_does_not_import_matplotlib():
    code = (
        "import sys, serfer.cli.explain, serfer.cli.simulate, serfer_bench.cli; sys.exit('matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_operators_are_those_of_the_plan_without_helper_nodes(small):
    plan, directory = small
    steps = read_steps(plan, directory)
    assert [step.kind for step in steps] == ["Conv", "Relu", "Conv", "Relu", "Flatten", "Gemm", "Gemm"]
    assert [step.reads for step in steps] == [(-1,), (0,), (1,), (2,), (3,), (4,), (5,)]
    assert [step.label for step in steps[:3]] == ["Conv 7x7/2", "Relu", "Conv 3x3/2x1"]
    assert [box.text for box in fold(steps)] == [
        "Conv 7x7/2 + Relu",
        "Conv 3x3/2x1 + Relu",
        "Flatten",
        "Linear",
        "Linear",
    ]
    assert fold(steps)[0].macs == 1200


def test_a_network_that_is_not_the_plans_is_refused(small, tmp_path):
    plan, directory = small
    (directory / "unsplit.onnx").write_bytes(b"other")
    with pytest.raises(PlanError, match="altered"):
        draw_network(plan, directory, tmp_path / "x.png")
    (directory / "unsplit.onnx").unlink()
    with pytest.raises(PlanError, match="cannot be read"):
        draw_network(plan, directory, tmp_path / "x.png")
    short = write_network(directory, chain(), CHAIN[:-1])
    with pytest.raises(PlanError, match="has 6 operators"):
        draw_network(short, directory, tmp_path / "x.png")


def steps_of(*reads, kinds=None, stages=None):
    count = len(reads)
    kinds, stages = kinds or ["Conv"] * count, stages or [0] * count
    return [Step(kind, kind, 1, stage, read) for kind, stage, read in zip(kinds, stages, reads, strict=True)]


def test_a_gate_is_folded_into_its_convolution_and_called_by_its_name():
    steps = steps_of((-1,), (0,), (0, 1), (2,), kinds=["Conv", "Sigmoid", "Mul", "Conv"])
    boxes = fold(steps)
    assert [box.text for box in boxes] == ["Conv + SiLU", "Conv"]
    assert boxes[1].reads == (0,)


def test_operators_read_twice_or_beyond_a_cut_are_not_folded():
    twice = fold(steps_of((-1,), (0,), (1, 0), kinds=["Conv", "Relu", "Add"]))
    assert [box.reads for box in twice] == [(-1,), (0,), (1, 0)]
    cut = fold(steps_of((-1,), (0,), kinds=["Conv", "Relu"], stages=[0, 1]))
    assert [box.stage for box in cut] == [0, 1]


def test_a_residual_block_gets_a_lane_and_its_downsampling_a_slot():
    plain = [Box(0, ["a"], 0, (-1,)), Box(0, ["b"], 0, (0,)), Box(0, ["c"], 0, (1,)), Box(0, ["+"], 0, (2, 0))]
    assert rows_of(plain) == [0, 1, 2, 3]
    assert slots_of(plain, rows_of(plain)) == [0, 0, 0, 0]
    assert lanes_of(plain, rows_of(plain)) == {0: 0}
    branch = [*plain[:3], Box(0, ["d"], 0, (0,)), Box(0, ["+"], 0, (2, 3)), Box(0, ["e"], 0, (4,))]
    rows = rows_of(branch)
    assert rows == [0, 1, 2, 1, 3, 4]
    assert slots_of(branch, rows) == [0, 0, 0, 1, 0, 0]
    assert lanes_of(branch, rows) == {}


def dense(count):
    """Each box reads all those before it, as in DenseNet: the worst there is for lanes."""
    return [Box(min(2, 3 * number // count), ["Concat"], 1, tuple(range(number)) or (-1,)) for number in range(count)]


@pytest.mark.parametrize(
    "boxes", [dense(30), dense(150), [Box(0, ["Conv"], 0, (number - 1,)) for number in range(400)]]
)
def test_boxes_do_not_overlap_and_the_page_stays_bounded(boxes):
    layout = arrange(boxes, [0.8] * 3, 1.0)
    places = [(row, slot) for row, slot in zip(layout.row_of, layout.slots, strict=True)]
    assert len(set(places)) == len(places)
    assert {row for row, _ in places} == set(layout.rows)
    assert 0.4 < layout.width / layout.height < 4
    assert layout.height < 40
    ends = [column.left + column.width for column in layout.columns]
    assert all(left.left > end for left, end in zip(layout.columns[1:], ends, strict=False))


def test_columns_hold_every_line_once_and_do_not_end_with_a_stage_title():
    layout = arrange(dense(100), [0.8] * 3, 1.0)
    for band in layout.bands.values():
        assert any(place.column == band.column and place.top > band.top for place in layout.rows.values())
    assert wrapped([], 1.0) == [[]]


def test_long_lists_of_operators_are_folded_until_they_fit(tmp_path):
    count = 4 * MOST_BOXES
    steps = steps_of(*[(number - 1,) for number in range(count)])
    assert len(fold(steps)) == 1
    assert fold(steps)[0].text == f"{count} Conv"
    kinds = ["Conv"] * count
    stages = [*chain()[:1], vector_stage((0, 0), FIRST, 10, 1, kinds, cells=False)]
    nodes = [("Conv", [f"t{number}" if number else "input0"], f"t{number + 1}", {}) for number in range(count + 2)]
    plan = write_network(tmp_path / "plan", stages, nodes)
    scene = network_scene(plan, tmp_path / "plan")
    assert scene.width < 20
    assert scene.height < 20
    draw_network(plan, tmp_path / "plan", tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size < 300_000


def test_every_stage_cut_and_operator_is_in_the_picture(small):
    plan, directory = small
    texts = [shape.text for shape in network_scene(plan, directory).shapes if isinstance(shape, Text)]
    joined = "\n".join(texts)
    for wanted in ("stage 0:  2x2", "stage 2:  col4", "8x32x32, 32.0 kB", "Conv 7x7/2 + Relu", "10 values, softmax"):
        assert wanted in joined
    assert "work \N{MULTIPLICATION SIGN}0.50" in joined


def test_everything_lies_on_the_page(small):
    plan, directory = small
    for scene in (network_scene(plan, directory), tiles_scene(plan, None)):
        for shape in scene.shapes:
            if isinstance(shape, Block):
                assert -0.01 <= shape.x <= shape.x + shape.width <= scene.width + 0.01
                assert -0.01 <= shape.y <= shape.y + shape.height <= scene.height + 0.01
            elif isinstance(shape, Line):
                assert all(0 <= x <= scene.width and 0 <= y <= scene.height for x, y in shape.points)


def test_a_map_is_stretched_over_the_image():
    shape = Shape(8, 4, 8, flat=False)
    rect = Rect(Span(1, 2), Span(2, 8))
    assert scaled(rect, shape, Shape(3, 64, 32, flat=False)) == Area(16, 8, 32, 32)


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


def test_regions_that_tiles_do_not_determine_are_not_traced():
    stages = chain()
    stages[0] = spread_stage(0, (IMAGE, IMAGE), FIRST, Grid(1, 2), 2, 3, ["Conv", "Relu"], IMAGE_SHAPE)
    assert view(make_plan(stages), 1, 0).pixels is None
    assert view(make_plan(branched()), 1, 0).pixels is None


def test_the_middle_tile_is_drawn():
    stage = spread_stage(0, (IMAGE, IMAGE), FIRST, Grid(3, 4), 2, 3, ["Conv"], IMAGE_SHAPE)
    assert middle_tile(stage) == 5
    assert middle_tile(chain()[0]) == 0


def test_a_halo_is_the_region_read_more_than_once():
    assert halo(chain()[0]) == pytest.approx((34 + 35) ** 2 / 64**2 - 1)
    assert halo(chain()[2]) == 3


def test_captions_of_tiles_describe_the_drawing():
    texts = "\n".join(shape.text for shape in tiles_scene(make_plan(chain()), None).shapes if isinstance(shape, Text))
    for wanted in (
        "computes 16x16 of the 32x32 map it writes",
        "reads 34x34 of the 64x64 pixels",
        "reaches 3 pixels beyond the edge: top, left",
        "reads 16x16 of the 32x32 map of stage 0",
        "stage 2:  col4, 4 groups of a vector",
        "stage 3 runs as one task",
    ):
        assert wanted in texts


def test_a_plan_without_tiles_has_a_picture(tmp_path):
    stage = vector_stage((IMAGE, IMAGE), IMAGE_SHAPE, 10, 1, ["Gemm"], cells=False)
    plan = write_network(tmp_path / "plan", [stage], [("Gemm", ["input0", "w"], "output0", {})])
    draw_plan(plan, tmp_path / "plan", tmp_path / "x.png")
    draw_tiles(plan, None, tmp_path / "y.png")
    assert "stage 0" in text_picture(plan)


def test_tensors_list_their_readers():
    edges = tensors(make_plan(branched()))
    assert [(tensor.stage, tensor.readers) for tensor in edges] == [
        (IMAGE, (0,)),
        (0, (1,)),
        (0, (3,)),
        (1, (2,)),
        (2, (3,)),
    ]
    assert [tensor.crosses(2) for tensor in edges] == [False, False, True, True, False]


def test_a_text_picture_shows_stages_cuts_and_skip_connections():
    text = text_picture(make_plan(branched()))
    lines = text.splitlines()
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
        second,
        outputs=(SECOND, SECOND),
        tiles=tuple(replace(tile, outputs=tile.outputs * 2) for tile in second.tiles),
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


def test_shipped_pictures_are_small_enough_for_a_page():
    for path in (ROOT / "docs" / "pictures").iterdir():
        assert path.suffix in {".png", ".svg"}
        assert path.stat().st_size < 300_000


def test_unsplit_networks_are_read_without_their_weights(small):
    plan, directory = small
    model = onnx.load(directory / "unsplit.onnx", load_external_data=False)
    assert len(read_steps(plan, directory)) == len(model.graph.node) - 2
