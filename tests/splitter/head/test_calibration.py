"""A folder of labelled images is read completely, in one order, and errors name the file."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from serfer.core.errors import InputError, PlanError, UsageError
from serfer.core.plan import ImageLimits, Preprocess, Shape
from serfer.core.plan.pixels import normalise
from serfer.images import Recipe, decode_image
from serfer.splitter.head import calibration
from serfer.splitter.head.calibration import Calibration, read_calibration

SHAPE = Shape(3, 6, 8, flat=False)
RGB = Preprocess(7, "bilinear", "RGB", 1 / 255, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
LABELS = ("tabby cat", "Zwölf", "crane", "great_white-shark", "crane", "3", "7")


def image(path, colour=(10, 20, 30)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (9, 11), colour).save(path)


@pytest.fixture
def folder(tmp_path):
    """Two classes: 12 images of class 0, 10 of class 3."""
    root = tmp_path / "images"
    for number in range(12):
        image(root / "tabby cat" / f"{number}.png", (number, 0, 0))
    for number in range(10):
        image(root / "great_white-shark" / "deeper" / f"{number}.png", (0, number, 0))
    return root


def read(folder, **changes):
    options = {"preprocess": RGB, "shape": SHAPE, "labels": LABELS, "limits": ImageLimits(), **changes}
    return read_calibration(folder, **options)


def made(*labels):
    """Images that hold their own number."""
    count = len(labels)
    images = np.arange(count, dtype=np.float32).reshape(-1, 1, 1, 1) * np.ones((1, 1, 2, 2), np.float32)
    return Calibration(images, np.array(labels, dtype=np.int64))


class TestRead:
    def test_images_are_preprocessed_in_order_of_class_and_path(self, folder):
        got = read(folder)
        assert (got.images.shape, got.images.dtype, got.labels.dtype) == ((22, 3, 6, 8), np.float32, np.int64)
        assert got.labels.tolist() == [0] * 12 + [3] * 10
        paths = [
            *sorted((folder / "tabby cat").iterdir()),
            *sorted((folder / "great_white-shark" / "deeper").iterdir()),
        ]
        for number, path in enumerate(paths):
            pixels = decode_image(path.read_bytes(), "x", Recipe(RGB, SHAPE, ImageLimits())).pixels
            assert np.array_equal(got.images[number], normalise(pixels[None], RGB)[0])

    def test_calibration_images_for_a_grey_network(self, folder):
        grey = Preprocess(None, "bilinear", "L", 1 / 255, (0.0,), (1.0,))
        assert read(folder, preprocess=grey, shape=Shape(1, 5, 4, flat=False)).images.shape == (22, 1, 5, 4)

    @pytest.mark.parametrize(
        ("name", "index"),
        [
            ("Tabby_Cat", 0),
            ("tabby-cat", 0),
            ("0", 0),
            ("ZWÖLF", 1),
            ("Zwo\u0308lf", 1),  # as macOS spells it
            ("2", 2),
            ("004", 4),
            ("Great White Shark", 3),
            ("3", 5),  # a label before an index
            ("6", 6),
        ],
    )
    def test_a_folder_is_named_as_its_class_or_by_its_index(self, folder, name, index):
        (folder / "great_white-shark").rename(folder / "other")
        (folder / "tabby cat").rename(folder / "1" if index != 1 else folder / "0")
        (folder / "other").rename(folder / name)
        labels = read(folder).labels
        assert (labels == index).sum() == 10

    @pytest.mark.exact
    def test_an_exact_label_takes_precedence_over_a_similar_one(self, folder):
        labels = ("great_white-shark", "tabby cat", "Tabby Cat")
        assert set(read(folder, labels=labels).labels.tolist()) == {0, 1}

    def test_links_are_followed_and_hidden_files_pipes_and_files_beside_class_folders_are_ignored(self, folder):
        expected, steps = read(folder), []
        (folder / "tabby cat").rename(folder.parent / "elsewhere")
        (folder / "tabby cat").symlink_to(folder.parent / "elsewhere")
        (folder / "tabby cat" / ".DS_Store").write_bytes(b"x")
        os.mkfifo(folder / "tabby cat" / "pipe.png")
        (folder / ".git").mkdir()
        (folder / "README.txt").write_text("where these come from")
        got = read(folder, progress=steps.append)
        assert np.array_equal(got.images, expected.images)
        assert np.array_equal(got.labels, expected.labels)
        assert steps == ["reading calibration images: 0 of 22"]
        got.check(SHAPE, len(LABELS))
        image(folder / "0" / "more.png")
        assert read(folder).labels.tolist() == [0] * 13 + [3] * 10


class TestRefused:
    def refused(self, words, folder, kind=InputError, **changes):
        with pytest.raises(kind, match=words) as caught:
            read(folder, **changes)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("changes", "kind", "words"),
        [
            ({"preprocess": None}, PlanError, "--preprocess"),
            ({"labels": ()}, InputError, "--labels"),
            ({"shape": Shape(1, 6, 8, flat=False)}, PlanError, "takes 1 channels"),
        ],
    )
    def test_network_without_what_images_need(self, folder, changes, kind, words):
        self.refused(words, folder, kind, **changes)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (
                lambda folder: [image(folder / f"loose{number}.jpg") for number in range(5)],
                "loose0.jpg, loose1.jpg, loose2.jpg and 2 more in no class folder",
            ),
            (
                lambda folder: [image(folder / name / "1.png") for name in ("zebra", "7000", "10", "-1", "²")],
                r"5 folders of other classes .*\(-1, 10, 7000 and 2 more\).*0 to 6",
            ),
            (
                lambda folder: image(folder / "Crane" / "1.png"),
                r"Crane is the name of 2 of the network's classes.*\(2, 4\)",
            ),
            (lambda folder: [(folder / "6").mkdir(), (folder / "6" / ".hidden.png").touch()], "6 holds no images"),
            (
                lambda folder: [(folder / "tabby cat" / f"{name}.txt").touch() for name in "abcd"],
                "a.txt, b.txt, c.txt and 1 more: 4 files",
            ),
            (lambda folder: (folder / "tabby cat" / "5.png").write_text("hello"), "tabby cat/5.png is not an image"),
            (lambda folder: (folder / "tabby cat" / "x.png").symlink_to(folder / "nothing"), "x.png does not exist"),
            (lambda folder: (folder / "great_white-shark").rename(folder / "0"), "one class only"),
            (lambda folder: image(folder / "1" / "1.png"), "1 classes of fewer than 2 images.*'Zwölf'"),
            (
                lambda folder: [(folder / "tabby cat" / f"{number}.png").unlink() for number in range(3)],
                "has 19 images: give at least 20",
            ),
        ],
    )
    def test_folder_of_wrong_images(self, folder, change, words):
        change(folder)
        self.refused(words, folder)

    def test_a_missing_folder(self, tmp_path):
        (tmp_path / "empty").mkdir()
        (tmp_path / "file").write_text("")
        self.refused("none does not exist", tmp_path / "none")
        self.refused("file is not a folder", tmp_path / "file")
        self.refused("empty is empty", tmp_path / "empty")
        self.refused("cannot be read: File name too long", tmp_path / ("x" * 300))
        (tmp_path / "empty" / "images.zip").write_text("")
        self.refused("no class folders", tmp_path / "empty")
        image(tmp_path / "flat" / "1.png")
        self.refused("1.png in no class folder: put each image into a folder named as its class", tmp_path / "flat")

    def test_more_images_than_memory_holds_are_refused_before_reading(self, folder, monkeypatch):
        monkeypatch.setattr(calibration, "MOST_BYTES", 21 * SHAPE.elements * 4)
        monkeypatch.setattr(calibration, "read_image", None)
        self.refused("has 22 images: at most 21 of 3x6x8 fit", folder)


class TestCheck:
    IMAGES = np.zeros((4, 3, 6, 8), dtype=np.float32)
    GOOD = np.array([0, 1, 2, 6])

    @pytest.mark.parametrize(
        ("images", "labels", "words"),
        [
            (IMAGES.astype(np.float64), GOOD, r"float64 .* give \(N, 3, 6, 8\) float32"),
            (IMAGES.transpose(0, 2, 3, 1), GOOD, r"\(4, 6, 8, 3\)"),
            (IMAGES[:0], GOOD[:0], r"\(0, 3, 6, 8\)"),
            (IMAGES, GOOD[:3], r"shape \(3,\): give one int64 for each of the 4 images"),
            (IMAGES, GOOD.astype(np.float32), "float32"),
            (IMAGES, GOOD + 1, "between 0 and 6"),
            (IMAGES, GOOD - 1, "between 0 and 6"),
            (IMAGES + np.float32("nan"), GOOD, "not finite numbers"),
        ],
        ids=range(8),
    )
    def test_a_mismatched_calibration_object_is_refused(self, images, labels, words):
        with pytest.raises(InputError, match=words):
            Calibration(images, labels).check(SHAPE, 7)


class TestSplit:
    @given(st.lists(st.integers(0, 9), min_size=2, max_size=200), st.floats(0.001, 0.999), st.integers(0, 5))
    def test_parts_are_disjoint_complete_and_stratified(self, labels, share, seed):
        whole = made(*labels)
        fit, held = whole.split(share, seed)
        assert len(held.labels) == min(max(1, round(share * len(labels))), len(labels) - 1)
        assert sorted([*fit.images[:, 0, 0, 0], *held.images[:, 0, 0, 0]]) == list(range(len(labels)))
        for part in (fit, held):
            assert [labels[int(number)] for number in part.images[:, 0, 0, 0]] == part.labels.tolist()
        for label in set(labels):
            expected = labels.count(label) * len(held.labels) / len(labels)
            assert abs((held.labels == label).sum() - expected) < 1 + 1e-9

    def test_a_split_depends_on_the_seed_alone(self):
        whole = made(*[0, 1, 2] * 20)
        first, again, other = whole.split(0.2, 7)[1], whole.split(0.2, 7)[1], whole.split(0.2, 8)[1]
        assert np.array_equal(first.images, again.images)
        assert not np.array_equal(first.images, other.images)
        assert np.bincount(first.labels).tolist() == [4, 4, 4]
        fit, held = made(*sorted([*range(10)] * 2)).split(0.5)
        assert fit.labels.tolist() == held.labels.tolist() == list(range(10))

    @pytest.mark.parametrize("share", [0, 1, -0.5, 2, float("nan")])
    def test_a_share_that_leaves_a_part_empty_is_refused(self, share):
        with pytest.raises(UsageError, match="between 0 and 1"):
            made(0, 1).split(share)
        with pytest.raises(InputError, match="1 calibration images"):
            made(4).split(0.5)


class TestBatches:
    @given(st.integers(0, 20), st.integers(1, 25))
    def test_batches_cover_all_images_in_order(self, count, size):
        whole = made(*range(count))
        batches = list(whole.batches(size))
        assert all(len(images) == len(labels) <= size for images, labels in batches)
        assert [label for _, labels in batches for label in labels] == list(range(count))
        assert len(batches) == -(-count // size)
        with pytest.raises(UsageError, match="at least 1 image"):
            next(whole.batches(0))
