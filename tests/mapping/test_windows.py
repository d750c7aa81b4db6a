"""Windows as plain values: what any process computes of them is `serfer.map`'s result, bit for bit."""

import json
import pickle
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import numpy as np
import pytest

import serfer
from serfer.core.plan import Preprocess
from serfer.core.plan.image_normalisation import ImageNormalisation
from serfer.core.zarr import Axis
from serfer.mapping.windows import _runs
from tests.mapping.plans import HEIGHT, WIDTH, close_opened, make_map_plan, network, read
from tests.mapping.test_statistics import gated, unet
from tests.raster.files import UTM, WHERE, pixels, write
from tests.support.onnx_graph import Graph

SIZE = 118, 150


def two_outputs(path):
    graph = Graph()
    first = graph.op("Relu", graph.op("Conv", "image", graph.normal(4, 3, 3, 3), graph.normal(4), pads=[1] * 4))
    graph.op("Conv", first, graph.normal(2, 4, 3, 3), graph.normal(2), output="fine", pads=[1] * 4)
    graph.op("MaxPool", first, output="coarse", kernel_shape=[2, 2], strides=[2, 2])
    path.write_bytes(graph.model({"fine": 2, "coarse": 4}).SerializeToString())
    return path


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    """Plans by name, for images of SIZE, but `plain` for those of 48 or 64 x 48 or 80 pixels."""
    place = tmp_path_factory.mktemp("windows")
    make_map_plan(place / "plain")
    (place / "dense.onnx").write_bytes(network())
    files = {"gated": gated(place / "gated.onnx")[1], "unet": unet(place / "unet.onnx")[1]}
    files |= {"outputs": two_outputs(place / "outputs.onnx"), "normalised": place / "dense.onnx"}
    by_image = Preprocess(
        resize=None, interpolation="bilinear", channels="RGB", scale=1.0, mean=(0.0,) * 3, std=(1.0,) * 3,
        by_image=ImageNormalisation(percentiles=(1.0, 99.0)),
    )  # fmt: skip
    for name, file in files.items():
        given = {"preprocess": by_image} if name == "normalised" else {}
        serfer.map_plan(file, [SIZE], place / name, window=32, statistics="exact", kept_maps="never", **given)
    return {name: place / name for name in ("plain", *files)}


def shuffled(items, seed=0):
    return [[*items][place] for place in np.random.default_rng(seed).permutation(len(items))]


def statistics_of(windows, run):
    statistics = None
    for step in windows.passes:
        statistics = serfer.combine([run(window, statistics) for window in shuffled(step)], statistics)
    return statistics


def assembled(windows, run):
    """Compute all windows, in another order than theirs, and put the results together, by their first outputs."""
    statistics = statistics_of(windows, run)
    results = {
        item.outputs[0]: np.full((item.channels, item.height, item.width), 99, item.dtype) for item in windows.results
    }
    for window in shuffled(windows):
        part = run(window, statistics)
        parts = part if isinstance(part, dict) else {windows.results[0].outputs[0]: part}
        for (name, values), rect in zip(parts.items(), window.writes, strict=True):
            results[name][:, *rect.slices] = values
    return results


def travelled(window):
    return serfer.MapWindow.from_json(pickle.loads(pickle.dumps(window.to_json())))  # noqa: S301 - our own


CASES = {
    "plain": ("plain", pixels(HEIGHT, WIDTH), {}, {}),
    "uint16": ("plain", pixels(HEIGHT, WIDTH, dtype="uint16") * 200, {}, {"full_scale": 60_000.0}),
    "bands": ("plain", pixels(HEIGHT, WIDTH, bands=4), {}, {"bands": (4, 2, 1)}),
    "no data": ("plain", np.where(np.arange(WIDTH) < 40, 0, pixels(HEIGHT, WIDTH) | 1), {"nodata": 0}, {}),
    "gated": ("gated", pixels(*SIZE), {}, {}),
    "unet": ("unet", pixels(*SIZE), {}, {}),
    "outputs": ("outputs", pixels(*SIZE), {}, {}),
    "normalised": ("normalised", pixels(*SIZE), {}, {}),
}


@pytest.mark.exact
@pytest.mark.parametrize("case", CASES)
def test_windows_anywhere_make_what_serfer_map_makes_bit_for_bit(plans, tmp_path, case):
    plan, values, profile, options = CASES[case]
    image = write(tmp_path / "image.tif", values.astype(values.dtype), crs=UTM, transform=WHERE, **profile)
    report = serfer.map(image, plans[plan], tmp_path / "out.tif", workers="inprocess", **options)
    expected = {item.outputs[0]: read(item.path) for item in report.results}
    windows = serfer.windows(image, plans[plan], **options)
    files = assembled(windows, lambda window, statistics: travelled(window).run(statistics))
    assert files.keys() == expected.keys()
    for name, result in files.items():
        np.testing.assert_array_equal(result, expected[name], strict=True)
    if profile or case == "normalised":
        return
    arrays = serfer.windows(values.shape[1:], plans[plan], **options)
    given = assembled(arrays, lambda window, statistics: window.compute(values[:, *window.reads.slices], statistics))
    for name, result in given.items():
        np.testing.assert_array_equal(result, expected[name], strict=True)


@pytest.mark.exact
def test_array_of_a_plan_that_measures_the_image_takes_what_was_measured(plans, tmp_path):
    image = write(tmp_path / "image.tif", pixels(*SIZE))
    report = serfer.map(image, plans["normalised"], tmp_path / "out.tif", workers="inprocess")
    with pytest.raises(serfer.UsageError, match="give normalisation"):
        serfer.windows(SIZE, plans["normalised"])
    windows = serfer.windows(SIZE, plans["normalised"], normalisation=report.statistics)
    given = assembled(windows, lambda window, _: window.compute(pixels(*SIZE)[:, *window.reads.slices]))
    np.testing.assert_array_equal(given["map"], read(tmp_path / "out.tif"))


@pytest.mark.exact
@pytest.mark.parametrize("size", [(48, 48), (48, 80), (64, 48), (64, 80)])
def test_windows_write_each_pixel_of_the_result_once(plans, size):
    windows = serfer.windows(size, plans["plain"])
    written = np.zeros(size, int)
    read_pixels = 0
    for window in windows:
        [rect] = window.writes
        written[rect.slices] += 1
        assert 0 <= window.reads.rows.start < window.reads.rows.stop <= size[0]
        read_pixels += window.reads.area
    assert (written == 1).all()
    assert windows.overhead == pytest.approx(read_pixels / (size[0] * size[1]))
    assert windows.passes == ()


def test_window_is_a_plain_value(plans, tmp_path):
    image = write(tmp_path / "image.tif", pixels(*SIZE))
    for windows in (serfer.windows(image, plans["unet"]), *serfer.windows(SIZE, plans["unet"]).passes):
        for window in windows:
            again = [travelled(window), pickle.loads(pickle.dumps(window))]  # noqa: S301 - our own
            assert again == [window, window]
            assert len({window, *again}) == 1
        assert len({*windows}) == len(windows)
        assert [*pickle.loads(pickle.dumps(windows))] == [*windows]  # noqa: S301 - our own
        assert windows[1:3] == [windows[1], windows[2]]
        assert windows[-1].number == len(windows) - 1


@pytest.mark.exact
def test_sums_give_the_same_bits_in_any_order_and_twice(plans):
    values, windows = pixels(*SIZE), serfer.windows(SIZE, plans["unet"])
    first, second, *_ = windows.passes
    sums = [window.compute(values[:, *window.reads.slices]) for window in first]
    statistics = serfer.combine(sums)
    assert statistics.passes == 1
    for seed in range(5):
        assert serfer.combine(iter([*shuffled(sums, seed), *sums[:3]])) == statistics
    later = [window.compute(values[:, *window.reads.slices], statistics) for window in second]
    assert serfer.combine(later[::-1], statistics) == serfer.combine(later, statistics)
    with pytest.raises(serfer.UsageError, match="1 windows of pass 1 are missing, such as 0"):
        serfer.combine(part for part in sums if part.number)
    with pytest.raises(serfer.UsageError, match="no sums"):
        serfer.combine([])
    with pytest.raises(serfer.UsageError, match=f"pass 1 has {len(sums)} windows, of which none has number 999"):
        serfer.combine([*sums, replace(sums[0], number=999)])
    with pytest.raises(serfer.UsageError, match="window 0 of pass 1 was given twice, with other sums"):
        serfer.combine([*sums, replace(sums[0], values=2 * sums[0].values)])
    with pytest.raises(serfer.UsageError, match="several maps or passes"):
        serfer.combine([*sums, *later], statistics)
    with pytest.raises(serfer.UsageError, match="pass 2 were given without the statistics"):
        serfer.combine(later)


def test_what_does_not_belong_to_a_window_is_refused_by_name(plans, tmp_path):
    image, values = tmp_path / "image.tif", pixels(*SIZE)
    write(image, values)
    windows = serfer.windows(image, plans["unet"])
    window, one = windows[0], windows.passes[0][0]
    with pytest.raises(
        serfer.InputError, match=r"was given no statistics: give it what serfer\.combine returns of all"
    ):
        window.run()
    with pytest.raises(serfer.InputError, match=r"pixels are uint8 of \(3, 5, 5\), and the window reads uint8"):
        one.compute(values[:, :5, :5])
    with pytest.raises(serfer.InputError, match=r"pixels are int16 of .*, and the window reads uint8 of"):
        one.compute(values[:, *one.reads.slices].astype("int16"))
    with pytest.raises(serfer.InputError, match=r"is of SerFer 9\.9, and this process has"):
        replace(one, spec=replace(one.spec, version="9.9")).run()
    with pytest.raises(serfer.PlanError, match="is another plan"):
        replace(one, spec=replace(one.spec, plan=str(plans["gated"]))).run()
    with pytest.raises(serfer.PlanError, match="does not exist"):
        replace(one, spec=replace(one.spec, plan=str(tmp_path / "gone"))).run()
    for changed in ({"number": 7}, {"number": 999}, {"number": -1}, {"in_pass": 9}, {"macs": 1}):
        with pytest.raises(serfer.InputError, match="is not one of its plan"):
            replace(one, **changed).run()
    with pytest.raises(serfer.UsageError, match="gives maps and no boxes"):
        serfer.windows(image, plans["gated"], boxes=True)
    with pytest.raises(serfer.UsageError, match="are of an array"):
        serfer.windows(SIZE, plans["unet"]).passes[0][0].run()
    write(image, values[:, ::-1])
    with pytest.raises(serfer.InputError, match=r"image\.tif was changed"):
        one.run()
    close_opened()
    with pytest.raises(serfer.InputError, match=r"image\.tif was changed since its windows were made"):
        one.run()
    assert serfer.windows(image, plans["unet"]).passes[0][0].run().number == 0
    image.unlink()
    with pytest.raises(serfer.InputError, match=r"image\.tif (does not exist|was changed)"):
        one.run()


def test_values_that_are_not_finite_are_refused_by_their_window(plans):
    window = serfer.windows((64, 80), plans["plain"])[-1]
    given = np.full((3, window.reads.rows.size, window.reads.cols.size), np.nan, np.float32)
    with pytest.raises(serfer.InputError, match=rf"window {window.number}, from row \d+ and column \d+: .* NaN"):
        window.compute(given)
    for value in ("nan", float("nan")):
        assert np.isnan(serfer.windows((64, 80), plans["plain"], no_data=value)[-1].compute(given)).all()


def test_options_of_a_plan_are_refused_where_windows_and_maps_take_theirs(plans):
    for ask in (serfer.windows, serfer.map, serfer.map_many):
        with pytest.raises(serfer.UsageError, match=r"give network=serfer\.MapNetwork\(NETWORK, memory_mb=\.\.\.\)"):
            ask("image.tif", network=plans["plain"], memory_mb=1769)


@pytest.mark.hostile
@pytest.mark.parametrize(
    "change",
    [lambda _: [], lambda value: value | {"more": 1}, lambda value: value | {"number": "0"}, lambda _: {},
     lambda value: value | {"writes": [[0, 1]]}],
)  # fmt: skip
def test_json_that_is_no_window_is_refused(plans, change):
    value = json.loads(serfer.windows(SIZE, plans["gated"])[0].to_json())
    with pytest.raises(serfer.InputError):
        serfer.MapWindow.from_json(json.dumps(change(value)))


@pytest.mark.hostile
@pytest.mark.parametrize("text", ["", "[" * 100_000, "1" * (2 << 20), None, "nan"])
def test_text_that_is_no_json_is_refused(text):
    with pytest.raises(serfer.InputError):
        serfer.MapWindow.from_json(text)


@pytest.mark.exact
@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.weekly)])
def test_processes_of_concurrent_futures_compute_windows(plans, tmp_path, start):
    image = write(tmp_path / "image.tif", pixels(*SIZE))
    windows = serfer.windows(image, plans["gated"])
    windows.passes[0][0].run()  # what this process has open is not the others'
    with ProcessPoolExecutor(2, mp_context=get_context(start)) as pool:
        statistics = serfer.combine(pool.map(serfer.MapWindow.run, windows.passes[0]))
        parts = [*pool.map(serfer.MapWindow.run, windows, [statistics] * len(windows))]
    for part, window in zip(parts, windows, strict=True):
        np.testing.assert_array_equal(part, window.run(statistics))


@pytest.mark.exact
@pytest.mark.parametrize("name", ["gated", "outputs"])
def test_groups_have_each_window_once_and_share_no_chunk(plans, name):
    windows = serfer.windows(SIZE, plans[name])
    groups = windows.groups()
    assert sorted(window.number for group in groups for window in group) == [*range(len(windows))]
    for place, (_, rows, cols) in enumerate(windows.chunks):
        writers = {}
        for number, group in enumerate(groups):
            for window in group:
                rect = window.writes[place]
                for row in range(rect.rows.start // rows, -(-rect.rows.stop // rows)):
                    for col in range(rect.cols.start // cols, -(-rect.cols.stop // cols)):
                        assert writers.setdefault((row, col), number) == number
    assert len(groups) == len(windows)  # of these plans


def test_windows_of_uneven_ends_are_grouped():
    even, uneven = Axis((0, 32, 64, 77)), Axis((0, 32, 64, 75, 90))
    assert _runs([even]) == [[0], [1], [2]]
    assert _runs([uneven]) == [[0], [1], [2, 3]]
    assert _runs([Axis((0, 20, 52, 84))]) == [[0, 1, 2]]


@pytest.mark.parametrize("array", [np.zeros((3, 48, 48)), None, 7, (48, 48)])
def test_map_of_what_is_no_lazy_array_is_refused(plans, array):
    with pytest.raises(serfer.UsageError, match="a map is of a file"):
        serfer.map(array, plans["plain"])
    with pytest.raises(serfer.UsageError, match="leave out and options out"):
        serfer.map(array, plans["plain"], "out.tif")
