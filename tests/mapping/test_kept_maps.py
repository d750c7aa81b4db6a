"""`serfer map` with passes that keep maps for later ones: the same result by less work, whatever happens in between."""

import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import serfer as package
from serfer.core.errors import PlanError
from serfer.core.geometry import Span
from serfer.core.plan.windows_validation import check_windows
from serfer.plan_directory import load_plan
from tests.mapping.networks import run
from tests.mapping.plans import PREPROCESS, assert_equal, normal, read
from tests.mapping.test_resume import start, stop_with_parts, wait_for_parts
from tests.mapping.test_statistics import HEIGHT, WIDTH, WINDOWS, Network, command_of, image_of, unet
from tests.raster.files import pixels

PASSES = 4


def with_the_image(path):
    """A network whose last convolution reads a normalised map beside the image."""
    net = Network()
    x = net.op("Relu", net.group_norm(net.conv(net.op("Relu", net.conv("image", 3, 6)), 6, 6), 6))
    return net.conv(net.op("Concat", x, "image", axis=1), 9, 2), net.save(path)


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    place = tmp_path_factory.mktemp("kept")
    files = {name: make(place / f"{name}.onnx")[1] for name, make in (("unet", unet), ("image", with_the_image))}
    for name, file in files.items():
        given = {"window": 32, "preprocess": PREPROCESS, "statistics": "exact", "kept_maps": "always"}
        package.map_plan(file, [(HEIGHT, WIDTH)], place / name, **given)
    return {name: (file, place / name) for name, file in files.items()}


@pytest.fixture
def command(networks, tmp_path):
    return command_of(image_of(tmp_path), networks["unet"][1], tmp_path)


@pytest.fixture
def whole(networks):
    """The result that the U-Net should have."""
    return run(networks["unet"][0], normal(pixels(HEIGHT, WIDTH)))[0]


def assert_only_the_result_is_left(tmp_path):
    assert sorted(path.name for path in tmp_path.iterdir()) == ["image.tif", "result.tif"]


def test_a_map_computes_each_layer_once_and_deletes_what_it_kept(serfer, command, whole, tmp_path):
    before = serfer(*command, "--dry-run")
    assert f"{PASSES} passes over the image, 1.0" in before.out
    assert re.search(rf"take up to [\d,]+ bytes in {re.escape(str(tmp_path))}$", before.out, re.MULTILINE)
    assert not [*tmp_path.glob("result*")]
    report = serfer(*command, "--json").report
    assert report["computed"] == PASSES * WINDOWS
    assert_equal(read(tmp_path / "result.tif"), whole)
    assert_only_the_result_is_left(tmp_path)


def test_a_section_reads_the_image_beside_kept_maps(report_of, networks, tmp_path):
    file, plan = networks["image"]
    assert load_plan(plan).windows.reads == (0, -1)
    values = np.maximum(pixels(HEIGHT, WIDTH), 1)
    values[:, :70, :90] = 0
    report = report_of(*command_of(image_of(tmp_path, values, nodata=0), plan, tmp_path))
    assert report["no_data_pixels"] == 70 * 90
    result, there = read(tmp_path / "result.tif"), (values != 0).any(0)
    assert np.isnan(result[:, ~there]).all()
    assert_equal(result[:, there], run(file, normal(values, missing=~there))[0][:, there])


@pytest.mark.killed
def test_a_map_that_was_killed_in_a_pass_goes_on_with_the_maps_that_were_kept(serfer, command, whole, tmp_path):
    process = start(command)
    wait_for_parts(process, tmp_path / "result.tif.parts.kept-2", 3)
    serfer(*command).ends(4, "in use by another process")
    process.kill()
    process.communicate()
    stop_with_parts(command, tmp_path / "result.tif.parts.pass-3", 3, signal.SIGINT)
    report = serfer(*command, "--json").report
    assert report["resumed"] >= 2 * WINDOWS + 3
    assert report["resumed"] + report["computed"] == PASSES * WINDOWS
    assert_equal(read(tmp_path / "result.tif"), whole)
    assert_only_the_result_is_left(tmp_path)


def test_kept_maps_that_are_not_whole_are_computed_again(serfer, command, whole, tmp_path):
    stop_with_parts(command, tmp_path / "result.tif.parts.pass-2", 3)
    altered, cut, gone = (tmp_path / "result.tif.parts.kept-1" / f"c.0.0.1.{col}" for col in range(3))
    data = bytearray(altered.read_bytes())
    data[100] ^= 1
    altered.write_bytes(data)
    cut.write_bytes(cut.read_bytes()[:-5])
    gone.unlink()
    report = serfer(*command, "--json").report
    assert report["resumed"] + report["computed"] == PASSES * WINDOWS
    assert report["resumed"] >= WINDOWS - 3 + 3
    assert_equal(read(tmp_path / "result.tif"), whole)


def test_kept_maps_of_another_image_are_never_read(serfer, networks, command, tmp_path, tmp_path_factory):
    work = tmp_path_factory.mktemp("work")
    command = (*command, "--set", f"work={work}")
    stop_with_parts(command, tmp_path / "result.tif.parts.pass-2", 1)
    assert [*work.glob("result.tif.parts.*.kept-1/c.*")]
    assert not [*tmp_path.glob("*kept*")]
    other = pixels(HEIGHT, WIDTH)[:, ::-1].copy()
    image_of(tmp_path, other)
    for number in (1, 2):
        shutil.rmtree(tmp_path / f"result.tif.parts.pass-{number}")
    refused = serfer(*command).ends(3)
    assert re.search(rf"{work}/\S+kept-1 holds the parts of another job: image", refused.err)
    assert serfer(*command, "--restart").code == 0
    assert_equal(read(tmp_path / "result.tif"), run(networks["unet"][0], normal(other))[0])
    assert_only_the_result_is_left(tmp_path)
    assert not [*work.iterdir()]


def test_a_folder_of_work_that_is_not_there_is_refused(serfer, command, tmp_path):
    for more in ((), ("--dry-run",)):
        serfer(*command, "--set", f"work={tmp_path}/none", *more).ends(3, f"work {tmp_path}/none is not a folder")


def test_a_folder_of_work_that_has_no_use_is_named(serfer, networks, tmp_path):
    plan = tmp_path / "plan"
    given = {"window": 32, "preprocess": PREPROCESS, "statistics": "exact", "kept_maps": "never"}
    package.map_plan(networks["unet"][0], [(HEIGHT, WIDTH)], plan, **given)
    done = serfer(*command_of(image_of(tmp_path), plan, tmp_path), "--set", f"work={tmp_path}", "--dry-run")
    done.ends(0, "the plan keeps no maps between passes")


def test_map_whose_kept_maps_find_no_room_does_not_start(serfer, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    relative = [part.name if isinstance(part, Path) and part.parent == tmp_path else part for part in command]
    planned = serfer(*relative, "--dry-run", "--json").report
    assert planned["kept_where"] == str(tmp_path)
    free = planned["kept_bytes"] + 100_000  # for all kept maps, but not for the result's parts as well
    monkeypatch.setattr("serfer.mapping.kept_maps.shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    serfer(*command).ends(
        4,
        f"take {planned['kept_bytes']:,} bytes more in",
        f"parts of the result 163,920, and its disk has {free:,} free: make room, name a folder",
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["image.tif"]


def changed(windows, number, **given):
    """Windows of which one pass is another."""
    passes = [*windows.passes]
    passes[number] = replace(passes[number], **given)
    return replace(windows, passes=tuple(passes))


def moved(windows):
    """Windows of which one keeps a row less than the next one begins at."""
    [axis], first = windows.passes[0].heights, windows.passes[0].heights[0].windows[0]
    kept = Span(first.keeps[0].start, first.keeps[0].stop - 1)
    axis = replace(axis, windows=(replace(first, keeps=(kept,)), *axis.windows[1:]))
    return changed(windows, 0, heights=(axis,))


@pytest.mark.parametrize(
    "change",
    [
        lambda windows: replace(windows, reads=(99,)),
        lambda windows: replace(windows, reads=()),
        lambda windows: replace(windows, reads=(-1,)),
        lambda windows: replace(windows, reads=(*windows.reads, *windows.reads)),
        lambda windows: changed(windows, 0, reads=(0,)),
        lambda windows: changed(windows, 1, keeps=()),
        lambda windows: changed(windows, 1, heights=windows.passes[0].heights),
        lambda windows: changed(windows, 0, keeps=(replace(windows.kept[0], channels=7),)),
        lambda windows: changed(windows, 0, keeps=(replace(windows.kept[0], channels=-1),)),
        moved,
    ],
)
def test_a_plan_whose_kept_maps_cannot_be_is_refused(networks, change):
    plan = load_plan(networks["unet"][1])
    check_windows(plan, plan.windows)
    with pytest.raises(PlanError, match=r"plan\.json"):
        check_windows(plan, change(plan.windows))
