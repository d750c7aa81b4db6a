"""Labelled images: folders of classes or a list, and what is refused, with the reason."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from serfer.core.errors import ImageError, InputError, PlanError
from serfer.core.plan import ImageLimits, OutputTensor
from serfer.images import Recipe
from serfer.pipeline.labelled import labels as module
from serfer.pipeline.labelled.accuracy import check_labelled
from serfer.pipeline.labelled.labels import LIST_FILE, read_labelled
from tests.core.plans import small_plan

PLAN = replace(
    small_plan(), labels=("tabby cat", "great white-shark", "crane", "crane", *(f"bird {n}" for n in range(6)))
)


def image(path: Path, shade=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (shade, 0, 0)).save(path)


def listed(directory, text):
    (directory / LIST_FILE).write_text(text)


def refused(directory, message, plan=PLAN, error=InputError):
    with pytest.raises(error, match=message):
        read_labelled(directory, plan)


def test_a_folder_is_a_class_by_name_spelling_or_index(tmp_path):
    for name in ("tabby cat/1.png", "Great_White-Shark/deeper/2.png", "2/3.png", "9/4.png"):
        image(tmp_path / name)
    found = read_labelled(tmp_path, PLAN)
    indices = dict(zip([path.name for path in found.files], found.indices, strict=True))
    assert indices == {"1.png": 0, "2.png": 1, "3.png": 2, "4.png": 9}
    assert (found.classes, len(found), found.absent) == (10, 4, [3, 4, 5, 6, 7, 8])


def test_a_list_names_files_beside_it_in_its_own_order(tmp_path):
    for name in ("b.png", "photos/a.png"):
        image(tmp_path / name)
    image(tmp_path / "unlisted.png")
    listed(tmp_path, "file,label\nphotos/a.png,tabby cat\n\nb.png,2\n")
    found = read_labelled(tmp_path, PLAN)
    assert [path.relative_to(tmp_path).as_posix() for path in found.files] == ["photos/a.png", "b.png"]
    assert [*found.indices] == [0, 2]


def test_a_network_without_names_knows_indices(tmp_path):
    image(tmp_path / "9/1.png")
    assert read_labelled(tmp_path, replace(PLAN, labels=())).indices == (9,)
    image(tmp_path / "10/1.png")
    refused(tmp_path, r"'10': it knows indices from 0 to 9", replace(PLAN, labels=()))


@pytest.mark.parametrize(
    ("images", "others", "message"),
    [
        ([], [], "has no labelled images"),
        (["crane/1.png"], [], r"crane is the name of 2 of the network's classes.*\(2, 3\)"),
        (
            ["tabby cat/1.png", "dog/1.png", "cow/1.png", "hen/1.png", "sheep/1.png"],
            [],
            "'cow', 'dog', 'hen' and 1 more: it knows 'tabby cat', .* and 7 more, or indices from 0 to 9",
        ),
        (["file.png"], [], "images in no class folder, 'file.png'"),
        ([], ["0/"], "0 holds no images"),
        ([], ["0/", "0/notes.txt"], "files that are not images, 'notes.txt'"),
    ],
)
def test_set_of_wrong_folders_is_refused(tmp_path, images, others, message):
    for name in images:
        image(tmp_path / name)
    for name in others:
        (tmp_path / name).mkdir() if name.endswith("/") else (tmp_path / name).touch()
    refused(tmp_path, message)


def test_set_that_is_no_folder_is_refused(tmp_path):
    refused(tmp_path / "nowhere", "nowhere does not exist")
    image(tmp_path / "file.png")
    refused(tmp_path / "file.png", "file.png is not a folder")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.png,0\n", r"does not begin with the line file,label"),
        ("", r"does not begin with the line file,label"),
        ("file,label\na.png\n", r"line 2 has 1 values"),
        ("file,label\na.png,0,1\n", r"line 2 has 3 values"),
        ("file,label\n../a.png,0\n", r"line 2 names '../a.png', which is not in"),
        ("file,label\n/etc/hostname,0\n", r"line 2 names '/etc/hostname', which is not in"),
        ("file,label\nlink/a.png,0\n", r"line 2 names 'link/a.png', which is not in"),
        ("file,label\n,0\n", r"line 2 names '', which is not in"),
        ("file,label\nb.png,0\nc.png,1\n", r"names files that do not exist, 'b.png', 'c.png': names are relative"),
        ("file,label\na.png,0\na.png,1\n", r"line 3 names a.png again"),
        ('file,label\n"a.png,0\n', r"line 2 has 1 values"),
        ("file,label\n", r"has no labelled images"),
    ],
)
def test_a_list_that_is_wrong_is_refused_with_the_line(tmp_path, text, message):
    directory = tmp_path / "set"
    image(directory / "a.png")
    image(tmp_path / "outside/a.png")
    (directory / "link").symlink_to(tmp_path / "outside")
    listed(directory, text)
    refused(directory, message)


@pytest.mark.hostile
def test_too_many_images_are_refused(tmp_path, monkeypatch):
    for number in range(4):
        image(tmp_path / f"0/{number}.png")
    monkeypatch.setattr(module, "MOST_BYTES", 3 * PLAN.input.elements)
    refused(tmp_path, r"has 4 images: at most 3 of this size fit")
    monkeypatch.setattr(module, "MOST_IMAGES", 2)
    refused(tmp_path, r"has 4 images: at most 2 are read")


def test_the_digest_is_of_images_and_labels_and_not_of_names(tmp_path):
    for number, shade in enumerate((10, 20)):
        image(tmp_path / f"one/{number}/{shade}.png", shade)
        image(tmp_path / f"two/other {shade}.png", shade)
    listed(tmp_path / "two", "file,label\nother 20.png,1\nother 10.png,0\n")
    one, two = (read_labelled(tmp_path / name, PLAN).validation() for name in ("one", "two"))
    assert one == two
    assert (one.images, one.classes) == (2, 10)
    listed(tmp_path / "two", "file,label\nother 20.png,0\nother 10.png,1\n")
    assert read_labelled(tmp_path / "two", PLAN).validation().digest != one.digest


@pytest.mark.hostile
def test_a_damaged_image_is_named_when_it_is_decoded(tmp_path):
    image(tmp_path / "0/1.png")
    (tmp_path / "0/2.png").write_bytes(b"\x89PNG damaged")
    found = read_labelled(tmp_path, PLAN)
    recipe = Recipe(PLAN.preprocess, PLAN.input, ImageLimits())
    with pytest.raises(ImageError, match=re.escape("2.png") + ".*: replace the validation image, or take it away"):
        list(found.pixels(recipe, 2))
    (first,) = read_labelled(tmp_path, PLAN).pixels(replace(recipe), 8) if not (tmp_path / "0/2.png").unlink() else ()
    assert (first.shape, first.dtype) == ((1, 4, 4, 3), np.uint8)


def test_a_network_that_does_not_classify_has_no_accuracy():
    with pytest.raises(PlanError, match="does not classify"):
        check_labelled(replace(PLAN, outputs=(OutputTensor("scores", (5, 4, 4), "float32"),)))
