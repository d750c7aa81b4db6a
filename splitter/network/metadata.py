"""What an ONNX file's metadata say of its images and its classes, in the forms in which exporters write them.

Keys are those of ultralytics (its exporter and YOLOv5's export.py), of RapidAI (conversions of PaddlePaddle networks),
and of ONNX itself (docs/MetadataProps.md of onnx: Image.BitmapPixelFormat and others). Nothing of them is executed.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from serfer.core.plan import OPENCV_BILINEAR, Pad, Preprocess

_MOST_BYTES = 1024 * 1024
_MOST_NAMES = 65_536
_GREY = 114  # what ultralytics pads with
_STEPS_RANK = 3  # of an output of text recognition: images, steps of a line, classes
_ZERO = 127  # the byte next to what is 0 after PaddleOCR's mean and standard deviation
_MORE_CLASSES = (1, 2)  # than characters, as text recognition has: one for none, and one for a space
_NAMES = ("names", "labels", "classes", "class_names")
_TEXT = r"""'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*\""""
_ITEM = re.compile(rf"""\s*(?:["']?(\d{{1,6}})["']?\s*:\s*)?({_TEXT})\s*(?:,|$)""")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_PIXEL_FORMATS = {"gray8": "L", "rgb8": "RGB", "bgr8": "BGR"}
_PIXEL_RANGES = {  # scale, mean, standard deviation
    "nominalrange_0_255": (1.0, 0.0, 1.0),
    "normalized_0_1": (1 / 255, 0.0, 1.0),
    "normalized_1_1": (1 / 255, 0.5, 0.5),
    "nominalrange_16_235": (219 / 255, -16.0, 1.0),
}


@dataclass(frozen=True)
class FileDescription:
    """The preprocessing and the labels that a file's metadata give, and whose metadata those are, in words.

    Its network `detects` where they are those of a detector, if its outputs are such.
    """

    preprocess: Preprocess | None = None
    labels: tuple[str, ...] = ()
    origin: str = ""
    detects: bool = False

    @property
    def sentence(self) -> str:
        """Say what was taken from the file; empty where nothing was."""
        parts = [
            *(["how an image becomes the input"] if self.preprocess else []),
            *([f"the names of {len(self.labels):,} classes"] if self.labels else []),
        ]
        return f"The file's metadata ({self.origin}) say {' and '.join(parts)}." if parts else ""


def read_metadata(
    properties: Mapping[str, str], shape: tuple[int, ...], outputs: Sequence[Sequence[int]] = ()
) -> FileDescription:
    """Return what a file's metadata say for an input of `shape`, (N, C, H, W); what is malformed is passed over.

    `outputs` are the axes of the file's outputs as it declares them, 0 for those that it leaves open.
    """
    known = {key.lower(): value for key, value in properties.items() if len(value) <= _MOST_BYTES}
    classes = {axes[-1] for axes in outputs if len(axes) == _STEPS_RANK}
    for found in (_of_ultralytics(known, shape), _of_rapid_ai(known, shape, classes), _of_onnx(known, shape)):
        if found:
            return found
    labels = next((names for key in _NAMES if (names := parse_names(known.get(key, "")))), ())
    return FileDescription(labels=labels, origin="names" if labels else "")


def _of_ultralytics(known: Mapping[str, str], shape: tuple[int, ...]) -> FileDescription | None:
    """YOLOv5 writes no task: its networks may classify, which crops images, so nothing is said of them then."""
    if not {"stride", "names"} <= known.keys():
        return None
    labels, task = parse_names(known["names"]), known.get("task", "")
    stretched = "rtdetr" in known.get("description", "").lower().replace("-", "")
    preprocess, detects = _of_task(task, stretched, shape), task in ("", "detect", "segment", "pose") and not stretched
    return FileDescription(preprocess, labels, f"ultralytics, {task}" if task else "YOLOv5", detects)


def _of_task(task: str, stretched: bool, shape: tuple[int, ...]) -> Preprocess | None:  # noqa: FBT001 - of one caller
    _, channels, height, width = shape
    if task == "classify":
        crop = height if height == width else None
        return _scaled("RGB", channels, resize=crop, interpolation="bilinear")
    if task in ("detect", "segment", "pose", "obb"):
        order = "L" if channels == 1 else "RGB"
        return _scaled(order, channels, pad=None if stretched else Pad("centre", _GREY))
    return None


def _of_rapid_ai(known: Mapping[str, str], shape: tuple[int, ...], classes: set[int]) -> FileDescription | None:
    """Return what `character` says: a dictionary of text recognition, which has no classes of an image, or its classes.

    `classes` are how many numbers the outputs of three axes have for each step of a line of text.
    """
    text = known.get("character", "").removesuffix("\n")
    counts = {len(text.splitlines()), len(text.split("\n"))}  # a character may be a line's end for the former alone
    if not text.strip() or max(counts) > _MOST_NAMES:
        return None
    if not classes & counts and classes & {count + more for count in counts for more in _MORE_CLASSES}:
        preprocess = _scaled("BGR", shape[1], mean=0.5, std=0.5, pad=Pad("height", _ZERO))
        return FileDescription(preprocess, (), "a dictionary of characters, as PaddleOCR's recognition has")
    names = tuple(line.strip() for line in text.strip().split("\n"))
    usable = all(names) and not any(map(_has_control, names))
    return FileDescription(labels=names, origin="character, as RapidAI writes it") if usable else None


def _of_onnx(known: Mapping[str, str], shape: tuple[int, ...]) -> FileDescription | None:
    """Return what ONNX's own keys say; they say nothing of the size, to which an image is stretched."""
    order = _PIXEL_FORMATS.get(known.get("image.bitmappixelformat", "").lower())
    levels = _PIXEL_RANGES.get(known.get("image.nominalpixelrange", "").lower())
    if order is None or levels is None or known.get("image.colorspacegamma", "srgb").lower() != "srgb":
        return None
    scale, mean, std = levels
    preprocess = _scaled(order, shape[1], scale=scale, mean=mean, std=std, interpolation="bilinear")
    labels = next((names for key in _NAMES if (names := parse_names(known.get(key, "")))), ())
    return FileDescription(preprocess, labels, "Image.BitmapPixelFormat, Image.NominalPixelRange")


def _scaled(
    order: str,
    channels: int,
    *,
    resize: int | None = None,
    interpolation: str = OPENCV_BILINEAR,
    scale: float = 1 / 255,
    mean: float = 0.0,
    std: float = 1.0,
    pad: Pad | None = None,
) -> Preprocess | None:
    if len(order) != channels:
        return None
    return Preprocess(resize, interpolation, order, scale, (mean,) * channels, (std,) * channels, pad)


def parse_names(text: str) -> tuple[str, ...]:
    """Return the names of {0: 'a', 1: "b"}, ['a', "b"] or JSON's forms of them, in their order.

    None of them where the text has another form, names are missing, or one has a control character.
    """
    text = text.strip()
    if len(text) > _MOST_BYTES or (text[:1], text[-1:]) not in (("{", "}"), ("[", "]")):
        return ()
    body, place, names = text[1:-1].rstrip().removesuffix(","), 0, dict[int, str]()
    while place < len(body):
        item = _ITEM.match(body, place)
        if item is None or len(names) == _MOST_NAMES or (item[1] is None) != (text[0] == "["):
            return ()
        number = len(names) if item[1] is None else int(item[1])
        if number in names:
            return ()
        names[number] = _unquoted(item[2])
        place = item.end()
    wanted = [names.get(number, "") for number in range(len(names))]
    return tuple(wanted) if all(wanted) else ()


def _unquoted(token: str) -> str:
    try:
        value = _ESCAPE.sub(_unescaped, token[1:-1]).encode("utf-16", "surrogatepass").decode("utf-16")
    except (ValueError, OverflowError):  # half a character, or no character's number
        return ""
    return "" if _has_control(value) else value


def _has_control(text: str) -> bool:
    return any(unicodedata.category(char) == "Cc" for char in text)


def _unescaped(escape: re.Match[str]) -> str:
    code = escape[1] or escape[2] or escape[3]
    if code:
        return chr(int(code, 16))
    return escape[4] if escape[4] in "'\"\\/" else "\0"  # \n and others are of control characters
