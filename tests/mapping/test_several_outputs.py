"""Maps of networks with several outputs: a file of each, or bands of one, each as ONNX Runtime has it of the whole."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import onnx
import pytest
import rasterio
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

import serfer as package
from serfer.core.errors import PlanError, UnavailableError
from serfer.core.geometry import Span
from serfer.core.plan import dump_plan, parse_plan, sealed
from serfer.core.plan.windows import AxisResult, AxisWindow, AxisWindows
from serfer.mapping import results
from serfer.mapping.options import MapOptions
from serfer.mapping.results import file_places, unique_labels
from serfer.plan_directory import load_plan
from tests.mapping.networks import run_all
from tests.mapping.plans import map_command, read
from tests.raster.files import UTM, WHERE, pixels, write, write_scans
from tests.support.onnx_graph import Graph

HEIGHT, WIDTH = 203, 251  # multiples of no stride


def save(path):
    """Write a network with outputs of strides 1, 2 and 4, the second of whole numbers, and one more of stride 1."""
    graph, around = Graph(), {"pads": [1, 1, 1, 1], "kernel_shape": [3, 3]}
    first = graph.op("Conv", "image", graph.normal(4, 3, 3, 3), **around)
    graph.op("Sigmoid", first, output="probability")
    graph.op("Relu", first, output="distance")
    scores = graph.op("Conv", "distance", graph.normal(5, 4, 3, 3), strides=[2, 2], **around)
    graph.op("ArgMax", scores, output="classes", axis=1)
    graph.op("Conv", scores, graph.normal(2, 5, 3, 3), output="/head/Conv", strides=[2, 2], **around)
    outputs = {"probability": None, "classes": (None, TensorProto.INT64), "/head/Conv": None, "distance": None}
    return graph.save(path, outputs, opset=18)


def whole(path, image):
    """Return what ONNX Runtime makes of a whole image (bands, rows, cols), by the names of files."""
    outputs = run_all(path, image.astype(np.float32)[None])
    return dict(zip(["probability", "classes", "head-Conv", "distance"], (each[0] for each in outputs), strict=True))


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    return save(tmp_path_factory.mktemp("several") / "several.onnx")


@pytest.fixture(scope="module")
def plan(network, tmp_path_factory):
    directory = tmp_path_factory.mktemp("several") / "plan"
    package.map_plan(network, [(HEIGHT, WIDTH)], directory, window=64)
    return directory


@pytest.fixture
def size():
    return HEIGHT, WIDTH


@pytest.fixture
def command(image, plan, tmp_path):
    return map_command(image, plan, tmp_path / "out.tif")


def check(folder, expected, stem="out"):
    for name, values in expected.items():
        got = read(folder / f"{stem}.{name}.tif")
        assert got.shape == values.shape
        assert np.abs(got - values).max() <= 1e-5 * max(np.ptp(values), 1)


@pytest.mark.exact
def test_each_output_is_a_file_of_its_own_resolution_and_equals_the_whole(
    serfer, report_of, command, network, tmp_path
):
    planned = serfer(*command, "--dry-run")
    assert "out.probability.tif, " in planned.out
    assert "out.head-Conv.tif" in planned.out
    report = report_of(*command)
    assert report["windows"] == 16
    names = [f"{tmp_path}/out.{name}.tif" for name in ("probability", "classes", "head-Conv", "distance")]
    assert [each["path"] for each in report["results"]] == names
    assert report["result"] == names[0]
    check(tmp_path, whole(network, pixels(HEIGHT, WIDTH)))
    for name, stride, dtype in (("probability", 1, "float32"), ("classes", 2, "int32"), ("head-Conv", 4, "float32")):
        with rasterio.open(tmp_path / f"out.{name}.tif") as dataset:
            assert dataset.transform == rasterio.Affine(WHERE.a * stride, 0, WHERE.c, 0, WHERE.e * stride, WHERE.f)
            assert dataset.dtypes[0] == dtype
    assert not [*tmp_path.glob("*.parts")]


def test_pixels_without_data_have_none_in_every_output(map_image, plan, network, tmp_path):
    values = np.maximum(pixels(HEIGHT, WIDTH), 1)
    values[:, :140, :140] = 0
    image = write(tmp_path / "image.tif", values, nodata=0, crs=UTM, transform=WHERE)
    report = map_image(image, plan, tmp_path / "out.tif")
    assert report["empty"] == 4
    expected = whole(network, values)
    for name, stride in (("probability", 1), ("head-Conv", 4)):
        got, rows = read(tmp_path / f"out.{name}.tif"), 140 // stride
        assert np.isnan(got[:, :rows, :rows]).all()
        assert np.abs(got - expected[name])[:, rows:].max() <= 1e-5
    assert (read(tmp_path / "out.classes.tif")[:, :70, :70] == np.iinfo(np.int32).min).all()


def test_stopped_map_goes_on_with_the_windows_that_lack_a_part(serfer, report_of, command, network, tmp_path):
    stopped = serfer(
        *command, "--max-cost-usd", "0.0000025", "--set", "force=true", "--set", "concurrency=1", "--json"
    ).ends(1)
    computed = stopped.report["computed"]
    assert 0 < computed < 16
    (tmp_path / "out.classes.tif.parts" / "c.0.0.0.0").unlink()
    report = report_of(*command)
    assert report["resumed"] == computed - 1
    check(tmp_path, whole(network, pixels(HEIGHT, WIDTH)))


def test_a_map_that_was_stopped_between_two_files_writes_the_others_alone(
    serfer, report_of, command, network, tmp_path, monkeypatch
):
    written = []

    def write_result(place, parts, **given):
        written.append(place.rpartition("/")[2])
        if len(written) == 2:
            raise UnavailableError("the disk is full")
        return package.raster.write_result(place, parts, **given)

    with monkeypatch.context() as patch:
        patch.setattr(results, "write_result", write_result)
        assert serfer(*command).code == 4
    assert written == ["out.probability.tif", "out.classes.tif"]
    before = (tmp_path / "out.probability.tif").stat().st_mtime_ns
    report = report_of(*command)
    assert report["computed"] == 0
    assert (tmp_path / "out.probability.tif").stat().st_mtime_ns == before
    check(tmp_path, whole(network, pixels(HEIGHT, WIDTH)))
    assert not [*tmp_path.glob("*.parts")]
    assert serfer(*command).code == 3  # they exist
    assert serfer(*command, "--overwrite").code == 0


def test_outputs_of_one_size_are_bands_of_one_file_and_others_are_refused(serfer, command, tmp_path):
    serfer(*command, "--set", "one_file=true").ends(
        2, "one_file is for outputs of one size", "/head/Conv is 51 x 63 float32"
    )
    network = save(tmp_path / "net.onnx")
    model = onnx.load(network)
    kept = [value for value in model.graph.output if value.name in ("probability", "distance")]
    del model.graph.output[:]
    model.graph.output.extend(kept)
    onnx.save(model, network)
    package.map_plan(network, [(HEIGHT, WIDTH)], tmp_path / "plan", window=128)
    command = [tmp_path / "plan" if each == command[3] else each for each in command]
    serfer(*command, "--set", "one_file=true").ends(0)
    expected = whole(save(tmp_path / "net.onnx"), pixels(HEIGHT, WIDTH))
    with rasterio.open(tmp_path / "out.tif") as dataset:
        assert dataset.descriptions[:2] == ("probability 1", "probability 2")
        assert dataset.descriptions[7] == "distance 4"
    both = np.concatenate([expected["probability"], expected["distance"]])
    assert np.abs(read(tmp_path / "out.tif") - both).max() <= 1e-5


def test_of_several_outputs_the_one_that_is_reduced_is_named(serfer, network, image, tmp_path):
    given = ("map-plan", network, "--size", f"{HEIGHT}x{WIDTH}", "--set", "window=64", "--out", tmp_path / "plan")
    serfer(*given, "--reduce", "argmax").ends(2, "say which, such as --reduce probability=argmax")
    assert "has no such output" in serfer(*given, "--reduce", "chance=argmax").err
    planned = serfer(*given, "--reduce", "distance=argmax").ends(0)
    assert "OUT.probability.tif, OUT.classes.tif, OUT.head-Conv.tif, OUT.distance.tif" in planned.out
    package.map(image, tmp_path / "plan", tmp_path / "out.npy")
    expected = whole(network, pixels(HEIGHT, WIDTH))
    assert (np.load(tmp_path / "out.distance.npy")[0] == expected["distance"].argmax(0)).mean() > 0.999
    assert np.abs(np.load(tmp_path / "out.probability.npy") - expected["probability"]).max() <= 1e-5


def test_images_of_a_folder_are_skipped_only_where_all_of_their_files_are_there(serfer, image, plan, tmp_path):
    given = map_command(image, plan, f"{tmp_path}/results/", "--json")
    assert serfer(*given).code == 0
    files = sorted(path.name for path in (tmp_path / "results").glob("*.tif"))
    assert files == [f"image.{name}.tif" for name in ("classes", "distance", "head-Conv", "probability")]
    assert json.loads(serfer(*given).out.splitlines()[-1])["skipped"] == 1
    (tmp_path / "results" / "image.classes.tif").unlink()
    again = serfer(*given, "--overwrite")
    assert json.loads(again.out.splitlines()[-1])["mapped"] == 1, again.err
    assert (tmp_path / "results" / "image.classes.tif").exists()


def test_names_of_outputs_become_names_of_files(plan):
    assert unique_labels(["/model.22/Concat", "a b", "a/b", "//"]) == ["model-22-Concat", "a-b-2", "a-b-3", "output"]
    places = file_places(load_plan(plan), "s3://scans/2026/field.tif?region=eu-west-1", MapOptions())
    assert places[2][0] == "s3://scans/2026/field.head-Conv.tif?region=eu-west-1"


@given(
    steps=st.lists(st.sampled_from([1 / 3, 1 / 2, 1.0, 2.0, 8.0]), min_size=1, max_size=3),
    windows=st.integers(1, 40),
    rest=st.integers(1, 95),
    data=st.data(),
)
def test_windows_of_every_output_start_at_one_pixel_and_leave_no_gap(steps, windows, rest, data):
    side = 48 * data.draw(st.integers(1, 3))  # pixels of the image: a multiple of each step
    size = side * (windows - 1) + rest
    results = [max(round(side * (windows - 1) / step) + 1, int(size / step)) for step in steps]
    edges = [round(side * number / steps[0]) for number in range(windows)] + [results[0]]
    spans = [Span(*each) for each in pairwise(edges)]
    others = tuple(AxisResult(each, 0.0, step) for each, step in zip(results[1:], steps[1:], strict=True))
    axis = AxisWindows(
        size, results[0], tuple(AxisWindow(0, Span(0, size), each) for each in spans), 0.0, steps[0], others
    )
    for number, (step, result) in enumerate(zip(steps, results, strict=True)):
        view = axis.of_output(number)
        starts = [each.written.start for each in view.windows]
        assert starts == [round(side * place / step) for place in range(windows)]
        assert [each.written.stop for each in view.windows] == [*starts[1:], result]
        assert view.result == result


@pytest.fixture(scope="module")
def any_plan(network, tmp_path_factory):
    directory = tmp_path_factory.mktemp("several") / "any"
    package.map_plan(network, "any,multiple=2", directory, window=64)
    return directory


def test_one_plan_maps_each_output_of_images_of_any_size(serfer, any_plan, network, tmp_path):
    sizes = {"a": (130, 70), "b": (132, 102), "c": (44, 218), "small": (30, 100)}
    scans = write_scans(tmp_path / "scans", sizes, crs=UTM, transform=WHERE)
    serfer(*map_command(scans, any_plan, tmp_path / "out")).ends(
        1, "small.tif has 30 x 100 pixels, and this plan takes heights and widths of 40 pixels or more that"
    )
    for name in ("a", "b", "c"):
        check(tmp_path / "out", whole(network, pixels(*sizes[name])), name)
    with rasterio.open(tmp_path / "out" / "a.head-Conv.tif") as dataset:
        assert dataset.transform == rasterio.Affine(WHERE.a * 4, 0, WHERE.c, 0, WHERE.e * 4, WHERE.f)


def test_windows_of_any_size_write_each_pixel_of_every_output_once(any_plan):
    rules = load_plan(any_plan).windows.rules

    @given(st.integers(20, 5000))
    def check_axis(half):
        axes = [rule.at(2 * half) for side in rules.sides for rule in (side.rows, side.cols)]
        for axis in (each for each in axes if each is not None):
            for number, stride in enumerate((1, 2, 4, 1)):
                windows = axis.of_output(number).windows
                assert windows[0].written.start == 0
                assert windows[-1].written.stop == -(-2 * half // stride)
                assert all(one.written.stop == after.written.start for one, after in pairwise(windows))
                assert all(each.computed.contains(each.written) for each in windows)

    check_axis()


def save_uneven(path):
    """Write a network of stride 2 with two outputs: pooling drops an odd last row, the convolution does not."""
    graph, half = Graph(), {"strides": [2, 2]}
    graph.op("MaxPool", "image", output="pooled", kernel_shape=[2, 2], **half)
    graph.op("Conv", "image", graph.normal(2, 3, 3, 3), output="conv", kernel_shape=[3, 3], pads=[1] * 4, **half)
    return graph.save(path, {"pooled": None, "conv": None}, opset=18)


def test_outputs_that_do_not_end_together_are_whole_at_any_size(serfer, tmp_path):
    file, plan = save_uneven(tmp_path / "net.onnx"), tmp_path / "plan"
    package.map_plan(file, "any", plan, window=16)
    for size in ((35, 36), (67, 51)):
        image = write(tmp_path / "image.tif", pixels(*size))
        options = ("--out", tmp_path / "out.tif", "--workers", "inprocess", "--overwrite")
        serfer("map", image, "--plan", plan, *options).ends(0)
        outputs = run_all(file, pixels(*size).astype(np.float32)[None])
        check(tmp_path, dict(zip(("pooled", "conv"), (each[0] for each in outputs), strict=True)))


def test_rules_of_other_outputs_than_the_plan_has_are_refused(any_plan):
    plan = load_plan(any_plan)
    side = plan.windows.rules.sides[0]
    ends = tuple(replace(end, others=end.others[1:]) for end in side.rows.ends)
    rules = replace(plan.windows.rules, sides=(replace(side, rows=replace(side.rows, ends=ends)),))
    with pytest.raises(PlanError, match="a rule of windows for no image"):
        parse_plan(dump_plan(sealed(replace(plan, windows=replace(plan.windows, rules=rules)))))
