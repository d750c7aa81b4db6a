"""A map is compared with the network itself, in one piece on parts of the image, before its result is written."""

from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

import serfer as package
from serfer.core.exactness import TOLERANCE, relative_error
from serfer.core.geometry import Span
from serfer.core.plan import sealed
from serfer.core.plan.crops import compared_span, places_of
from serfer.core.plan.windows import ImageWindows
from serfer.mapping import image_job
from serfer.mapping.output import ResultForm
from serfer.mapping.passes import ImagePasses
from serfer.plan_directory import file_sha256, load_plan, write_plan
from tests.mapping.networks import Network, run
from tests.mapping.plans import HEIGHT, WIDTH, WINDOW, assert_equal, axis, expected, make_map_plan, map_command, read
from tests.raster.files import pixels, write
from tests.support.onnx_graph import Graph

SIZE = (210, 240)


def compared(done):
    assert done.code == 0, done.err
    return done.report["compared"]


@pytest.fixture
def altered(monkeypatch):
    """Have a window's values altered after they were computed, as a broken worker or a wrong window would."""

    def alter(number, change):
        part = ResultForm.part

        def altering(form, window, outputs, empty):
            if window == number:
                outputs = {name: change(values.copy()) for name, values in outputs.items()}
            return part(form, window, outputs, empty)

        monkeypatch.setattr(ResultForm, "part", altering)

    return alter


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("comparison")


@pytest.fixture(scope="module")
def weights():
    return np.random.default_rng(1).normal(0, 0.3, (4, 3, 3, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def two_maps(folder, weights):
    """A plan of two outputs, one of them of half the rows and columns."""
    graph = Graph()
    graph.op("Conv", "image", graph.constant(weights), output="fine", pads=[1] * 4)
    graph.op("MaxPool", "fine", output="coarse", kernel_shape=[2, 2], strides=[2, 2])
    package.map_plan(graph.save(folder / "two.onnx", {"fine": 4, "coarse": 4}), [SIZE], folder / "two", window=64)
    return folder / "two"


@pytest.fixture(scope="module")
def pooled(folder, weights):
    """A plan of a network that takes a mean of the whole image."""
    graph = Graph()
    values = graph.op("Conv", "image", graph.constant(weights), pads=[1] * 4)
    graph.op("Mul", values, graph.op("GlobalAveragePool", values), output="map")
    package.map_plan(graph.save(folder / "pooled.onnx", {"map": 4}), [SIZE], folder / "pooled", window=64)
    return folder / "pooled"


@pytest.fixture(scope="module")
def classes(folder, weights):
    """A plan of classes, of which 0 and 1 always have equal scores."""
    graph = Graph()
    graph.op("Conv", "image", graph.constant(weights[[0, 0, 2, 3]]), output="map", pads=[1] * 4)
    path = graph.save(folder / "classes.onnx", {"map": 4})
    package.map_plan(path, [SIZE], folder / "classes", window=64, reduce="argmax")
    return folder / "classes"


def plan_of(folder, weights, scale, offset, last="Identity"):
    """Make a plan of a network whose values lie within about `scale` of an offset, before its last operator."""
    graph = Graph()
    values = graph.op("Mul", graph.op("Conv", "image", graph.constant(weights), pads=[1] * 4), scale)
    graph.op(last, graph.op("Add", values, float(offset)), output="map")
    package.map_plan(graph.save(folder / "near.onnx", {"map": 4}), [SIZE], folder / "near", window=64)
    return folder / "near"


def branching(folder, weights, by, outer=0):
    """Write a network with an If, and another one in that, by what operators make of the image's pixels."""
    graph = Graph()
    first = graph.op("Conv", "image", graph.constant(weights), pads=[1] * 4)
    size = asked = graph.op("ReduceProd", graph.op("Shape", "image", start=2), keepdims=0)
    for kind, number in by.items():
        asked = graph.op(kind, asked, np.array(number))

    def body(kind, given, **branches):
        node = helper.make_node(kind, [given], [f"by {kind}"], **branches)
        return helper.make_graph([node], kind, [], [onnx.ValueInfoProto(name=f"by {kind}")])

    inner = body("If", asked, then_branch=body("Relu", first), else_branch=body("Sigmoid", first))
    last = graph.op("If", graph.op("Greater", size, np.array(outer)), then_branch=inner, else_branch=body("Neg", first))
    graph.op("Conv", last, graph.normal(2, 4, 3, 3), output="map", pads=[1] * 4)
    return graph.save(folder / "branching.onnx", {"map": 2})


@pytest.fixture
def map_of(serfer, tmp_path):
    image = write(tmp_path / "image.tif", pixels(*SIZE, dtype="float32"))

    def run(plan, *options):
        return serfer(*map_command(image, plan, tmp_path / "result.tif", "--json", *options))

    return run


def test_a_map_is_compared_and_says_so(serfer, command):
    found = compared(serfer(*command, "--json"))
    assert found["parts"] >= 4
    assert found["pixels"] > HEIGHT * WIDTH / 2
    assert found["error"] < 1e-6
    assert not found["wrong"]
    assert "compared with the network in one piece on" in serfer(*command, "--overwrite").out
    assert serfer(*command, "--overwrite", "--set", "check=false", "--json").report["compared"] is None


@pytest.mark.parametrize("number", [0, 7, 19])
def test_a_wrong_window_is_named_and_nothing_is_written(serfer, command, tmp_path, altered, monkeypatch, number):
    altered(number, lambda values: values + 0.01)
    refused = serfer(*command, "--json").ends(
        1, f"most so in window {number}, rows", "nothing was written, the windows are kept in"
    )
    report = refused.report
    assert report["result"] is None
    assert report["compared"]["worst_window"] == number
    assert not (tmp_path / "result.tif").exists()
    monkeypatch.undo()
    assert serfer(*command).code == 1  # what is kept is still wrong
    assert serfer(*command, "--set", "check=false", "--json").report["resumed"] == 20
    assert (tmp_path / "result.tif").exists()
    assert compared(serfer(*command, "--restart", "--overwrite", "--json"))["error"] < 1e-6
    assert_equal(read(tmp_path / "result.tif"), expected(pixels(HEIGHT, WIDTH)))


def test_of_many_images_a_wrong_one_fails_by_itself(serfer, plan, tmp_path, altered):
    for name in ("a", "b"):
        write(tmp_path / f"{name}.tif", pixels(HEIGHT, WIDTH))
    wrong = iter([True])
    altered(7, lambda values: values + 0.01 * next(wrong, False))
    command = map_command(tmp_path / "a.tif", plan, tmp_path / "out", tmp_path / "b.tif")
    serfer(*command).ends(1, "a.tif: the result is wrong")
    assert (tmp_path / "out" / "retry.txt").read_text().split() == [str(tmp_path / "a.tif")]
    assert (tmp_path / "out" / "b.tif").exists()


def test_pixels_without_data_are_left_out(map_image, plan, tmp_path):
    values = np.maximum(pixels(HEIGHT, WIDTH), 1)
    values[:, :40, :50] = 0
    image = write(tmp_path / "image.tif", values, nodata=0)
    found = map_image(image, plan, tmp_path / "out.tif")["compared"]
    assert found["error"] < 1e-6
    everything = map_image(image, plan, tmp_path / "out.tif", "--no-data", "none", "--overwrite")["compared"]
    assert 0 < found["pixels"] < everything["pixels"]
    nothing = write(tmp_path / "nothing.tif", np.zeros_like(values), nodata=0)
    assert "no part has a pixel" in map_image(nothing, plan, tmp_path / "nothing.npy")["compared"]["skipped"]


def test_each_output_is_compared_at_its_own_stride(map_of, two_maps, altered):
    found = compared(map_of(two_maps))
    assert found["pixels"] > 1.2 * SIZE[0] * SIZE[1] / 2
    assert found["error"] < 1e-6
    altered(4, lambda values: values + 0.5 * (values.shape[-1] < 64))
    map_of(two_maps, "--overwrite").ends(1, "most so in window 4")


@pytest.mark.exact
def test_statistics_of_the_whole_image_are_those_of_the_passes_also_when_it_is_resumed(map_of, pooled, monkeypatch):
    def stopped(*_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(image_job, "compare", stopped)
    assert map_of(pooled).code == 130
    monkeypatch.undo()
    report = map_of(pooled).report
    assert report["computed"] == 0
    assert report["compared"]["parts"] >= 4
    assert report["compared"]["error"] < 1e-6


def test_another_class_is_wrong_unless_its_score_is_as_large(map_of, classes, altered, monkeypatch):
    found = compared(map_of(classes))
    assert (found["error"], found["other_classes"]) == (None, 0)
    altered(4, lambda values: np.where(values == 0, 1, values).astype(values.dtype))
    assert compared(map_of(classes, "--overwrite"))["other_classes"] == 0
    monkeypatch.undo()
    altered(4, lambda values: np.where(values == 0, 2, values).astype(values.dtype))
    map_of(classes, "--overwrite").ends(1, "pixels have another class), most so in window 4")


STEP, FAINT = 6e-8, (1e-4, -11, "Sigmoid")  # a float32 step below 1; 2e-5, of whose range rounding is a tenth
NEAR = (
    *((FAINT, 2 * STEP, 0), (FAINT, 100 * STEP, 1), ((4e-5, 10), 3e-5, 1), ((4e-5, 1000), 9e-4, 1)),
    *(((4e-5, 1000), 6.2e-5, 0), ((0.0, 3), 4 * STEP, 0), ((0.0, 3), 1e-5, 1), ((0.0, 0), 1e-9, 0)),
)


@pytest.mark.exact
@pytest.mark.parametrize(("near", "far", "code"), NEAR)
def test_rounding_is_no_difference_where_values_are_nearly_alike(map_of, tmp_path, weights, altered, near, far, code):
    altered(4, lambda values: values + np.float32(far))
    map_of(plan_of(tmp_path, weights, *near)).ends(code)


@pytest.mark.exact
@pytest.mark.parametrize(
    ("number", "fault"),
    [
        (0, lambda values: values + np.float32(1e-3) * np.ptp(values)),
        (5, lambda values: np.roll(values, 1, axis=-2)),
        (3, lambda values: np.concatenate([values[..., :-1], values[..., -1:] * np.float32(0.9)], axis=-1)),
        (15, lambda values: values[:, ::-1]),
    ],
    ids=["a thousandth", "a row further", "a border", "channels"],
)
def test_kinds_of_faults_of_windows_are_found(map_of, two_maps, altered, number, fault):
    altered(number, fault)
    map_of(two_maps).ends(1, f"most so in window {number}")


@pytest.mark.exact
def test_windows_that_were_given_other_statistics_are_found(map_of, pooled, monkeypatch):
    own = ImagePasses.statistics
    monkeypatch.setattr(ImagePasses, "statistics", lambda self: own(self) * np.float32(1.001))
    map_of(pooled).ends(1, "the result is wrong")


MANY = SIZE[0] * SIZE[1]
BANDS = {"Div": 1000, "Equal": MANY // 1000}, {"Mod": 700, "Equal": MANY % 700}, {"Equal": MANY}


@pytest.mark.exact
@pytest.mark.parametrize(
    ("by", "outer"), [({"Greater": MANY - 1}, 0), ({"Greater": MANY}, 0), ({"Less": 0}, 10**9), *product(BANDS, [0])]
)
def test_parts_go_the_way_of_the_image_where_a_file_branches_by_its_size(map_of, tmp_path, weights, by, outer):
    path = branching(tmp_path, weights, by, outer)
    with pytest.raises(package.ModelError, match="is by the size: give the sizes of your images, --size HEIGHTxWIDTH"):
        package.map_plan(path, "any", tmp_path / "plan", window=64)
    package.map_plan(path, [SIZE], tmp_path / "plan", window=64)
    found = compared(map_of(tmp_path / "plan"))
    assert found["parts"] >= 4
    assert found["error"] < 1e-6
    image = pixels(*SIZE, dtype="float32")
    assert_equal(read(tmp_path / "result.tif"), run(path, image[None])[0])


def chosen(graph, values):
    many = graph.op("Greater", graph.op("ReduceProd", graph.op("Shape", "image", start=2), keepdims=0), MANY - 1)
    return graph.op("Where", many, graph.op("Relu", values), graph.op("Neg", values))


def scaled(graph, values):
    return graph.op("Div", values, graph.op("Cast", graph.op("Shape", "image", start=2, end=3), to=TensorProto.FLOAT))


def mean_by_hand(graph, values):
    count = graph.op("Cast", graph.op("ReduceProd", graph.op("Shape", values, start=2), keepdims=0), to=1)
    return graph.op("Sub", values, graph.op("Div", graph.op("ReduceSum", values, [2, 3]), count))


def resized(scale, **attributes):
    def resize(graph, values):
        return graph.op("Resize", values, "", np.float32([1, 1, scale, scale]), **attributes)

    return resize


def shifted(graph, values):
    size = graph.op("Shape", "image", start=2, end=3)
    start = graph.op("Mod", graph.op("Div", size, [200]), [5])
    return graph.op("Slice", values, start, graph.op("Add", start, graph.op("Sub", size, [4])), [2])


def with_dead_line(graph, values):
    numbers = graph.op("Range", 0, graph.op("Squeeze", graph.op("Shape", values, start=3)), 1)
    return graph.op("Gather", values, graph.op("Where", graph.op("Equal", numbers, 170), 169, numbers), axis=3)


def one_behind_another(graph, values):
    down, up = (resized(scale, mode="linear", antialias=0) for scale in (0.75, 4 / 3))
    return up(graph, chosen(graph, scaled(graph, down(graph, values))))


LARGE = (560, 640)
FLOOR = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


@pytest.mark.exact
@pytest.mark.parametrize(
    ("build", "window"),
    [
        *((build, 128) for build in (chosen, scaled, mean_by_hand, one_behind_another)),
        (resized(0.7, mode="linear"), 140),
        (resized(1.3, mode="linear", coordinate_transformation_mode="asymmetric"), 260),
        (resized(0.6, mode="cubic"), 120),
        (resized(0.7, **FLOOR), 140),
    ],
)
def test_parts_are_computed_with_the_numbers_that_the_image_s_size_makes(serfer, tmp_path, weights, build, window):
    path, image = sized(tmp_path, weights, build), pixels(*LARGE, dtype="float32")
    package.map_plan(path, [LARGE], tmp_path / "plan", window=window, statistics="exact")
    command = map_command(write(tmp_path / "image.tif", image), tmp_path / "plan", tmp_path / "result.tif", "--json")
    found = compared(serfer(*command))
    assert found["parts"] >= 4
    assert found["error"] < 3e-6
    assert relative_error(read(tmp_path / "result.tif"), run(path, image[None])[0]) < TOLERANCE


@pytest.mark.exact
@pytest.mark.parametrize(("build", "kind"), [(shifted, "Slice"), (with_dead_line, "Gather")])
def test_an_operator_that_does_something_else_on_a_part_is_named(map_of, tmp_path, weights, build, kind):
    with pytest.warns(package.PlanWarning, match=rf"not compared with the network: what '.*' \({kind}\) computes of a"):
        package.map_plan(sized(tmp_path, weights, build), [SIZE], tmp_path / "plan", window=70)
    assert compared(map_of(tmp_path / "plan"))["skipped"]


def sized(folder, weights, build):
    """Write a network of two convolutions and what is built between them."""
    graph = Graph()
    values = build(graph, graph.op("Conv", "image", graph.constant(weights), pads=[1] * 4))
    graph.op("Conv", values, graph.normal(2, 4, 3, 3), output="map")
    return graph.save(folder / "sized.onnx", {"map": 2})


def test_images_that_go_several_ways_are_mapped_and_the_plan_says_that_they_are_not_compared(map_of, tmp_path, weights):
    path = branching(tmp_path, weights, {"Greater": 48_000})
    words = "210 x 240 and 96 x 240 pixels go other ways through the network: make a plan for each, --size HEIGHTxWIDTH"
    with pytest.warns(package.PlanWarning, match=words):
        package.map_plan(path, [SIZE, (96, 240)], tmp_path / "plan", window=64)
    assert "or on the image's size" in compared(map_of(tmp_path / "plan"))["skipped"]


@pytest.mark.parametrize(
    ("build", "size"),
    [
        (lambda net: net.conv("image", (5, 3), stride=(2, 2)), (301, 290)),  # without padding, any rest
        (lambda net: net.enlarge(net.pool(net.conv("image", (3, 3), pads=(1,) * 4), (2, 2), (2, 2)), 2), (300, 280)),
        (lambda net: net.crop(net.conv("image", (3, 3)), top=2, left=3, bottom=1, right=2), (261, 300)),
    ],
)
def test_networks_of_many_shapes_are_compared(map_image, tmp_path, build, size):
    net = Network()
    build(net)
    package.map_plan(net.save(tmp_path / "net.onnx"), [size], tmp_path / "plan", window=64)
    image = write(tmp_path / "image.tif", pixels(*size, bands=1, dtype="float32"))
    found = map_image(image, tmp_path / "plan", tmp_path / "out.tif")["compared"]
    assert found["parts"] >= 4
    assert found["error"] < 1e-6


def test_what_cannot_be_compared_is_mapped_and_says_why(serfer, tmp_path):
    make_map_plan(tmp_path / "plan")
    plan = load_plan(tmp_path / "plan")  # without parts, as those of earlier versions
    write_plan(sealed(replace(plan, windows=replace(plan.windows, crops=None))), tmp_path / "plan")
    image = write(tmp_path / "image.tif", pixels(HEIGHT, WIDTH))
    done = serfer(*map_command(image, tmp_path / "plan", tmp_path / "out.tif")).ends(0)
    assert "not compared with the network:" in done.out
    assert "its plan has no network for parts of an image" in done.out
    assert (tmp_path / "out.tif").exists()


def test_a_network_that_does_not_run_in_one_piece_costs_no_map(serfer, tmp_path):
    make_map_plan(tmp_path / "plan")
    plan = load_plan(tmp_path / "plan")
    head, path = '<ir_version: 10, opset_import: ["": 20]> net', tmp_path / "plan" / plan.unsplit.path
    nodes = "{ five = Constant <value_ints = [5]> () map = Reshape (input0, five) }"  # parts have not five values
    onnx.save(onnx.parser.parse_model(f"{head} (float input0) => (float map) {nodes}"), path)
    unsplit = replace(plan.unsplit, bytes=path.stat().st_size, sha256=file_sha256(path))
    write_plan(sealed(replace(plan, unsplit=unsplit)), tmp_path / "plan")
    image = write(tmp_path / "image.tif", pixels(HEIGHT, WIDTH))
    done = serfer(*map_command(image, tmp_path / "plan", tmp_path / "out.tif")).ends(0)
    assert "not compared with the network: the network did not run in one piece:" in done.out
    assert_equal(read(tmp_path / "out.tif"), expected(pixels(HEIGHT, WIDTH)))


@given(st.integers(3, 9), st.integers(3, 9), st.integers(1, 3), st.integers(2, 3 * WINDOW))
def test_parts_lie_within_the_image_and_start_where_the_network_shifts(rows, cols, unit, side):
    windows = ImageWindows(axis(rows), axis(cols), ((0,),))
    places = places_of(windows, (side, side), unit)
    assert len({*places}) == len(places) <= 12
    for place in places:
        for span, size in ((place.rows, windows.rows.size), (place.cols, windows.cols.size)):
            assert span.start % unit == 0
            assert 0 <= span.start < span.stop <= size
            assert span.size == side


@given(
    st.integers(1, 4), st.integers(0, 9), st.integers(0, 9), st.integers(0, 8), st.integers(0, 60), st.integers(0, 20)
)
def test_what_a_part_tells_depends_on_none_of_its_own_ends(unit, before, behind, start, length, rest):
    """Each pixel of the result lies on one of the image, and reads those around the unit that it is in."""
    begin, size = start * unit, start * unit + length + rest
    crop = Span(begin, begin + length)
    axis = SimpleNamespace(size=size, result=size, step=1.0, reach=(before, behind))
    told, _ = compared_span(axis, crop, length, unit)
    for pixel in range(told.start, told.stop):
        first = pixel // unit * unit - before
        last = (pixel // unit + 1) * unit + behind
        assert max(0, first) >= crop.start
        assert min(size, last) <= crop.stop


@pytest.mark.parametrize("crops", [(0, 9), (2**20, 2**20)])
def test_a_plan_with_parts_that_no_image_has_is_refused(tmp_path, crops):
    make_map_plan(tmp_path / "plan")
    plan = load_plan(tmp_path / "plan")
    changed = replace(plan, windows=replace(plan.windows, crops=crops), digest="")
    write_plan(sealed(changed), tmp_path / "plan")
    with pytest.raises(package.PlanError, match="parts of an image to compare of no pixels, or of more than any has"):
        load_plan(tmp_path / "plan")
