"""Parts of a result: whole or not there, whatever stops the process that writes them."""

import errno
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.core.errors import AlteredPieceError, InputError, UnavailableError, UsageError
from serfer.core.geometry import Rect, Span
from serfer.core.zarr import Axis, ChunkedArray
from serfer.raster import ResultParts
from tests.raster.files import pixels
from tests.results.stored import array_of, dense

JOB = {"plan": "abc", "image": {"size": [90, 70], "bytes": 12}, "windows": 64}
DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "float64")


def array(count=10, channels=3, dtype="uint8", size=(20, 30)):
    """Return an array of `count` parts of a size, one below the other."""
    return array_of("scores", dense(channels, size[0] * count, size[1], dtype), 1, (count, 1))


def parts_of(tmp_path, identity=None, count=10, **form):
    return ResultParts.create_or_resume(tmp_path / "result.tif.parts", identity or JOB, array(count, **form))


def values_of(parts, number):
    rows = Span(0, parts.rects[number].rows.size)
    return np.stack([parts.rows(number, channel, rows) for channel in range(parts.array.channels)])


def filled(tmp_path, numbers=(0, 3, 7)):
    with parts_of(tmp_path) as parts:
        for number in numbers:
            parts.put(number, pixels(20, 30, seed=number))
    return tmp_path / "result.tif.parts"


def path_of(folder, number):
    return folder / f"c.0.0.{number}.0"


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_was_put_is_there_for_the_next_process_too(tmp_path, dtype):
    values, form = pixels(21, 30, 4, dtype)[:, ::2], {"channels": 4, "dtype": dtype, "size": (11, 30)}
    if np.dtype(dtype).kind == "f":
        values[0, 0, :4] = np.nan, np.inf, -np.inf, -0.0
    with parts_of(tmp_path, **form) as parts:
        assert parts.done() == set()
        parts.put(3, values)  # strided
        np.testing.assert_array_equal(values_of(parts, 3), values)
    with parts_of(tmp_path, **form) as parts:
        assert parts.done() == {3}
        assert values_of(parts, 3).dtype == values.dtype
        assert values_of(parts, 3).tobytes() == values.tobytes()  # NaN and -0.0, too
        np.testing.assert_array_equal(parts.rows(3, 2, Span(4, 9)), values[2, 4:9])


def test_parts_are_chunks_of_an_array_that_zarr_opens(tmp_path):
    values, described = pixels(7, 8, 2, "int16"), array_of("classes", dense(2, 7, 8, "int16"), 1, (3, 2))
    with ResultParts.create_or_resume(tmp_path / "parts", JOB, described) as parts:
        for number, rect in enumerate(parts.rects):
            parts.put(number, values[:, *rect.slices])
        assert (tmp_path / "parts").stat().st_mode & 0o777 == 0o700
        stored = zarr.open_array(tmp_path / "parts", mode="r")
        assert (stored.shape, stored.chunks, stored.attrs["job"]) == ((1, 2, 9, 8), (1, 2, 3, 4), JOB)
        rows = [0, 1, 2, 3, 4, 6, 7]  # of 3, 3 and 3, of which 3, 2 and 2 are the result's
        np.testing.assert_array_equal(stored[:][0, :, rows].transpose(1, 0, 2), values)


@pytest.mark.two_at_once
def test_several_threads_put_at_once(tmp_path):
    with parts_of(tmp_path, count=40) as parts:
        with ThreadPoolExecutor(8) as threads:
            [*threads.map(lambda number: parts.put(number, pixels(20, 30, seed=number)), range(40))]
        assert parts.done() == {*range(40)}
    with parts_of(tmp_path, count=40) as parts:
        assert parts.done() == {*range(40)}
        assert parts.verify() == set()


@settings(max_examples=50)
@given(data=st.data())
def test_a_part_that_is_cut_longer_or_altered_anywhere_is_noticed(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("parts")
    with parts_of(folder, count=2, size=(5, 6)) as parts:
        parts.put(0, pixels(5, 6))
        path = path_of(parts.directory, 0)
        part = path.read_bytes()
        kind = data.draw(st.sampled_from(["cut", "longer", "altered", "garbage"]))
        where = data.draw(st.integers(0, len(part) - 1))
        changed = {
            "cut": part[:where],
            "longer": part + bytes(where + 1),
            "altered": part[:where] + bytes([part[where] ^ data.draw(st.integers(1, 255))]) + part[where + 1 :],
            "garbage": data.draw(st.binary(max_size=300)),
        }[kind]
        path.write_bytes(changed)
        assert parts.verify() == {0, 1}
        assert not path.exists()


@pytest.mark.hostile
@pytest.mark.parametrize("damage", ["cut", "altered", "empty", "gone"])
def test_a_damaged_part_is_deleted_and_missing_after_a_resume(tmp_path, damage):
    folder = filled(tmp_path)
    harm(path_of(folder, 3), damage)
    with parts_of(tmp_path) as parts:
        assert parts.done() == {0, 7}
        assert not path_of(folder, 3).exists()


@pytest.mark.hostile
@pytest.mark.parametrize("damage", ["empty", "gone"])
def test_a_part_that_is_damaged_while_a_process_reads_is_missing_from_then_on(tmp_path, damage):
    folder = filled(tmp_path)
    with parts_of(tmp_path) as parts:
        harm(path_of(folder, 3), damage)
        with pytest.raises(AlteredPieceError, match=r"part 3 .* run the same command again"):
            parts.rows(3, 0, Span(0, 20))
        assert parts.done() == {0, 7}


@pytest.mark.hostile
@pytest.mark.parametrize("damage", ["cut", "altered", "empty", "gone"])
def test_a_part_that_is_damaged_while_a_process_works_is_missing_once_all_are_verified(tmp_path, damage):
    folder = filled(tmp_path)
    with parts_of(tmp_path) as parts:
        harm(path_of(folder, 3), damage)
        harm(path_of(folder, 7), damage)
        assert parts.verify() == {*range(10)} - {0}
        parts.put(3, pixels(20, 30, seed=3))
        assert parts.done() == {0, 3}


def harm(path, damage):
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        changed = {"cut": data[:-3], "empty": b"", "altered": data[:200] + bytes([data[200] ^ 1]) + data[201:]}[damage]
        path.write_bytes(changed)


@pytest.mark.killed
def test_what_a_killed_process_began_is_deleted(tmp_path):
    folder = filled(tmp_path)
    (folder / ".c.0.0.5.0.part").write_bytes(path_of(folder, 3).read_bytes()[:100])
    (folder / ".zarr.json.part").write_bytes(b"{")
    with parts_of(tmp_path) as parts:
        assert parts.done() == {0, 3, 7}
        assert not [path for path in folder.iterdir() if path.name.endswith(".part")]


MANY = array(2_000, 3, "int32", (300, 300))
KILLED = """
import sys, numpy as np
from pathlib import Path
from serfer.raster import ResultParts
from tests.results.stored import array_of, dense
many = array_of("scores", dense(3, 600_000, 300, "int32"), 1, (2_000, 1))
with ResultParts.create_or_resume(Path(sys.argv[1]), {"job": 1}, many) as parts:
    number = len(parts.done())
    print("ready", flush=True)
    while True:
        parts.put(number, np.full((3, 300, 300), number, np.int32))
        number += 1
"""


@pytest.mark.killed
def test_a_process_that_is_killed_while_it_writes_leaves_whole_parts_only(tmp_path):
    folder, before = tmp_path / "parts", 0
    for wanted in (3, 5, 8):
        process = subprocess.Popen([sys.executable, "-c", KILLED, folder], stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"ready\n"
        while not path_of(folder, wanted + before).exists():
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.communicate()
        with ResultParts.create_or_resume(folder, {"job": 1}, MANY) as parts:
            done = parts.done()
            assert done == {*range(len(done))}
            assert wanted + before in done
            for number in done:
                assert (values_of(parts, number) == number).all()
        before = len(done)


def test_parts_in_use_are_refused_until_they_are_closed(tmp_path):
    with parts_of(tmp_path), pytest.raises(UnavailableError, match="is in use by another process"):
        parts_of(tmp_path)
    parts_of(tmp_path).close()


@pytest.mark.parametrize(
    ("identity", "count", "match"),
    [
        ({**JOB, "plan": "xyz"}, 10, 'plan was "abc", and is "xyz" now'),
        ({**JOB, "image": {"size": [90, 71], "bytes": 12}}, 10, r"image.size was \[90, 70\], and is \[90, 71\] now"),
        ({**JOB, "extra": 1}, 10, "extra is not there"),
        ({"plan": "abc", "windows": 64}, 10, "image is there"),
        (JOB, 11, r"attributes.serfer.dims was \[3, 200, 30\], and is \[3, 220, 30\] now"),
    ],
)
def test_another_job_is_refused_by_the_field_that_differs(tmp_path, identity, count, match):
    folder = filled(tmp_path)
    with pytest.raises(InputError, match=match) as caught:
        parts_of(tmp_path, identity, count)
    assert str(folder) in str(caught.value)
    with parts_of(tmp_path) as parts:
        assert parts.done() == {0, 3, 7}


@pytest.mark.hostile
@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "nothing", "\udcff"])
def test_a_damaged_job_is_refused(tmp_path, text):
    folder = filled(tmp_path)
    (folder / "zarr.json").write_text(text, errors="surrogateescape")
    with pytest.raises(InputError, match=r"zarr.json"):
        parts_of(tmp_path)


def test_a_directory_of_something_else_is_left_alone(tmp_path):
    folder = tmp_path / "result.tif.parts"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match=r"it holds 'thesis.txt'"):
        parts_of(tmp_path)
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("place", ["file", "file/parts", "none/parts", "a\0b"])
def test_a_place_that_cannot_be_a_directory_is_refused(tmp_path, place):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot hold the parts"):
        ResultParts.create_or_resume(tmp_path / place, JOB, array(3))


def test_removing_deletes_all_that_is_ours_and_nothing_else(tmp_path):
    folder = filled(tmp_path)
    with parts_of(tmp_path) as parts:
        parts.remove()
    assert not folder.exists()
    filled(tmp_path)
    with parts_of(tmp_path) as parts:
        (folder / "notes.txt").write_text("mine")
        parts.remove()
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_wrong_numbers_and_values_are_refused(tmp_path):
    with parts_of(tmp_path) as parts:
        for number in (-1, 10):
            with pytest.raises(UsageError, match="there is no part"):
                parts.put(number, pixels(2, 2))
        for values in (np.zeros((2, 2)), pixels(20, 30, 3, "int8"), pixels(20, 30, 2), np.zeros((3, 20, 30), object)):
            with pytest.raises(UsageError, match=r"part 0 is uint8 of \(3, 20, 30\)"):
                parts.put(0, values)
        assert parts.done() == set()
    with pytest.raises(UsageError, match="is closed"):
        parts.put(0, pixels(2, 2))
    for form in ({"dtype": "bool"}, {"dtype": "int64"}):
        with pytest.raises(UsageError, match="a result is of"):
            parts_of(tmp_path, **form)


def test_a_full_disk_says_what_is_kept_and_keeps_it(tmp_path, monkeypatch):
    real, room = os.fsync, [3]

    def fsync(number):
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(number)

    monkeypatch.setattr(os, "fsync", fsync)
    with parts_of(tmp_path, count=4) as parts:
        parts.put(2, pixels(20, 30))
        room[0] = 0
        for _ in range(2):
            with pytest.raises(UnavailableError, match=r"no room .* 1 of 4 parts are kept there; .* it resumes"):
                parts.put(1, pixels(20, 30))
        assert parts.done() == {2}
        room[0] = 1
        parts.put(1, pixels(20, 30))
    with parts_of(tmp_path, count=4) as parts:
        assert parts.done() == {1, 2}
        assert json.loads((parts.directory / "zarr.json").read_text())["attributes"]["job"] == JOB


FULL = """
import resource, signal, sys, numpy as np
from pathlib import Path
from serfer.core.errors import UnavailableError
from serfer.raster import ResultParts
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
from tests.results.stored import array_of, dense
array = array_of("scores", dense(1, 3_000, 300, "uint8"), 1, (10, 1))
with ResultParts.create_or_resume(Path(sys.argv[1]), {"job": 1}, array) as parts:
    parts.put(0, np.zeros((1, 300, 300), np.uint8))
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
    try:
        parts.put(1, np.zeros((1, 300, 300), np.uint8))
    except UnavailableError as error:
        print(error)
"""


def test_a_write_that_really_ends_in_the_middle_leaves_nothing(tmp_path):
    done = subprocess.run([sys.executable, "-c", FULL, tmp_path / "parts"], capture_output=True, text=True, check=True)
    assert "1 of 10 parts are kept there" in done.stdout
    assert "ulimit -f" in done.stdout
    assert "no room" not in done.stdout
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == ["c.0.0.0.0", "lock", "zarr.json"]


def test_a_directory_without_parts_is_gone_with_its_process(tmp_path):
    with parts_of(tmp_path, count=4) as parts:
        directory = parts.directory
        assert directory.exists()
    assert not directory.exists()
    with pytest.raises(RuntimeError), parts_of(tmp_path, count=4):
        raise RuntimeError
    assert not directory.exists()
    with parts_of(tmp_path, count=4):
        (directory / "note.txt").touch()
    assert [path.name for path in directory.iterdir()] == ["note.txt"]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=4), st.lists(st.integers(1, 7), min_size=1, max_size=4), st.data()
)
def test_a_rectangle_is_read_of_the_parts_in_which_it_lies(tmp_path_factory, heights, widths, data):
    rows, cols = (Axis((0, *np.cumsum(sizes).tolist())) for sizes in (heights, widths))
    whole = np.random.default_rng(0).standard_normal((2, rows.size, cols.size)).astype(np.float32)
    form = ChunkedArray("kept", "float32", whole.shape, 1, 2, rows, cols, flat=False)
    spans = []
    for axis in (rows, cols):
        start = data.draw(st.integers(0, axis.size - 1))
        spans.append(Span(start, data.draw(st.integers(start + 1, axis.size))))
    area = Rect(*spans)
    with ResultParts.create_or_resume(tmp_path_factory.mktemp("area") / "parts", JOB, form) as parts:
        for number, rect in enumerate(parts.rects):
            parts.put(number, np.ascontiguousarray(whole[:, *rect.slices]))
        np.testing.assert_array_equal(parts.area(area), whole[:, *area.slices])
        first = next(number for number, rect in enumerate(parts.rects) if rect.overlap(area))
        parts.path(first).write_bytes(parts.path(first).read_bytes()[:-1])
        with pytest.raises(AlteredPieceError):
            parts.area(area)
        assert first not in parts.done()
