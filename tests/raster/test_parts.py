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
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.core.errors import AlteredPieceError, InputError, UnavailableError, UsageError
from serfer.core.geometry import Span
from serfer.raster import ResultParts
from serfer.raster.results.part_file import read_part, verify_part, write_part
from tests.raster.files import pixels

JOB = {"plan": "abc", "image": {"size": [90, 70], "bytes": 12}, "windows": 64}
DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "float64")


def parts_of(tmp_path, identity=None, count=10):
    return ResultParts.create_or_resume(tmp_path / "result.tif.parts", identity or JOB, count)


def filled(tmp_path, numbers=(0, 3, 7)):
    with parts_of(tmp_path) as parts:
        for number in numbers:
            parts.put(number, pixels(20, 30, seed=number))
    return tmp_path / "result.tif.parts"


def path_of(folder, number):
    return folder / f"{number:08d}.values"


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_was_put_is_got_by_the_next_process_too(tmp_path, dtype):
    values = pixels(21, 30, 4, dtype)
    with parts_of(tmp_path) as parts:
        assert parts.done() == set()
        parts.put(3, values[:, ::2])  # strided
        np.testing.assert_array_equal(parts.get(3), values[:, ::2])
    with parts_of(tmp_path) as parts:
        assert parts.done() == {3}
        assert parts.get(3).dtype == values.dtype
        np.testing.assert_array_equal(parts.get(3), values[:, ::2])
        np.testing.assert_array_equal(parts.rows(3, 2, Span(4, 9)), values[2, ::2][4:9])


def test_nan_and_infinity_are_kept_bit_by_bit(tmp_path):
    values = np.array([[[np.nan, np.inf, -np.inf, -0.0]]], "float32")
    with parts_of(tmp_path) as parts:
        parts.put(0, values)
        assert parts.get(0).tobytes() == values.tobytes()


def test_several_threads_put_at_once(tmp_path):
    with parts_of(tmp_path, count=40) as parts:
        with ThreadPoolExecutor(8) as threads:
            [*threads.map(lambda number: parts.put(number, pixels(20, 30, seed=number)), range(40))]
        assert parts.done() == {*range(40)}
    with parts_of(tmp_path, count=40) as parts:
        assert parts.done() == {*range(40)}
        assert parts.verify() == set()


@pytest.fixture(scope="module")
def part(tmp_path_factory):
    path = tmp_path_factory.mktemp("part") / "part"
    write_part(path, "key", pixels(5, 6))
    return path.read_bytes()


@settings(max_examples=200)
@given(data=st.data())
def test_a_part_that_is_cut_longer_or_altered_anywhere_is_noticed(part, tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "altered"
    kind = data.draw(st.sampled_from(["cut", "longer", "altered", "garbage"]))
    where = data.draw(st.integers(0, len(part) - 1))
    changed = {
        "cut": part[:where],
        "longer": part + bytes(where + 1),
        "altered": part[:where] + bytes([part[where] ^ data.draw(st.integers(1, 255))]) + part[where + 1 :],
        "garbage": data.draw(st.binary(max_size=300)),
    }[kind]
    path.write_bytes(changed)
    for read in (read_part, verify_part):
        with pytest.raises(AlteredPieceError, match="it is cut or altered"):
            read(path, "key")


def test_a_part_of_another_job_or_number_is_not_taken_for_ones_own(tmp_path):
    folder = filled(tmp_path)
    other = ResultParts.create_or_resume(tmp_path / "other", {"plan": "another"}, 10)
    with other:
        other.put(1, pixels(20, 30))
    path_of(tmp_path / "other", 1).replace(path_of(folder, 1))
    path_of(folder, 2).write_bytes(path_of(folder, 3).read_bytes())
    with parts_of(tmp_path) as parts:
        assert parts.done() == {0, 3, 7}


@pytest.mark.parametrize("damage", ["cut", "altered", "empty", "gone"])
def test_a_damaged_part_is_deleted_and_missing_after_a_resume(tmp_path, damage):
    folder = filled(tmp_path)
    harm(path_of(folder, 3), damage)
    with parts_of(tmp_path) as parts:
        assert parts.done() == {0, 7}
        assert not path_of(folder, 3).exists()


@pytest.mark.parametrize("damage", ["cut", "altered", "empty", "gone"])
def test_a_part_that_is_damaged_while_a_process_works_is_missing_from_then_on(tmp_path, damage):
    folder = filled(tmp_path)
    with parts_of(tmp_path) as parts:
        harm(path_of(folder, 3), damage)
        with pytest.raises(AlteredPieceError, match=r"part 3 .* run the same command again"):
            parts.get(3)
        assert parts.done() == {0, 7}
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


def test_what_a_killed_process_began_is_deleted(tmp_path):
    folder = filled(tmp_path)
    (folder / ".00000005.values.part").write_bytes(path_of(folder, 3).read_bytes()[:100])
    (folder / ".job.json.part").write_bytes(b"{")
    with parts_of(tmp_path) as parts:
        assert parts.done() == {0, 3, 7}
        assert not [path for path in folder.iterdir() if path.name.endswith(".part")]


KILLED = """
import sys, numpy as np
from pathlib import Path
from serfer.raster import ResultParts
with ResultParts.create_or_resume(Path(sys.argv[1]), {"job": 1}, 100000) as parts:
    number = len(parts.done())
    print("ready", flush=True)
    while True:
        parts.put(number, np.full((3, 700, 700), number, np.int32))
        number += 1
"""


def test_a_process_that_is_killed_while_it_writes_leaves_whole_parts_only(tmp_path):
    folder, before = tmp_path / "parts", 0
    for wanted in (3, 5, 8):
        process = subprocess.Popen([sys.executable, "-c", KILLED, folder], stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"ready\n"
        while not path_of(folder, wanted + before).exists():
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.communicate()
        with ResultParts.create_or_resume(folder, {"job": 1}, 100_000) as parts:
            done = parts.done()
            assert done == {*range(len(done))}
            assert wanted + before in done
            for number in done:
                assert (parts.get(number) == number).all()
        before = len(done)


def test_a_second_process_is_refused_until_the_first_ends(tmp_path):
    folder = tmp_path / "parts"
    with subprocess.Popen([sys.executable, "-c", KILLED, folder], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        with pytest.raises(UnavailableError, match="is in use by another process"):
            ResultParts.create_or_resume(folder, {"job": 1}, 100_000)
        process.kill()
    ResultParts.create_or_resume(folder, {"job": 1}, 100_000).close()


def test_parts_are_locked_within_a_process_too(tmp_path):
    with parts_of(tmp_path), pytest.raises(UnavailableError, match="is in use"):
        parts_of(tmp_path)
    parts_of(tmp_path).close()


@pytest.mark.parametrize(
    ("identity", "count", "match"),
    [
        ({**JOB, "plan": "xyz"}, 10, 'plan was "abc", and is "xyz" now'),
        ({**JOB, "image": {"size": [90, 71], "bytes": 12}}, 10, r"image.size was \[90, 70\], and is \[90, 71\] now"),
        ({**JOB, "extra": 1}, 10, "extra is not there"),
        ({"plan": "abc", "windows": 64}, 10, "image is there"),
        (JOB, 11, "parts was 10, and is 11 now"),
    ],
)
def test_another_job_is_refused_by_the_field_that_differs(tmp_path, identity, count, match):
    folder = filled(tmp_path)
    with pytest.raises(InputError, match=match) as caught:
        parts_of(tmp_path, identity, count)
    assert str(folder) in str(caught.value)
    with parts_of(tmp_path) as parts:
        assert parts.done() == {0, 3, 7}


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "nothing", "\udcff"])
def test_a_damaged_job_is_refused(tmp_path, text):
    folder = filled(tmp_path)
    (folder / "job.json").write_text(text, errors="surrogateescape")
    with pytest.raises(InputError, match=r"job.json"):
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
        ResultParts.create_or_resume(tmp_path / place, JOB, 3)


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
        for values in (np.zeros((2, 2)), np.zeros((1, 2, 2), complex), np.zeros((1, 2, 2), object)):
            with pytest.raises(UsageError, match="a part is"):
                parts.put(0, values)
        assert parts.done() == set()
    with pytest.raises(UsageError, match="is closed"):
        parts.put(0, pixels(2, 2))


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
        assert json.loads((parts.directory / "job.json").read_text())["job"] == JOB


FULL = """
import resource, signal, sys, numpy as np
from pathlib import Path
from serfer.core.errors import UnavailableError
from serfer.raster import ResultParts
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
with ResultParts.create_or_resume(Path(sys.argv[1]), {"job": 1}, 10) as parts:
    parts.put(0, np.zeros((1, 100, 100), np.uint8))
    try:
        parts.put(1, np.zeros((1, 1000, 1000), np.uint8))
    except UnavailableError as error:
        print(error)
"""


def test_a_write_that_really_ends_in_the_middle_leaves_nothing(tmp_path):
    done = subprocess.run([sys.executable, "-c", FULL, tmp_path / "parts"], capture_output=True, text=True, check=True)
    assert "1 of 10 parts are kept there" in done.stdout
    assert "ulimit -f" in done.stdout
    assert "no room" not in done.stdout
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == ["00000000.values", "job.json", "lock"]


def test_a_directory_without_parts_is_gone_with_its_process(tmp_path):
    with parts_of(tmp_path, count=4) as parts:
        directory = parts.directory
        assert directory.exists()
    assert not directory.exists()
    with pytest.raises(RuntimeError), parts_of(tmp_path, count=4):
        raise RuntimeError
    assert not directory.exists()


def test_what_else_is_in_a_directory_without_parts_stays(tmp_path):
    with parts_of(tmp_path, count=4) as parts:
        (parts.directory / "note.txt").touch()
    assert [path.name for path in parts.directory.iterdir()] == ["note.txt"]
