"""Files that describe a user's network: plans follow them, and mistakes are named."""

import io
import json
import os
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import serfer
from serfer.core.dataclass_codec import structure, unstructure
from serfer.core.errors import InputError
from serfer.core.plan import CHANNELS, INTERPOLATIONS, OPENCV_BILINEAR, PAD_PLACES, Pad, Preprocess
from serfer.core.plan.pixels import normalise
from serfer.pipeline.reference import unsplit
from serfer.plan_directory import load_plan
from serfer.splitter.network.description import read_labels, read_preprocess
from tests.splitter.models import Net

ROOT = Path(__file__).parents[3]
IMAGENET = Preprocess(256, "bilinear", "RGB", 1 / 255, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def toml(preprocess):
    """Write a description as TOML; JSON's numbers, texts and lists are TOML's too."""
    values = unstructure(preprocess)
    if pad := values.pop("pad", None):
        values |= {"pad": pad["place"], "pad_value": pad["value"]}
    if values["resize"] is None:
        del values["resize"]
    if "resize" not in values and not pad:
        values["crop"] = "none"
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


def descriptions():
    size = st.one_of(st.none(), st.integers(1, 65_536))
    fit = st.one_of(
        st.tuples(size, st.sampled_from(INTERPOLATIONS), st.none()),
        st.tuples(
            st.none(), st.just(OPENCV_BILINEAR), st.builds(Pad, st.sampled_from(PAD_PLACES), st.integers(0, 255))
        ),
    )
    finite = st.floats(-1e9, 1e9)
    above_zero = st.floats(1e-9, 1e9)
    sign = st.sampled_from([1, -1])

    def of(channels):
        each = {"min_size": len(channels), "max_size": len(channels)}
        return st.builds(
            lambda fit, *rest: Preprocess(*fit[:2], *rest, fit[2]),
            fit,
            st.just(channels),
            st.builds(lambda value, factor: value * factor, above_zero, sign),
            st.lists(finite, **each).map(tuple),
            st.lists(above_zero, **each).map(tuple),
        )

    return st.sampled_from(CHANNELS).flatmap(of)


@pytest.fixture
def write(tmp_path):
    def write(text, name="own.toml"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


class TestPreprocess:
    @given(description=descriptions())
    def test_a_description_is_read_back_as_written(self, description, tmp_path_factory):
        path = tmp_path_factory.getbasetemp() / "round-trip.toml"
        path.write_text(toml(description))
        assert read_preprocess(path) == description
        assert structure(Preprocess, json.loads(json.dumps(unstructure(description))), "plan.json") == description

    def test_only_the_size_is_required(self, write):
        expected = Preprocess(256, "bilinear", "RGB", 1 / 255, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
        assert read_preprocess(write("resize = 256")) == expected
        assert read_preprocess(write('crop = "none"\nchannels = "L"')) == Preprocess(
            None, "bilinear", "L", 1 / 255, (0.0,), (1.0,)
        )
        assert read_preprocess(write("scale = 1"), resized=False).resize is None
        assert read_preprocess(write(b"\xef\xbb\xbfresize = 9\r\n"), resized=False).resize == 9
        read = read_preprocess(write('pad = "centre"'))
        assert (read.resize, read.interpolation, read.pad) == (None, "opencv-bilinear", Pad("centre", 114))
        assert read_preprocess(write('pad = "corner"\npad_value = 0')).pad == Pad("corner", 0)
        assert read_preprocess(ROOT / "examples/preprocess.toml") == IMAGENET

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "resize is missing"),
            ("scale = 1", "resize is missing.*crop"),
            ('crop = "none"\nresize = 9', "leave resize out"),
            ("resize = 9\ncrop = 224", "crop should be"),
            ('resize = 9\ncrop = "center"', 'crop should be "centre"'),
            ('pad = "middle"', "pad.*centre, corner, square, height.*'middle'"),
            ('pad = "centre"\nresize = 640', "either padded or cropped: leave resize or pad out"),
            ('pad = "centre"\ncrop = "none"', "leave crop or pad out"),
            ('pad = "centre"\npad_value = 256', "0 to 255, not 256"),
            ('pad = "centre"\npad_value = 0.5', "pad_value should be a whole number"),
            ('crop = "none"\npad_value = 0', "give pad, too"),
            ('pad = "square"\ninterpolation = "bilinear"', "needs the interpolation opencv-bilinear"),
            ("resize = 0", "resize"),
            ("resize = 65_537", "resize"),
            *((f"resize = {size}", "resize should be a whole number") for size in ("true", "256.0", "[256, 256]")),
            ("resize = 9\ninterpolation = 2", "interpolation should be a text"),
            ('resize = 9\nscale = "1/255"', "scale should be a number, not str"),
            ("resize = 9\nscale = 1" + "0" * 400, "scale.*too large"),
            ('resize = 9\nmean = [0.5, "a", 0.5]', r"mean\[1\] should be a number"),
            ("resize = 9\nmeans = [1]", "'means'.*the keys are resize, crop"),
            ("[preprocess]\nresize = 9", "unknown key 'preprocess'"),
            ('resize = 9\ninterpolation = "area"', "interpolation.*nearest, bilinear.*'area'"),
            ('resize = 9\nchannels = "RGBA"\nmean = [1, 2, 3, 4]', "channels.*'RGBA'"),
            ('resize = 9\nchannels = "rgb"', "channels.*RGB, BGR, L"),
            ("resize = 9\nscale = 0", "scale"),
            ("resize = 9\nscale = nan", "scale"),
            ("resize = 9\nscale = inf", "scale"),
            ("resize = 9\nmean = [0.5]", "mean of the preprocessing has 1 numbers, RGB needs 3"),
            ('resize = 9\nchannels = "L"\nstd = [1, 1, 1]', "std of the preprocessing has 3 numbers, L needs 1"),
            ("resize = 9\nmean = [0.5, nan, 0.5]", r"mean\[1\]"),
            ("resize = 9\nmean = [0.5, 0.5, -inf]", r"mean\[2\]"),
            ("resize = 9\nstd = [1, 1, 0]", r"std\[2\]"),
            ("resize = 9\nstd = [1, -1, 1]", r"std\[1\]"),
            ("resize = 9\nstd = [1e-300, 1, 1]", r"std\[0\]"),
            ("resize = 9\nstd = [inf, 1, 1]", r"std\[0\]"),
            ("resize = 9\nresize = 9", "is not TOML.*overwrite a value"),
            ("resize: 9", "is not TOML.*line 1"),
            ("resize = " + "9" * 5000, "is not TOML"),
            ("mean = " + "[" * 60_000, "is not TOML"),
            (b"resize = 9 # \xff", "not text in UTF-8"),
            ("#" * 70_000, "larger than 65,536 bytes"),
        ],
        ids=range(43),
    )
    def test_mistakes_are_named_in_one_line(self, write, text, words):
        with pytest.raises(InputError, match=words) as caught:
            read_preprocess(write(text))
        message = str(caught.value)
        assert "own.toml" in message
        assert "\n" not in message
        assert len(message) < 400


class TestLabels:
    @given(st.lists(st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1), min_size=1))
    def test_labels_are_read_back_as_written(self, tmp_path_factory, names):
        path = tmp_path_factory.getbasetemp() / "round-trip.txt"
        path.write_text("\n".join(names), encoding="utf-8")
        assert read_labels(path) == tuple(names)
        path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join([*names, "", ""]).encode())
        assert read_labels(path) == tuple(names)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "is empty"),
            ("\n \n", "is empty"),
            ("\na", "line 1 is empty"),
            ("a\nb\n\nc\n", "line 3 is empty"),
            ("a\n0\tb\n", "line 2 has a tab"),
            ("a\x1b[2Jb\n", "line 1 has a tab or another control"),
            ("a\0b", "line 1"),
            (b"a\n\xff", "not text in UTF-8"),
            ("a\n" * 600_000, "larger than 1,048,576 bytes"),
        ],
        ids=range(9),
    )
    def test_mistakes_are_named_with_their_line(self, write, text, words):
        with pytest.raises(InputError, match=words) as caught:
            read_labels(write(text, "own.txt"))
        assert "own.txt" in str(caught.value)


@pytest.mark.parametrize("read", [read_preprocess, read_labels])
def test_unreadable_files_are_named(read, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_text("a")
    for path, words in [
        (tmp_path / "none", "none does not exist"),
        (tmp_path, "is not a file"),
        (tmp_path / "pipe", "pipe is not a file"),
        (tmp_path / "text" / "x", "cannot be read: Not a directory"),
        (tmp_path / ("x" * 300), "cannot be read: File name too long"),
        (tmp_path / "nul\0", "does not exist|cannot be read"),
    ]:
        with pytest.raises(InputError, match=words):
            read(path)


def test_a_grey_network_answers_for_colour_pictures_through_tiles(tmp_path, write):
    net = Net(1, 26, 30)
    hidden = net.op("Relu", net.conv("x", 1, 6, 3, strides=[2, 2]))
    pooled = net.op("GlobalAveragePool", net.op("Relu", net.conv(hidden, 6, 8, 3)))
    path = net.save(tmp_path, net.linear(net.flat(pooled), 8, 4))
    preprocess = read_preprocess(write('resize = 32\nchannels = "L"\nmean = [0.4]\nstd = [0.2]'))
    labels = read_labels(write("a\nb\nc\nd\n", "labels.txt"))
    example = np.random.default_rng(0).standard_normal((1, 1, 26, 30), dtype=np.float32)
    out = tmp_path / "plan"
    serfer.split(path, example, out, grids=["2x2", "1"], preprocess=preprocess, labels=labels, activation="softmax")
    image = Image.fromarray(np.random.default_rng(1).integers(0, 256, (50, 70, 3), dtype=np.uint8))
    file = io.BytesIO()
    image.save(file, "PNG")
    plan = load_plan(out)
    assert plan.preprocess == preprocess
    with serfer.open(out) as pipeline:
        pixels = pipeline.pixels([file.getvalue()])
        answer = pipeline.classify([file.getvalue()], top_k=4)[0]
        logits = pipeline.last.logits
    assert pixels.shape == (1, 26, 30, 1)
    assert {prediction.label for prediction in answer.predictions} == set(labels)
    whole = unsplit(plan, out)
    assert np.abs(logits - whole(normalise(pixels, preprocess))).max() <= 1e-5 * np.ptp(logits)
    assert np.abs(logits - whole(pixels)).max() <= 1e-5 * np.ptp(logits)


def test_the_documented_recipes_of_other_libraries_are_valid(write):
    text = (ROOT / "docs/how-to/preprocess.md").read_text().partition("What others call it")[2].partition("\n## ")[0]
    rows = [re.findall(r"`(\w+ = [^`]+)`", line.split("|")[2]) for line in text.splitlines() if line.startswith("| ")]
    recipes = ["\n".join(keys) for keys in rows if keys]
    assert len(recipes) == 16
    for recipe in recipes:
        values = tomllib.loads(recipe)
        known = {"crop", "resize", "pad", "shorter_side"} & values.keys()
        read = unstructure(read_preprocess(write(recipe if known else f"{recipe}\nresize = 9")))
        if pad := read.pop("pad", None):
            read |= {"pad": pad["place"], "pad_value": pad["value"]}
        if limit := read.pop("limit", None):
            read |= {f"{limit['side']}_side": limit["pixels"]}
        assert all(read[key] == value for key, value in values.items() if key != "crop")


def test_split_takes_descriptions_or_their_paths(tmp_path):
    net = Net(3, 8, 8)
    net.save(tmp_path, net.linear(net.flat("x"), 192, 2))
    (tmp_path / "own.toml").write_text(toml(IMAGENET))
    (tmp_path / "own.txt").write_text("cat\ndog\n")
    for kind in (str, Path):
        plan = serfer.split(
            kind(tmp_path / "net.onnx"),
            out=tmp_path / "plan",
            preprocess=kind(tmp_path / "own.toml"),
            labels=kind(tmp_path / "own.txt"),
        )
        assert (plan.preprocess, plan.labels) == (IMAGENET, ("cat", "dog"))
    assert serfer.Preprocess(**unstructure(IMAGENET) | {"mean": IMAGENET.mean, "std": IMAGENET.std}) == IMAGENET
    with pytest.raises(serfer.UsageError, match=r"preprocess must be a serfer\.Preprocess or the path .* not dict"):
        serfer.split(str(tmp_path / "net.onnx"), out=tmp_path / "plan", preprocess={"resize": 9})
    with pytest.raises(InputError, match=r"absent\.toml does not exist"):
        serfer.split(str(tmp_path / "net.onnx"), out=tmp_path / "plan", preprocess="absent.toml")
