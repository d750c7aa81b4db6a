"""`serfer map` stopped anywhere goes on where it was; what is not its own is refused, nothing half-written counts."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import numpy as np
import pytest
import rasterio

from serfer.core.errors import UnavailableError
from serfer.raster import ResultParts
from serfer.raster.durable import TEMPORARY
from tests.mapping.plans import HEIGHT, WIDTH, assert_equal, expected, make_map_plan, read
from tests.raster.files import UTM, WHERE, pixels, write

SLOW = """
import sys, time
from serfer.raster import ResultParts
put = ResultParts.put
def slow(self, number, values):
    put(self, number, values)
    time.sleep(0.2)
ResultParts.put = slow
from serfer.cli.main import main
main()
"""


def start(command):
    """Start the command as a process that takes a fifth of a second for each part."""
    arguments = [sys.executable, "-c", SLOW, *map(str, command), "--set", "concurrency=1"]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_parts(process, directory, count):
    while len([*directory.glob("c.*")]) < count:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def stop_with_parts(command, directory, count, number=signal.SIGKILL):
    """Run a command, end it by a signal when a directory has so many parts, and return what it has complained of."""
    process = start(command)
    wait_for_parts(process, directory, count)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == (130 if number == signal.SIGINT else -number), errors
    return " ".join(errors.split())


@pytest.mark.killed
def test_a_map_that_was_killed_and_interrupted_goes_on_to_the_same_pixels_and_georeference(serfer, command, tmp_path):
    parts = tmp_path / "result.tif.parts"
    stop_with_parts(command, parts, 3)
    assert not (tmp_path / "result.tif").exists()
    errors = stop_with_parts(command, parts, 6, signal.SIGINT)
    assert errors.endswith("serfer: interrupted")
    assert "result.tif.parts: run the same command again, it resumes" in errors
    assert not (tmp_path / "result.tif").exists()
    report = serfer(*command, "--json").report
    assert report["resumed"] >= 6
    assert report["resumed"] + report["computed"] == 20
    assert_equal(read(tmp_path / "result.tif"), expected(pixels(HEIGHT, WIDTH)))
    with rasterio.open(tmp_path / "result.tif") as dataset:
        assert (dataset.crs, dataset.transform) == (rasterio.CRS.from_string(UTM), WHERE)
    assert not parts.exists()


@pytest.mark.killed
def test_one_killed_between_its_result_and_the_end_is_found_done(serfer, command, tmp_path, monkeypatch):
    monkeypatch.setattr(ResultParts, "remove", lambda _: None)
    assert serfer(*command).code == 0
    monkeypatch.undo()
    before = (tmp_path / "result.tif").read_bytes()
    assert (tmp_path / "result.tif.parts").exists()
    report = serfer(*command, "--json").report
    assert (report["resumed"], report["computed"]) == (20, 0)
    assert (tmp_path / "result.tif").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["image.tif", "result.tif"]


@pytest.mark.killed
def test_one_killed_while_it_deletes_its_parts_is_found_done(serfer, command, tmp_path, monkeypatch):
    def killed(parts):
        for path in sorted(parts.directory.glob("c.*"))[:5]:
            path.unlink()

    monkeypatch.setattr(ResultParts, "remove", killed)
    assert serfer(*command).code == 0
    monkeypatch.undo()
    report = serfer(*command, "--json").report
    assert (report["resumed"], report["computed"]) == (20, 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["image.tif", "result.tif"]
    monkeypatch.setattr(ResultParts, "remove", killed)
    assert serfer(*command, "--overwrite").code == 0
    monkeypatch.undo()
    (tmp_path / "result.tif").unlink()
    assert serfer(*command, "--json").report["computed"] == 5
    assert_equal(read(tmp_path / "result.tif"), expected(pixels(HEIGHT, WIDTH)))


@pytest.mark.killed
def test_one_killed_at_any_point_computes_what_is_lacking_alone(serfer, command, tmp_path, monkeypatch):
    """A kill leaves any parts, and of others what has not got its name yet; a disk may leave any bytes of a part."""
    monkeypatch.setattr(ResultParts, "remove", lambda _: None)
    assert serfer(*command).code == 0
    random = np.random.default_rng(0)
    for _ in range(3):
        (tmp_path / "result.tif").unlink()
        paths = sorted((tmp_path / "result.tif.parts").glob("c.*"))
        lacking = random.choice(paths, random.integers(1, len(paths) + 1), replace=False)
        for number, path in enumerate(lacking):
            kept = path.read_bytes()[: random.integers(path.stat().st_size)]
            path.unlink()
            if number % 3:
                (path if number % 3 == 1 else path.with_name(f".{path.name}{TEMPORARY}")).write_bytes(kept)
        report = serfer(*command, "--json").report
        assert (report["resumed"], report["computed"]) == (20 - len(lacking), len(lacking))
        assert_equal(read(tmp_path / "result.tif"), expected(pixels(HEIGHT, WIDTH)))


@pytest.mark.parametrize("name", ["image.tif", "../{folder}/image.tif", "link.tif", "hard.tif"])
def test_a_result_never_replaces_its_own_image(serfer, command, image, tmp_path, name):
    (tmp_path / "link.tif").symlink_to(image)
    (tmp_path / "hard.tif").hardlink_to(image)
    before = image.read_bytes()
    out = tmp_path / name.format(folder=tmp_path.name)
    serfer(*command, "--out", out, "--overwrite").ends(2, "would replace its image")
    assert image.read_bytes() == before


def test_an_image_that_was_never_read_may_be_replaced_by_another(serfer, command, image, tmp_path):
    good = image.read_bytes()
    image.write_bytes(good[:3000])
    assert serfer(*command).code in {1, 3}
    image.write_bytes(good)
    serfer(*command).ends(0)
    assert_equal(read(tmp_path / "result.tif"), expected(pixels(HEIGHT, WIDTH)))


@pytest.fixture
def begun(command, before_part, serfer, tmp_path):
    before_part(7, UnavailableError(f"no room in {tmp_path}/result.tif.parts: 7 of 20 parts are kept there"))
    return serfer(*command, "--set", "concurrency=1")


def test_a_full_disk_keeps_what_is_done(serfer, command, begun, tmp_path):
    assert begun.code == 4
    assert begun.err.count("7 of 20") == 1
    assert not (tmp_path / "result.tif").exists()
    assert serfer(*command, "--json").report["resumed"] == 7


@pytest.fixture
def disk(tmp_path):
    """A disk of its own, of eight megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["/bin/mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place]
    if os.geteuid() or subprocess.run(mount, check=False).returncode:
        pytest.skip("a file system cannot be mounted here")
    yield place
    subprocess.run(["/bin/umount", place], check=True)


def test_a_disk_that_is_really_full_at_nine_tenths_keeps_them_and_the_map_goes_on(serfer, command, disk, before_part):
    def fill():
        with (disk / "others").open("wb", buffering=0) as others, suppress(OSError):
            while True:
                others.write(bytes(1 << 12))

    out = disk / "result.tif"
    before_part(18, fill)
    serfer(*command, "--out", out, "--set", "concurrency=1").ends(4, "18 of 20")
    assert sorted(path.name for path in disk.iterdir()) == ["others", "result.tif.parts"]
    assert serfer(*command, "--out", out).code == 4
    assert not out.exists()
    (disk / "others").unlink()
    report = serfer(*command, "--out", out, "--json").ends(0).report
    assert (report["resumed"], report["computed"]) == (18, 2)
    assert_equal(read(out), expected(pixels(HEIGHT, WIDTH)))
    assert [path.name for path in disk.iterdir()] == ["result.tif"]


@pytest.mark.parametrize("how", ["deleted", "cut"])
def test_an_image_that_is_gone_half_way_makes_no_result_and_its_windows_are_kept(
    serfer, command, image, how, tmp_path, before_part
):
    whole, times = image.read_bytes(), image.stat()
    before_part(9, image.unlink if how == "deleted" else lambda: os.truncate(image, 900))
    stopped = serfer(*command, "--set", "concurrency=1")
    assert stopped.code in {1, 3}
    assert "image.tif" in stopped.err
    assert not (tmp_path / "result.tif").exists()
    image.write_bytes(whole)
    os.utime(image, ns=(times.st_atime_ns, times.st_mtime_ns))
    report = serfer(*command, "--restart", "--json").report
    assert report["computed"] == 20
    assert_equal(read(tmp_path / "result.tif"), expected(pixels(HEIGHT, WIDTH)))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (["--set", "full_scale=100"], "options.full_scale was null, and is 100.0 now"),
        (["--no-data", "3"], 'options.no_data was "auto", and is "3.0" now'),
        (["--bands", "3,2,1"], "options.bands was [], and is [3, 2, 1] now"),
    ],
)
def test_another_option_on_resume_is_refused_by_its_name(serfer, command, begun, changed, named):
    del begun
    serfer(*command, *changed).ends(3, named)


def test_another_image_or_plan_on_resume_is_refused_and_can_start_over(serfer, command, image, begun, tmp_path):
    del begun
    make_map_plan(tmp_path / "other", rows=(4,), cols=(5, 6))
    serfer(*command, "--plan", tmp_path / "other").ends(3, "plan was")
    write(image, pixels(HEIGHT, WIDTH, seed=5))
    os.utime(image, ns=(1, 1))
    serfer(*command).ends(3, "image.")
    report = serfer(*command, "--restart", "--json").report
    assert (report["resumed"], report["computed"]) == (0, 20)
    assert_equal(read(tmp_path / "result.tif"), expected(pixels(HEIGHT, WIDTH, seed=5)))
