"""`serfer map` by networks that take statistics of the whole image: as the network on all of it, in several passes."""

import json
import signal
from dataclasses import replace

import numpy as np
import pytest

import serfer as package
from serfer.core.errors import ImageError, PlanError, SerferError, UsageError
from serfer.core.plan import parse_plan
from serfer.core.plan.windows_validation import check_windows
from serfer.drivers.driver import RequestContext
from serfer.plan_directory import load_plan
from serfer.raster.reading.source import RasterSource
from tests.mapping.networks import run
from tests.mapping.plans import PREPROCESS, assert_equal, map_command, normal, read
from tests.mapping.test_resume import stop_with_parts
from tests.raster.files import UTM, WHERE, pixels, write, write_scans
from tests.support.onnx_graph import Graph

HEIGHT, WIDTH = 118, 150
WINDOWS = 4 * 5


class Network(Graph):
    """A network of three channels and one output of two."""

    def conv(self, x, before, after, kernel=3, stride=1):
        weight = self.random.standard_normal((after, before, kernel, kernel)) / (kernel * before**0.5)
        bias = self.random.standard_normal(after)
        given = (self.constant(values.astype(np.float32)) for values in (weight, bias))
        edge = kernel // 2
        return self.op("Conv", x, *given, strides=[stride] * 2, pads=[edge] * 4, kernel_shape=[kernel] * 2)

    def gates(self, x, channels):
        squeezed = self.op("Relu", self.conv(self.op("GlobalAveragePool", x), channels, 2, 1))
        return self.op("Mul", x, self.op("Sigmoid", self.conv(squeezed, 2, channels, 1)))

    def group_norm(self, x, channels):
        scale, shift = (self.constant(self.random.standard_normal(channels).astype(np.float32)) for _ in range(2))
        return self.op("GroupNormalization", x, scale, shift, num_groups=2)

    def enlarge(self, x, before, after):
        weight = self.constant(self.random.standard_normal((before, after, 2, 2)).astype(np.float32))
        return self.op("ConvTranspose", x, weight, strides=[2, 2], kernel_shape=[2, 2])

    def save(self, path):
        return super().save(path, {self.nodes[-1].output[0]: 2}, opset=21)


def gated(path):
    net = Network()
    return net.conv(net.gates(net.op("Relu", net.conv("image", 3, 6)), 6), 6, 2), net.save(path)


def unet(path):
    """A U-Net of one halving with group norm behind each convolution."""
    net = Network()
    first = net.op("Relu", net.group_norm(net.conv("image", 3, 4), 4))
    second = net.op("Relu", net.group_norm(net.conv(first, 4, 6, stride=2), 6))
    joined = net.op("Concat", first, net.enlarge(second, 6, 4), axis=1)
    return net.conv(net.group_norm(net.conv(joined, 8, 4), 4), 4, 2), net.save(path)


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    place = tmp_path_factory.mktemp("statistics")
    files = {name: make(place / f"{name}.onnx")[1] for name, make in (("gated", gated), ("unet", unet))}
    for name, file in files.items():
        given = {"window": 32, "preprocess": PREPROCESS, "statistics": "exact"}
        package.map_plan(file, [(HEIGHT, WIDTH)], place / name, **given)
    return {name: (file, place / name) for name, file in files.items()}


def image_of(tmp_path, values=None, **given):
    values = pixels(HEIGHT, WIDTH) if values is None else values
    return write(tmp_path / "image.tif", values, crs=UTM, transform=WHERE, **given)


def command_of(image, plan, tmp_path):
    return map_command(image, plan, tmp_path / "result.tif")


@pytest.mark.exact
@pytest.mark.parametrize(("name", "passes"), [("gated", 2), ("unet", 4)])
def test_the_map_is_that_of_the_network_on_the_whole_image(serfer, report_of, networks, tmp_path, name, passes):
    file, plan = networks[name]
    command = command_of(image_of(tmp_path), plan, tmp_path)
    before = serfer(*command, "--dry-run")
    assert f"{passes} passes over the image, " in before.out
    report = report_of(*command)
    assert report["windows"] == report["computed"] == passes * WINDOWS
    assert report["estimate"]["passes"] == passes
    assert_equal(read(tmp_path / "result.tif"), run(file, normal(pixels(HEIGHT, WIDTH)))[0])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["image.tif", "result.tif"]


@pytest.mark.exact
def test_one_plan_has_the_statistics_of_each_image_of_a_folder(serfer, networks, tmp_path):
    file, sizes = networks["gated"][0], {"a": (97, 61), "b": (98, 61), "c": (64, 201), "small": (20, 97)}
    scans = write_scans(tmp_path / "scans", sizes)
    planned = serfer("map-plan", file, "--size", "any", "--set", "window=32", "--out", tmp_path / "plan").ends(0)
    assert "for images of any size: heights and widths of 36 pixels or more" in planned.out
    assert "2 passes over the image, " in planned.out
    serfer(*map_command(scans, tmp_path / "plan", tmp_path / "out")).ends(1, "make a plan with --size 20x97")
    for name in ("a", "b", "c"):
        expected = run(file, pixels(*sizes[name]).astype(np.float32)[None])[0]
        assert_equal(read(tmp_path / "out" / f"{name}.tif"), expected)


@pytest.mark.exact
def test_the_statistics_do_not_depend_on_which_window_comes_first(serfer, networks, tmp_path):
    command, results = command_of(image_of(tmp_path), networks["gated"][1], tmp_path), []
    for concurrency in (1, 4):
        assert serfer(*command, "--overwrite", "--set", f"concurrency={concurrency}").code == 0
        results.append(read(tmp_path / "result.tif"))
    np.testing.assert_array_equal(*results)


@pytest.mark.exact
def test_pixels_without_data_are_in_the_statistics_as_the_network_sees_them(report_of, networks, tmp_path):
    file, plan = networks["gated"]
    values = np.maximum(pixels(HEIGHT, WIDTH), 1)
    values[:, :70, :90] = 0
    report = report_of(*command_of(image_of(tmp_path, values, nodata=0), plan, tmp_path))
    assert report["empty"] == 4
    assert report["no_data_pixels"] == 70 * 90
    result = read(tmp_path / "result.tif")
    assert np.isnan(result[:, :70, :90]).all()
    there = ~np.isnan(result[0])
    whole = run(file, normal(values, missing=(values == 0).all(0)))[0]
    assert_equal(result[:, there], whole[:, there])


@pytest.mark.exact
@pytest.mark.killed
def test_one_interrupted_and_killed_in_a_pass_goes_on_in_it(serfer, networks, tmp_path):
    file, plan = networks["unet"]
    command = command_of(image_of(tmp_path), plan, tmp_path)
    errors = stop_with_parts(command, tmp_path / "result.tif.parts.pass-2", 3, signal.SIGINT)
    assert "result.tif.parts.pass-1 and 1 more beside it: run the same command again" in errors
    stop_with_parts(command, tmp_path / "result.tif.parts.pass-3", 3)
    there = len([*tmp_path.glob("*.parts*/c.*")])
    planned = serfer(*command, "--dry-run", "--json").report
    assert planned["windows"] - planned["missing"] == there
    report = serfer(*command, "--json").report
    assert report["resumed"] == there
    assert report["resumed"] + report["computed"] == 4 * WINDOWS
    assert_equal(read(tmp_path / "result.tif"), run(file, normal(pixels(HEIGHT, WIDTH)))[0])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["image.tif", "result.tif"]


@pytest.mark.exact
def test_statistics_of_another_image_are_never_used(serfer, networks, tmp_path):
    file, plan = networks["gated"]
    command = command_of(image_of(tmp_path), plan, tmp_path)
    assert serfer(*command, "--max-cost-usd", "1e-6", "--set", "force=true").code == 1
    other = pixels(HEIGHT, WIDTH)[:, ::-1].copy()
    image_of(tmp_path, other)
    serfer(*command).ends(3, "result.tif.parts.pass-1 holds the parts of another job: image")
    assert serfer(*command, "--restart").code == 0
    assert_equal(read(tmp_path / "result.tif"), run(file, normal(other))[0])


@pytest.mark.exact
def test_a_window_that_fails_in_a_pass_is_named_with_its_pass(serfer, networks, tmp_path, monkeypatch):
    command = command_of(image_of(tmp_path), networks["gated"][1], tmp_path)
    plain = RasterSource.read_masked

    def broken(source, rect):
        if rect.rows.start > 60 and rect.cols.start > 100:
            raise ImageError("a block is damaged")
        return plain(source, rect)

    monkeypatch.setattr(RasterSource, "read_masked", broken)
    serfer(*command).ends(1, "in pass 1 over the image, its rows", "a block is damaged; ")


@pytest.mark.exact
def test_more_work_than_three_maps_is_asked_for_with_both_prices(tmp_path):
    net, x = Network(), "image"
    for before in (3, 6, 6, 6, 6, 6):
        x = net.gates(net.conv(x, before, 6), 6)
    net.conv(x, 6, 2, 1)
    file = net.save(tmp_path / "deep.onnx")
    with pytest.raises(UsageError, match=r"takes 7 passes over it, 4\.\d times .* in place of \$.*statistics=exact"):
        package.map_plan(file, [(HEIGHT, WIDTH)], tmp_path / "plan", window=32)
    assert not (tmp_path / "plan").exists()


def test_statistics_of_no_known_kind_are_refused(networks, tmp_path):
    with pytest.raises(UsageError, match=r"^statistics is auto or exact, not 'mean'"):
        package.map_plan(networks["gated"][0], [(HEIGHT, WIDTH)], tmp_path / "plan", statistics="mean")


def broken(windows, **changed):
    """Windows whose last pass is another one."""
    return replace(windows, passes=(*windows.passes[:-1], replace(windows.passes[-1], **changed)))


@pytest.mark.exact
@pytest.mark.parametrize(
    "change",
    [
        lambda windows: broken(windows, tiles=((0,),)),
        lambda windows: broken(windows, tiles=(*windows.passes[-1].tiles[1:], windows.passes[-1].tiles[0][1:])),
        lambda windows: broken(windows, tiles=tuple((999,) * len(row) for row in windows.passes[-1].tiles)),
        lambda windows: broken(windows, tiles=windows.passes[0].tiles[::-1]),
        lambda windows: broken(windows, heights=()),
        lambda windows: broken(windows, maps=()),
        lambda windows: broken(windows, maps=windows.passes[0].maps),
    ],
)
def test_a_plan_whose_passes_cannot_be_is_refused(networks, change):
    plan = load_plan(networks["unet"][1])
    check_windows(plan, plan.windows)
    with pytest.raises(PlanError, match=r"plan\.json"):
        check_windows(plan, change(plan.windows))


@pytest.mark.parametrize("change", [{"overlap": 3}, {"difference": {"sample": "an image"}, "known": [0.5]}])
def test_plan_of_inexact_windows_says_that_it_is_to_be_made_again(networks, change):
    value = json.loads((networks["gated"][1] / "plan.json").read_text())
    value["windows"] |= change
    with pytest.raises(PlanError, match="make it again with serfer map-plan"):
        parse_plan(json.dumps(value))


@pytest.mark.exact
def test_a_task_without_the_statistics_of_its_plan_is_refused(networks):
    plan = load_plan(networks["gated"][1])
    with package.open(networks["gated"][1], store="memory://", workers="inprocess") as pipeline:
        tile = plan.stages[0].tiles[0].inputs[0]
        batch = np.zeros((1, 3, tile.rows.size, tile.cols.size), np.float32)
        with pytest.raises(SerferError, match="carries 0 bytes of statistics, its plan has 6 values"):
            pipeline.submit(batch, context=RequestContext(window=0)).result()
