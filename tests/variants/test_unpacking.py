"""Uploaded archives: what they may hold, and what hostile ones are refused for."""

import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile

import pytest

from serfer.core.errors import InputError
from serfer.variants import unpacking
from serfer.variants.unpacking import UnpackJob, unpack
from tests.api.conftest import png

MOST = 100_000
IMAGE = png(8, 8)
NAMES = ["zero/a.png", "zero/deeper/b.png", "one/c.png"]


def zipped(path, files, **more):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files:
            archive.writestr(name, data, **more)
    return path


def tarred(path, members, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            if isinstance(data, bytes):
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
            else:
                member.type, member.linkname = data
                archive.addfile(member)
    return path


@pytest.fixture
def unpacked(tmp_path):
    return lambda archive, most=MOST: unpack(UnpackJob(str(archive), str(tmp_path / "images"), most))


@pytest.mark.parametrize("around", ["", "photos/"])
@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz"])
def test_a_directory_is_unpacked_from_each_kind_with_or_without_a_folder_around_it(unpacked, tmp_path, kind, around):
    files = [(around + name, IMAGE) for name in NAMES]
    files += [("__MACOSX/._a.png", b"x"), (f"{around}zero/.DS_Store", b"x")]
    path = tmp_path / "archive"
    archive = zipped(path, files) if kind == "zip" else tarred(path, files, "w:gz" if kind == "tar.gz" else "w")
    found = unpacked(archive)
    assert found.images == 3
    assert found.folder.endswith("images/photos" if around else "images")
    assert (tmp_path / "images" / around / NAMES[1]).read_bytes() == IMAGE


def test_a_list_beside_images_is_unpacked(unpacked, tmp_path):
    files = [("labels.csv", b"file,label\na.png,zero\n"), ("a.png", IMAGE)]
    assert unpacked(zipped(tmp_path / "archive", files)).images == 1


@pytest.mark.hostile
@pytest.mark.parametrize("name", ["../a.png", "/etc/a.png", "zero/../../a.png", "zero\\..\\a.png", "zero/\x1b[31m.png"])
@pytest.mark.parametrize("make", [zipped, tarred])
def test_names_outside_of_the_folder_are_refused_and_nothing_is_written_there(unpacked, tmp_path, make, name):
    with pytest.raises(InputError, match="names below one folder"):
        unpacked(make(tmp_path / "archive", [("zero/b.png", IMAGE), (name, IMAGE)]))
    assert {path.name for path in tmp_path.iterdir()} == {"archive", "images"}
    assert [path.name for path in tmp_path.rglob("*.png")] == ["b.png"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(unpacked, tmp_path, kind):
    with pytest.raises(InputError, match=r"'zero/a\.png', which is a link or a device"):
        unpacked(tarred(tmp_path / "archive", [("zero/a.png", (kind, "/etc/passwd"))]))


def test_a_link_in_a_zip_is_refused(unpacked, tmp_path):
    with zipfile.ZipFile(tmp_path / "archive", "w") as archive:
        link = zipfile.ZipInfo("zero/a.png")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(InputError, match="which is a link or a device"):
        unpacked(tmp_path / "archive")


@pytest.mark.hostile
@pytest.mark.parametrize("make", [zipped, tarred])
def test_a_bomb_is_unpacked_no_further_than_its_bytes_may_be(unpacked, tmp_path, make):
    archive = make(tmp_path / "archive", [("zero/a.png", bytes(50_000_000))])
    assert archive.stat().st_size < MOST
    with pytest.raises(InputError, match="more than 100,000 bytes unpacked"):
        unpacked(archive)
    assert (tmp_path / "images/zero/a.png").stat().st_size <= MOST


@pytest.mark.hostile
@pytest.mark.parametrize("make", [zipped, tarred])
def test_absurd_numbers_of_files_are_refused(unpacked, tmp_path, make, monkeypatch):
    monkeypatch.setattr(unpacking, "MOST_ENTRIES", 10)
    with pytest.raises(InputError, match="more than 10 files and folders"):
        unpacked(make(tmp_path / "archive", [(f".hidden/{number}.png", b"") for number in range(11)]))


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("make", [zipped, tarred])
@pytest.mark.parametrize("name", ["zero/a.png", "zero/a.png/b.png"])
def test_a_file_that_comes_twice_is_refused(unpacked, tmp_path, make, name):
    with pytest.raises(InputError, match="twice"):
        unpacked(make(tmp_path / "archive", [("zero/a.png", IMAGE), (name, IMAGE)]))


@pytest.mark.parametrize("data", [b"", b"PK", b"PK\x03\x04" + bytes(100), b"\x1f\x8bnothing", b"text" * 500, IMAGE])
def test_what_is_not_an_archive_is_refused(unpacked, tmp_path, data):
    (tmp_path / "archive").write_bytes(data)
    with pytest.raises(InputError, match=r"cannot be unpacked|no labelled images"):
        unpacked(tmp_path / "archive")


def test_a_cut_archive_is_refused(unpacked, tmp_path):
    archive = tarred(tmp_path / "archive", [("zero/a.png", os.urandom(50_000))])
    archive.write_bytes(archive.read_bytes()[:20_000])
    with pytest.raises(InputError, match="cannot be unpacked"):
        unpacked(archive)


def test_another_compression_is_refused(unpacked, tmp_path):
    archive = zipped(tmp_path / "archive", [("zero/a.png", IMAGE)], compress_type=zipfile.ZIP_LZMA)
    with pytest.raises(InputError, match="encrypted or compressed otherwise"):
        unpacked(archive)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([("a.png", IMAGE)], "images in no class folder"),
        ([("zero/a.txt", b"x"), ("one/b.png", IMAGE)], "not images"),
        ([("labels.csv", b"file,label\nb.png,zero\n"), ("a.png", IMAGE)], "do not exist"),
        ([("labels.csv", b"file,label\n../b.png,zero\n"), ("a.png", IMAGE)], "which is not in the validation set"),
    ],
)
def test_what_register_refuses_is_refused_without_the_place_where_it_lies(unpacked, tmp_path, files, words):
    with pytest.raises(InputError, match=words) as refused:
        unpacked(zipped(tmp_path / "archive", files))
    assert str(tmp_path) not in str(refused.value)


def test_a_table_of_contents_that_takes_too_much_memory_ends_the_process_alone(tmp_path):
    count = 400_000  # of entries, 256 bytes each
    entry = b"PK\x01\x02" + bytes(24) + (206).to_bytes(2, "little") + bytes(16) + b"a" * 206
    size = (len(entry) * count).to_bytes(4, "little")
    with (tmp_path / "archive").open("wb") as file:
        for _ in range(count // 1000):
            file.write(entry * 1000)
        file.write(b"PK\x05\x06" + bytes(4) + b"\xff\xff\xff\xff" + size + bytes(4) + bytes(2))
    job = json.dumps({"archive": str(tmp_path / "archive"), "folder": str(tmp_path / "images"), "most_bytes": MOST})
    done = subprocess.run(
        [sys.executable, "-m", "serfer.variants.unpacking"],
        input=job.encode(),
        capture_output=True,
        check=False,
        env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 3, done.stderr
    assert b"too much memory" in done.stderr or b"more than 100,000 files" in done.stderr
