"""The description of a model package of bioimage.io, formats 0.4 and 0.5 (rdf.yaml, bioimageio.yaml).

The format is that of https://bioimage-io.github.io/spec-bioimage-io. A network of images is read: one input and one or
several outputs with the axes batch, channel, y, x, in this order. Nothing of a package is executed.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from serfer.core.errors import InputError, MissingExtraError, ModelError
from serfer.core.plan import Preprocess
from serfer.core.units import MIB
from serfer.extras import pip_command
from serfer.splitter.network.bioimageio.package_files import DESCRIPTIONS, PackageFiles
from serfer.splitter.network.bioimageio.processing import Step, preprocess_of, reduction_of

FORMATS = ("0.4", "0.5")
_AXES = "bcyx"
_ROWS = _AXES.index("y")
_MOST_DESCRIPTION_BYTES = MIB
_MOST_ONNX_BYTES = 2 * 1024 * MIB - 1
_MOST_TEST_BYTES = 256 * MIB
_MOST_CHANNELS = 4096
_MOST_TENSORS = 64
_LETTERS = {"batch": "b", "channel": "c", "time": "t", "index": "i"}


@dataclass(frozen=True)
class PackageOutput:
    """An output: its name, the halo that is published with it, and what a map makes of it.

    The halo is in pixels of the output, along rows and columns, that users of tiles should cut off at each side.
    `reduce` is as `--reduce` has it, None for nothing; `refused` says why a map does not do what the package does,
    empty where it does. `test` is the file of what the network answers to the package's test.
    """

    name: str
    halo: tuple[int, int]
    reduce: str | None
    refused: str
    test: str | None


@dataclass(frozen=True)
class Package:
    """A model package: its input's channels and preprocessing, its outputs and its test.

    `notes` say what of its description a plan does otherwise.
    """

    files: PackageFiles
    channels: int
    preprocess: Preprocess
    outputs: tuple[PackageOutput, ...]
    test: str | None
    notes: tuple[str, ...]
    weights: str
    sha256: str | None

    @property
    def called(self) -> str:
        """The package's name by its file or folder."""
        place = self.files.place
        return place.absolute().parent.name if place.name in DESCRIPTIONS else place.stem

    def network(self) -> Path:
        """Return the path of the ONNX file, the files of its weights beside it; raises ModelError."""
        path = self.files.path(self.weights, _MOST_ONNX_BYTES)
        if self.sha256 is not None and _sha256(path) != self.sha256:
            raise ModelError(
                f"{self.files.place}: {self.weights} is not the file that its description has the SHA-256 of: download "
                "the package again"
            )
        try:
            model = onnx.load(path, load_external_data=False)
        except Exception as error:  # protobuf and onnx raise many kinds
            raise ModelError(f"{self.files.place}: {self.weights} is not an ONNX model: {error!s:.200}") from error
        beside = PurePosixPath(self.weights).parent
        places = {ExternalDataInfo(each).location for each in model.graph.initializer if uses_external_data(each)}
        outside = {place: self.files.path(str(beside / place)) for place in sorted(places)}
        return self._opened(model, outside) if _is_fixed(model) else path

    def _opened(self, model: onnx.ModelProto, outside: Mapping[str, Path]) -> Path:
        """Write a network that fixes the size of images, as exports do, without these sizes, and return its path.

        Constants that depend on the size stay: the operators that have them are refused at other sizes.
        """
        del model.graph.value_info[:]
        for value in (*model.graph.input, *model.graph.output):
            for number, dim in enumerate(value.type.tensor_type.shape.dim):
                if number >= _ROWS:
                    dim.dim_param = f"{value.name}.{number}"
        folder = self.files.scratch / "of-any-size"
        for place, path in outside.items():
            copy = folder / place
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / PurePosixPath(self.weights).name
        onnx.save(model, target)
        return target

    def test_image(self) -> NDArray[Any]:
        """Return the image of the package's test, (channels, rows, cols); raises ModelError where there is none."""
        if self.test is None:
            raise ModelError(f"{self.files.place} has no test input")
        values = _array(self.files, self.test)
        if values.ndim != len(_AXES) or values.shape[:2] != (1, self.channels) or not values.size:
            raise ModelError(
                f"{self.files.place}: {self.test} has the shape {values.shape}, and a test input is one image of "
                f"{self.channels} channels"
            )
        image: NDArray[Any] = values[0]
        return image

    def test_answer(self, output: PackageOutput) -> NDArray[Any] | None:
        """Return what the package says that its network answers to the test in an output, (1, K, rows, cols)."""
        return None if output.test is None else _array(self.files, output.test)


def read_package(place: Path) -> Package:
    """Read the description of a package; raises ModelError that names what is not supported, or wrong."""
    files = PackageFiles(place)
    try:
        return _Description(files, _parsed(files)).package()
    except InputError as error:
        text = str(error)
        raise ModelError(text if text.startswith(str(place)) else f"{place}: {text}") from error


def _is_fixed(model: onnx.ModelProto) -> bool:
    """Return whether a network takes images of one size alone."""
    constants = {each.name for each in model.graph.initializer}
    images = [value for value in model.graph.input if value.name not in constants]
    return any(dim.dim_value for value in images for dim in value.type.tensor_type.shape.dim[_ROWS:])


def _parsed(files: PackageFiles) -> dict[str, Any]:
    try:
        import yaml  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        # Of the extras that have it, the one that maps images.
        needed = pip_command("rasterio")
        raise MissingExtraError(f"yaml is not installed, and this needs it: {needed}", name="yaml") from error

    class Loader(yaml.SafeLoader):
        """Refuses merge keys: merged in merged mappings double with each line."""

        def flatten_mapping(self, node: yaml.MappingNode) -> None:
            """Leave a mapping as it is written."""

    data = files.read(files.description, _MOST_DESCRIPTION_BYTES)
    try:
        table = yaml.load(data.decode(), Loader)  # noqa: S506 - a safe one
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ModelError(f"its {files.description} is not YAML: {' '.join(str(error).split())[:300]}") from error
    if not isinstance(table, dict) or table.get("type", "model") != "model":
        raise ModelError(f"its {files.description} does not describe a model")
    version = str(table.get("format_version"))
    if version.rpartition(".")[0] not in FORMATS:
        raise ModelError(
            f"its description has the format {version!r:.40}: formats {' and '.join(FORMATS)} are read; newer packages "
            "of bioimage.io have them"
        )
    return table


@dataclass(frozen=True)
class _Tensor:
    """What both formats say of a tensor: its name, axes, channels, halo, steps and its test's file.

    `axes` are letters of the axes' ids, in their order.
    """

    name: str
    axes: Mapping[str, str]
    channels: int | None
    halo: Mapping[str, int]
    steps: Sequence[Step]
    test: str | None


class _Description:
    """Reads a parsed description."""

    def __init__(self, files: PackageFiles, table: Mapping[str, Any]) -> None:
        self._files, self._table = files, table
        self._old = str(table["format_version"]).startswith("0.4")

    def package(self) -> Package:
        """Return what it describes."""
        inputs = self._tensors("inputs", "preprocessing", "test_inputs")
        outputs = self._tensors("outputs", "postprocessing", "test_outputs")
        if len(inputs) != 1:
            raise ModelError(f"its network has {len(inputs)} inputs, and a map has one image")
        [image] = inputs
        if image.channels is None or not 1 <= image.channels <= _MOST_CHANNELS:
            raise ModelError(f"it does not say how many channels its input {image.name!r:.40} has")
        own = [
            Step(each.name, {key: value for key, value in each.arguments.items() if value != image.name})
            if each.arguments.get("reference_tensor") == image.name
            else each
            for each in image.steps
        ]
        preprocess, notes = preprocess_of(own, image.channels, image.axes)
        entry = self._onnx()
        return Package(
            files=self._files,
            channels=image.channels,
            preprocess=preprocess,
            outputs=tuple(map(_output, outputs)),
            test=image.test,
            notes=tuple(notes),
            weights=_text(entry, "source", "weights.onnx"),
            sha256=str(entry["sha256"]).lower() if entry.get("sha256") else None,
        )

    def _onnx(self) -> Mapping[str, Any]:
        weights = _table(self._table.get("weights"), "weights")
        if weights.get("onnx") is None:
            kinds = ", ".join(sorted(str(each)[:40] for each in weights))
            raise ModelError(
                f"it has no ONNX weights, but {kinds or 'none'}: convert them (bioimageio.core's add_weights does), or "
                "build the module in a Python file of your own and give that, such as net.py:make"
            )
        return _table(weights["onnx"], "weights.onnx")

    def _tensors(self, key: str, steps: str, tests: str) -> list[_Tensor]:
        given = self._table.get(key)
        if not isinstance(given, list) or not 0 < len(given) <= _MOST_TENSORS:
            raise ModelError(f"its {key} are not a list of tensors")
        files = self._table.get(tests)
        found = []
        for number, each in enumerate(given):
            entry = _table(each, f"{key}[{number}]")
            if self._old:
                test = files[number] if isinstance(files, list) and number < len(files) else None
                found.append(_old_tensor(entry, key, steps, test))
            else:
                found.append(_new_tensor(entry, key, steps))
        for tensor in found:
            _check_axes(tensor)
        return found


def _output(tensor: _Tensor) -> PackageOutput:
    reduce, refused = None, ""
    try:
        reduce = reduction_of(tensor.steps, tensor.axes)
    except ModelError as error:
        refused = str(error)
    return PackageOutput(tensor.name, (tensor.halo.get("y", 0), tensor.halo.get("x", 0)), reduce, refused, tensor.test)


def _old_tensor(entry: Mapping[str, Any], key: str, steps: str, test: object) -> _Tensor:
    """Read a tensor of format 0.4: axes are a text of letters, shape and halo are lists in their order."""
    name, axes = _text(entry, "name", key), _text(entry, "axes", key)
    shape = entry.get("shape")
    if isinstance(shape, Mapping):
        shape = shape.get("min")
    sizes = shape if isinstance(shape, list) and len(shape) == len(axes) else [None] * len(axes)
    halo = entry.get("halo")
    lengths = halo if isinstance(halo, list) and len(halo) == len(axes) else [0] * len(axes)
    channels = next((size for axis, size in zip(axes, sizes, strict=True) if axis == "c"), None)
    return _Tensor(
        name=name,
        axes={axis: axis for axis in axes},
        channels=channels if type(channels) is int else None,
        halo={axis: _whole(length, f"the halo of {name}") for axis, length in zip(axes, lengths, strict=True)},
        steps=_steps(entry.get(steps), "name"),
        test=str(test) if isinstance(test, str) else None,
    )


def _new_tensor(entry: Mapping[str, Any], key: str, steps: str) -> _Tensor:
    """Read a tensor of format 0.5: each axis is a table with its type, id, size and halo."""
    name = _text(entry, "id", key)
    given = entry.get("axes")
    if not isinstance(given, list) or not 0 < len(given) <= _MOST_TENSORS:
        raise ModelError(f"the axes of {name!r:.40} are not a list")
    axes, halo, channels = dict[str, str](), dict[str, int](), None
    for each in given:
        axis = _table(each, f"an axis of {name}")
        kind = _text(axis, "type", f"an axis of {name}")
        known = str(axis.get("id", kind if kind != "space" else "x"))
        letter = _LETTERS.get(kind, known)
        axes[known] = letter
        halo[letter] = _whole(axis.get("halo", 0), f"the halo of {name}")
        names = axis.get("channel_names")
        if letter == "c":
            channels = len(names) if isinstance(names, list) else axis.get("size")
    test = entry.get("test_tensor")
    return _Tensor(
        name=name,
        axes=axes,
        channels=channels if type(channels) is int else None,
        halo=halo,
        steps=_steps(entry.get(steps), "id"),
        test=_text(test, "source", f"test_tensor of {name}") if isinstance(test, Mapping) else None,
    )


def _check_axes(tensor: _Tensor) -> None:
    """Refuse axes other than those of images, by their name."""
    letters = "".join(tensor.axes.values())
    if letters == _AXES:
        return
    strange = [name for name, letter in tensor.axes.items() if letter not in _AXES]
    if strange:
        raise ModelError(
            f"its tensor {tensor.name!r:.40} has the axis {strange[0]!r:.40}: maps are of images with batch, "
            "channel, y and x, and not of volumes or times"
        )
    raise ModelError(f"its tensor {tensor.name!r:.40} has the axes {letters!r:.40}, and a map needs {_AXES!r}")


def _steps(given: object, key: str) -> list[Step]:
    if given is None:
        return []
    if not isinstance(given, list) or len(given) > _MOST_TENSORS:
        raise ModelError("its processing is not a list of steps")
    tables = [_table(each, "a step of processing") for each in given]
    return [
        Step(_text(each, key, "a step of processing"), _table(each.get("kwargs") or {}, "kwargs")) for each in tables
    ]


def _table(given: object, what: str) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise ModelError(f"{what} of its description is not a table")
    return given


def _text(table: Mapping[str, Any], key: str, what: str) -> str:
    given = table.get(key)
    if not isinstance(given, str) or not given:
        raise ModelError(f"{what} of its description has no {key}")
    return given


def _whole(given: object, what: str) -> int:
    if type(given) is not int or not 0 <= given <= 2**20:
        raise ModelError(f"{what} is {given!r:.40}, and not a number of pixels")
    return given


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _array(files: PackageFiles, name: str) -> NDArray[Any]:
    """Return an array of a package; the file's size bounds it, and nothing in it is executed."""
    path = files.path(name, _MOST_TEST_BYTES)
    try:
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError, TypeError) as error:
        raise ModelError(f"{files.place}: {name} is not an array of numpy: {error!s:.200}") from error
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "fiub":
        raise ModelError(f"{files.place}: {name} is not an array of numbers")
    return values
