"""Sources of models (a zoo's or library's name, an ONNX file, `module.py:factory`, an nn.Module) in one form."""

from __future__ import annotations

import io
import logging
import mmap
import os
import re
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from unittest import mock

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorShapeProto, shape_inference

from serfer.core.costs.sessions import set_threads
from serfer.core.errors import ModelError
from serfer.core.plan import MAX_ELEMENTS, DetectionHead, Preprocess
from serfer.core.plan.answers import Answer, as_answer
from serfer.core.plan.pixels import check_numbers
from serfer.extras import installed
from serfer.plan_directory import is_plan_directory
from serfer.plug_ins import defined, file_module, in_one_line
from serfer.splitter.network import zoo
from serfer.splitter.network.external_weights import ExternalWeightsModel
from serfer.splitter.network.given_input import GivenInput, with_usual_input
from serfer.splitter.network.graph import bin_bounds
from serfer.splitter.network.interpolation import keep_places
from serfer.splitter.network.metadata import read_metadata
from serfer.splitter.network.named_models import NamedModel, build, is_named
from serfer.splitter.network.onnx_files import read_file
from serfer.splitter.network.onnx_models import OPSET, plain_message, session_of
from serfer.splitter.network.size_guards import Size, SizedExport, SizedExports, SizeGuards, checked_sizes, mean_pools
from serfer.splitter.network.size_hints import in_words, instead_of, size_in_metadata
from serfer.splitter.network.unsupported import check_windows

if TYPE_CHECKING:
    import torch

Array = NDArray[np.float32]
Run = Callable[[Array], Answer]
Progress = Callable[[str], None]
_Ran = TypeVar("_Ran")
MIN_OPSET = 18
_MIN_SCAN_OPSET = 11
"""The oldest opset in which a part that runs as it is can be written (Scan, Pad), and Resize is what it is now."""
_TORCH_WEIGHTS = (".pt", ".pth", ".ckpt", ".safetensors", ".bin")
_WEIGHT_FILES = (*_TORCH_WEIGHTS, ".h5", ".keras", ".pb", ".tflite", ".npz")
_INSTALLED = "site-packages"
_MOST_ON_ONE_THREAD = 2 * 3 * 512 * 512
"""Values of a batch up to which one thread is fast enough: more of them wait for one another."""
_RGB = 3
_FLOAT = int(onnx.TensorProto.FLOAT)
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
"""Linux's number, which Python has a name for from 3.13 on."""
_NOT_FUSED = ("Cannot view a tensor", "only 4D query, key, and value")
"""What torch's exporter says of attention that it cannot write as one operator."""
_IGNORING_AXES = "TransposeOptimizer", "TransposeOptimizer_CPUExecutionProvider"
"""What takes the pads and scales of axes for those of all axes, as of ONNX Runtime 1.32."""
_SILENT = 4
"""ONNX Runtime's level of errors that end the process: others are raised, and reported by SerFer."""


class ImageNotTakenError(ModelError):
    """A model does not run on an image of this size."""


@dataclass(frozen=True)
class Source:
    """A given model: its ONNX form at one input size, and `run`, the unsplit model itself.

    `run` takes (N, C, H, W) float32 and returns the outputs as `Pipeline.run` does. `origin` says whose metadata
    `preprocess` and `labels` are, where they are a file's; there may be more or fewer of these labels than classes.
    `exported`: `onnx` was exported from a module here; `outputs` are then the names of its outputs. `sized`: its
    programs for images of any size. `given`: the input of a file as it has it. `detection`: where its outputs have
    boxes, if they are a detector's; `detects`: the file's metadata say so. `unread` says why its
    operators cannot be read, so that it can only run as it is; empty where they can.
    """

    name: str
    weights: str
    onnx: ExternalWeightsModel
    run: Run
    preprocess: Preprocess | None = None
    labels: tuple[str, ...] = ()
    activation: str = "none"
    origin: str = ""
    exported: bool = True
    outputs: tuple[str, ...] = ()
    sized: SizedExports | None = None
    given: GivenInput | None = None
    detection: DetectionHead | None = None
    detects: bool = False
    unread: str = ""

    def at(self, size: Size) -> ExternalWeightsModel:
        return self.sized.of(size).onnx if self.sized else self.onnx

    def like_images(self, images: Array) -> Array:
        """Return images whose values the model takes: those given, or whole numbers in place of a noise's fractions."""
        return self.given.like_images(images) if self.given else images

    def check_numbers(self, preprocess: Preprocess) -> None:
        if self.given:
            check_numbers(preprocess, self.given.name, self.given.dtype)


def load(
    model: Any,  # noqa: ANN401 - a module, a path or a name
    example: Array | None,
    *,
    any_size: Size | None = None,
    as_is: bool = False,
) -> tuple[Source, Array]:
    """Return the source of a model and an example of its input.

    `example` is (N, C, H, W) float32; models of the zoo and of libraries bring their own. With `any_size`, a module is
    exported for images of any height and width that it treats as it does images of that size, which may be larger than
    the example. With `as_is`, a file keeps its operators of older opsets.
    Raises ModelError for what is not a model.
    """
    if is_named(model):
        return _from_library(NamedModel.of(model), example, any_size=any_size)
    if isinstance(model, Path | str):
        return _load_named(str(model), example, any_size=any_size, as_is=as_is)
    if getattr(model, "training", False):
        raise ModelError("the module is in training mode: call its eval() first")
    name = type(model).__name__.lower()
    return _from_module(model, _check_example(example), name, "given by the caller", any_size=any_size)


def _load_named(text: str, example: Array | None, *, any_size: Size | None, as_is: bool) -> tuple[Source, Array]:
    if text in zoo.ZOO:
        if any_size:
            raise ModelError(f"{text} classifies whole images: it makes no map")
        return _from_zoo(zoo.ZOO[text], example)
    if text.lower().endswith(".onnx"):
        return _from_file(Path(text), example, any_size=any_size, as_is=as_is)
    path, separator, factory = text.rpartition(":")
    if separator and path.endswith(".py"):
        given = _check_example(example)  # said before the file's imports, which may take long
        module = call_factory(Path(path), factory)
        source, example = _from_module(module, given, factory, f"from {Path(path).name}", any_size=any_size)
        return replace(source, name=Path(path).stem), example  # a function is called make, or network, in any project
    raise ModelError(_unknown(text))


def _unknown(text: str) -> str:
    suffix = Path(text).suffix.lower()
    if suffix in _WEIGHT_FILES:
        named = f"give timm:NAME or torchvision:NAME with --set weights_file={text}, or " * (suffix in _TORCH_WEIGHTS)
        return (
            f"{text} holds weights, or another framework's network, and not a module's code: {named}"
            "write a function that builds the module and loads them, and give its file and name, such as net.py:make; "
            "or export an .onnx file"
        )
    if text.endswith(".py"):
        return f"{text} is a Python file: name the function in it that returns the module, such as {text}:make"
    if is_plan_directory(text):
        return f"{text} is a plan directory, which was split before: give the network, or see serfer explain {text}"
    if Path(text).is_dir() or suffix == ".zip":
        kind = "an archive" if suffix == ".zip" else "a directory"
        return f"{text} is {kind}: give an .onnx file, module.py:factory, or a name"
    known = ", ".join(sorted(zoo.ZOO))
    return (
        f"unknown model {text!r}{zoo.meant(text)}: give a name ({known}), timm:NAME or torchvision:NAME, an .onnx "
        "file, or module.py:factory"
    )


def _check_example(example: Array | None) -> Array:
    if example is None:
        raise ModelError(
            "the size of this model's input is not known: give --size HEIGHTxWIDTH (in Python an example, (N, C, H, W) "
            "float32)"
        )
    if example.ndim != 4 or example.dtype != np.float32 or not example.size:  # noqa: PLR2004 - (N, C, H, W)
        raise ModelError(f"the example is {example.dtype} with shape {example.shape}; (N, C, H, W) float32 is needed")
    return example


def _from_zoo(entry: zoo.ZooModel, example: Array | None) -> tuple[Source, Array]:
    if example is None:
        example = noise(_RGB, (entry.size, entry.size))
    source, example = _from_module(entry.build(), _check_example(example), entry.name, entry.weights)
    labels = zoo.imagenet_labels()
    return replace(source, preprocess=entry.preprocess, labels=labels, activation=entry.activation), example


def _from_library(model: NamedModel, example: Array | None, *, any_size: Size | None) -> tuple[Source, Array]:
    shape = None if example is None else _check_example(example).shape
    network = build(model, None if shape is None else (shape[1], shape[2], shape[3]))
    if example is None:
        example = np.random.default_rng(0).standard_normal((1, *network.shape), dtype=np.float32)
    source, example = _from_module(network.module, example, network.name, network.weights, any_size=any_size)
    described = replace(source, preprocess=network.preprocess, labels=network.labels, activation=network.activation)
    return described, example


def call_factory(path: Path, factory: str) -> Any:  # noqa: ANN401 - checked to be a module by the caller
    """Return what a function of a Python file does; raises ModelError for whatever goes wrong in it."""
    if not path.exists():
        raise ModelError(f"{path} does not exist: give the Python file that has {factory}()")
    installed("torch")  # or else the user's own import of it would fail, and name no extra

    def make() -> Any:  # noqa: ANN401 - as above
        with file_module(path, f"serfer_model_{path.stem}") as code:
            return defined(code, path.name, factory)()

    try:
        return zoo.with_torchvision(make)
    except (Exception, SystemExit) as error:  # the user's own code may raise anything
        raise ModelError(f"{path}:{factory} failed: {in_one_line(error)}{_place(error, path)}") from error


def _place(error: BaseException, path: Path) -> str:
    folder = path.resolve().parent
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame for frame in frames if Path(frame.filename).is_relative_to(folder) and _INSTALLED not in frame.filename
    ]
    return f" ({own[-1].filename}, line {own[-1].lineno}, in {own[-1].name})" if own else ""


def _from_module(
    module: Any,  # noqa: ANN401 - checked here
    example: Array,
    name: str,
    weights: str,
    *,
    any_size: Size | None = None,
) -> tuple[Source, Array]:
    import torch  # noqa: PLC0415 - slow to import, and ONNX files need none of it

    if not isinstance(module, torch.nn.Module):
        raise ModelError(f"{name} is {type(module).__name__}, not a torch.nn.Module")
    module = module.eval()

    def answer(batch: Array) -> dict[str, Any]:
        with torch.inference_mode(), one_thread(batch.size <= _MOST_ON_ONE_THREAD):
            return named_outputs(module(torch.from_numpy(np.ascontiguousarray(batch))))

    def run(batch: Array) -> Answer:
        return as_answer({name: value.numpy() for name, value in answer(batch).items()})

    def outputs_of(batch: Array) -> dict[str, Any]:
        try:
            return answer(batch[:1])
        except (Exception, SystemExit) as error:  # as above
            shape = (1, *batch.shape[1:])
            raise ImageNotTakenError(
                f"the module does not run on one image, a tensor of {shape} and its only input: {in_one_line(error)}"
            ) from error

    example, outputs = _first_taken(outputs_of, example, any_size)
    for output, value in outputs.items():
        if not isinstance(value, torch.Tensor):
            raise ModelError(f"the module's forward() returns a {type(value).__name__} as {output!r}: return tensors")
    if any_size is None:
        exported, sized = _export(module, torch.from_numpy(example[:1])), None
    else:
        sized = SizedExports(partial(_export_for_any_size, module, torch.from_numpy(example[:1])))
        exported = sized.of(any_size).onnx
        example, _ = _first_taken(outputs_of, example, any_size, sized)
    return Source(name, weights, exported, run, outputs=tuple(outputs), sized=sized), example


@contextmanager
def one_thread(wanted: bool) -> Iterator[None]:  # noqa: FBT001 - it stands alone
    """Keep torch to one thread, where that is `wanted`: for little work its threads wait for one another, and spin."""
    import torch  # noqa: PLC0415 - slow to import

    before = torch.get_num_threads()
    if wanted and before > 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _first_taken(
    run: Callable[[Array], _Ran], example: Array, size: Size | None, sized: SizedExports | None = None
) -> tuple[Array, _Ran]:
    """Return the smallest image on which a model runs, and what that gave: the example, or one more like one of `size`.

    With `sized`, the model treats it as it does images of that size. Raises ImageNotTakenError where it takes none.
    """
    first: ModelError | None = None
    least = 0
    small = example.shape[2], example.shape[3]
    for candidate in checked_sizes(small, size or small):
        if candidate[0] * candidate[1] < least or (sized and size and sized.of(size).guards.broken(candidate)):
            continue
        batch = example if candidate == small else noise(example.shape[1], candidate)
        try:
            return batch, run(batch)
        except ImageNotTakenError as error:
            first, least = first or error, 2 * candidate[0] * candidate[1]
    if first is not None:
        raise first
    assert size is not None and sized is not None  # noqa: S101, PT018 - without guards an image is taken or raises
    raise ModelError(
        f"the network's Python looks at the image's size, and no image that is small enough to check windows on goes "
        f"the way of one of {size[0]} x {size[1]} pixels: that needs {sized.of(size).guards.broken(small)}"
    )


def noise(channels: int, size: Size) -> Array:
    return np.random.default_rng(0).standard_normal((1, channels, *size), dtype=np.float32)


def named_outputs(returned: Any) -> dict[str, Any]:  # noqa: ANN401 - any type that the user's module returns
    """Return what a module's forward() returned by names: the keys of dictionaries, the numbers of tuples and lists."""
    from torch.utils import _pytree  # noqa: PLC0415 - slow to import; what the exporter flattens outputs by

    leaves, _ = _pytree.tree_flatten_with_path(returned)
    kept = [(path, value) for path, value in leaves if value is not None]
    if len(kept) == 1 and not kept[0][0]:
        return {"output": kept[0][1]}
    return {".".join(_key(part) for part in path): value for path, value in kept}


def _key(part: Any) -> str:  # noqa: ANN401 - torch's keys of dictionaries, sequences and attributes
    index = getattr(part, "idx", None)
    return f"output{index}" if index is not None else str(getattr(part, "key", None) or getattr(part, "name", part))


def _export(module: torch.nn.Module, example: torch.Tensor) -> ExternalWeightsModel:
    try:
        with _inductor_cache(), _quiet():
            return _as_onnx_by_parts(module, example)
    except Exception as error:  # the exporter raises many kinds; all mean that the network cannot be traced
        raise ModelError(f"the network cannot be exported: {_why_not(error)}") from error


def _export_for_any_size(module: torch.nn.Module, small: torch.Tensor, size: Size) -> SizedExport:
    """Export a module for the images that it treats as it does images of `size`: nothing of that size is computed."""
    try:
        example = _without_memory((*small.shape[:2], *size))
    except OSError:  # not even addresses for so much, as where the system promises no more than it has
        example = small
    try:
        with _inductor_cache(), _quiet(), mean_pools():
            program = _traced(module, example)
            return SizedExport(_as_onnx(program, example), SizeGuards.of(program))
    except Exception as error:  # as above
        raise ModelError(f"the network cannot be exported for images of any size: {_why_not(error)}") from error


def _without_memory(shape: Sequence[int]) -> torch.Tensor:
    """Return a tensor, (N, C, H, W) float32, that may be larger than the machine: it has addresses, and no memory."""
    import torch  # noqa: PLC0415 - slow to import

    kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    nothing = mmap.mmap(-1, prod(shape) * torch.float32.itemsize, flags=kind)
    return torch.frombuffer(nothing, dtype=torch.float32).reshape(*shape)


def _traced(module: torch.nn.Module, example: torch.Tensor) -> torch.export.ExportedProgram:
    """Trace a module for images of any size as torch's ONNX exporter does, which keeps no guards."""
    import torch  # noqa: PLC0415 - slow to import
    from torch.fx.experimental import _config  # noqa: PLC0415 - same

    free = {2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC}
    first: Exception | None = None
    with _config.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]  # torch makes it at run time
        for strict in (False, True):
            try:
                return torch.export.export(
                    module,
                    (example,),
                    dynamic_shapes=(free,),
                    strict=strict,
                    prefer_deferred_runtime_asserts_over_guards=True,
                )
            except Exception as error:  # noqa: BLE001 - the first is raised where the other way fails, too
                first = first or error
    assert first is not None  # noqa: S101 - nothing was returned
    raise first


def _as_onnx(network: torch.nn.Module | torch.export.ExportedProgram, example: torch.Tensor) -> ExternalWeightsModel:
    import torch  # noqa: PLC0415 - slow to import

    aten = torch.ops.aten
    table: dict[Any, Any] = {aten._adaptive_avg_pool2d.default: _adaptive_average_pool}  # noqa: SLF001 - its only name
    if not isinstance(network, torch.nn.Module):  # for any size; for one, the exporter has torch's own rounded places
        table[aten._upsample_nearest_exact2d.vec] = _nearest_exact  # noqa: SLF001 - same
    program = torch.onnx.export(
        network, (example,), dynamo=True, verbose=False, opset_version=OPSET, custom_translation_table=table
    )
    if program is None:
        raise RuntimeError("torch's exporter returns nothing")
    return ExternalWeightsModel.of(program.model)


def _as_onnx_by_parts(module: torch.nn.Module, example: torch.Tensor) -> ExternalWeightsModel:
    """Export a module, with attention as products and a softmax where torch's exporter cannot write it otherwise.

    The exporter knows attention of (N, heads, positions, values) alone, and Hiera and NesT have one more axis. torch's
    fused attention also returns another memory layout than the separate operators: a reshape after it is traced as a
    view, which fails once the exporter replaces the fused operator.
    """
    import torch  # noqa: PLC0415 - slow to import

    try:
        return _as_onnx(module, example)
    except Exception as error:
        if not any(reason in _why_not(error) for reason in _NOT_FUSED):
            raise
        with mock.patch.object(torch.nn.functional, "scaled_dot_product_attention", _attention_by_parts):
            return _as_onnx(module, example)


def _attention_by_parts(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,  # noqa: ARG001 - in evaluation mode there is none
    is_causal: bool = False,  # noqa: FBT001, FBT002 - as above
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: FBT001, FBT002 - as above
) -> torch.Tensor:
    """Compute attention as the documentation of torch.nn.functional.scaled_dot_product_attention defines it."""
    import torch  # noqa: PLC0415 - slow to import

    if enable_gqa:
        key, value = (heads.repeat_interleave(query.size(-3) // heads.size(-3), -3) for heads in (key, value))
    scores = query @ key.transpose(-2, -1) * (query.size(-1) ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(query.size(-2), key.size(-2), dtype=torch.bool).tril()
    if attn_mask is not None:
        masked = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, float("-inf")) if masked else scores + attn_mask
    return scores.softmax(-1) @ value


@contextmanager
def _inductor_cache() -> Iterator[None]:
    name = "TORCHINDUCTOR_CACHE_DIR"
    with tempfile.TemporaryDirectory() as directory:
        before = os.environ.get(name)
        os.environ.setdefault(name, directory)
        try:
            yield
        finally:
            if before is None:
                del os.environ[name]


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress logs, warnings and dumps of torch's exporter: the errors it raises are enough."""
    disabled = logging.root.manager.disable
    logging.disable()
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def _why_not(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    branch = re.search(r'raised this error:\n *File "(.*)", line (\d+), in .*\n *(.*)', str(error))
    if branch and type(error).__name__ == "GuardOnDataDependentSymNode":
        file, line, code = branch.groups()
        return f"what it computes depends on the values of the image at {file}:{line} ({code})"
    operator = re.search(r"No ONNX function found for <OpOverload\(op='([^']*)'", str(error))
    if operator:
        return f"ONNX has no operator for {operator[1]}; write it with others"
    return in_one_line(error)


def _adaptive_average_pool(x: Any, output_size: Any) -> Any:  # noqa: ANN401 - onnxscript's symbolic tensors
    """The matrices' zeros mark the positions outside each mean; they are needed where windows differ in size."""
    import onnxscript  # noqa: PLC0415 - only exporting needs it
    from onnxscript import opset20  # noqa: PLC0415 - same

    if not all(isinstance(extent, int) for extent in (*x.shape[2:], *output_size)):
        return _adaptive_average_pool_of_any_size(x, output_size)
    size = int(x.shape[2]), int(x.shape[3])
    out = int(output_size[0]), int(output_size[1])
    if size == out:
        return opset20.Identity(x)
    if size[0] % out[0] == 0 == size[1] % out[1]:
        window = [size[0] // out[0], size[1] // out[1]]
        return opset20.AveragePool(x, kernel_shape=window, strides=window)
    rows: Any = onnxscript.ir.tensor(mean_matrix(size[0], out[0]))
    cols: Any = onnxscript.ir.tensor(np.ascontiguousarray(mean_matrix(size[1], out[1]).T))
    return opset20.MatMul(opset20.Constant(value=rows), opset20.MatMul(x, opset20.Constant(value=cols)))


def _nearest_exact(x: Any, output_size: Any = None, scale_factors: Any = None) -> Any:  # noqa: ANN401 - as above
    """Write "nearest-exact" as a Resize; torch's exporter lists the place of every pixel: gigabytes, for any size."""
    from onnxscript import opset20  # noqa: PLC0415 - only exporting needs it

    scales: Any = scale_factors and opset20.Constant(value_floats=[1.0, 1.0, *scale_factors])
    sizes: Any = None
    if scales is None:
        sizes = opset20.Cast(output_size, to=onnx.TensorProto.INT64)
        sizes = opset20.Concat(opset20.Shape(x, end=2), sizes, axis=0)
    modes: Any = {"coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_ceil"}
    return opset20.Resize(x, None, scales, sizes, mode="nearest", **modes)


def _adaptive_average_pool_of_any_size(x: Any, output_size: Any) -> Any:  # noqa: ANN401 - as above
    """Write it as rows @ x @ columns, matrices that are computed from the map's size, so once that is known folded."""
    from onnxscript import opset20  # noqa: PLC0415 - only exporting needs it

    op: Any = opset20  # its methods' types are those of tensors, of which none are here

    zero, one = op.Constant(value_int=0), op.Constant(value_int=1)
    matrices = []
    for axis, given in ((2, output_size[0]), (3, output_size[1])):
        scalar = op.Constant(value_ints=[])
        size = op.Reshape(op.Shape(x, start=axis, end=axis + 1), scalar)
        outputs = op.Constant(value_int=given) if isinstance(given, int) else op.Reshape(given, scalar)
        output = op.Unsqueeze(op.Range(zero, outputs, one), op.Constant(value_ints=[1]))
        first = op.Div(op.Mul(output, size), outputs)
        stop = op.Div(op.Sub(op.Add(op.Mul(op.Add(output, one), size), outputs), one), outputs)
        place = op.Unsqueeze(op.Range(zero, size, one), op.Constant(value_ints=[0]))
        inside = op.And(op.GreaterOrEqual(place, first), op.Less(place, stop))
        matrices.append(op.Div(op.Cast(inside, to=_FLOAT), op.Cast(op.Sub(stop, first), to=_FLOAT)))
    rows, cols = matrices
    return op.MatMul(rows, op.MatMul(x, op.Transpose(cols, perm=[1, 0])))


def mean_matrix(size: int, outputs: int) -> Array:
    """Return the (outputs, size) matrix of adaptive average pooling along one axis.

    Output i is the mean of [floor(i * size / outputs), ceil((i + 1) * size / outputs)).
    """
    first, stop = (bound[:, None] for bound in bin_bounds(size, outputs))
    rows = np.arange(size)
    return np.asarray(((rows >= first) & (rows < stop)) / (stop - first), np.float32)


def _from_file(path: Path, example: Array | None, *, any_size: Size | None, as_is: bool) -> tuple[Source, Array]:
    model = read_file(path)
    properties = {entry.key: entry.value for entry in model.proto.metadata_props}
    declared = [[dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in model.proto.graph.output]
    opset = max((item.version for item in model.proto.opset_import if not item.domain), default=0)
    if strange := [value.name for value in model.proto.graph.output if not value.type.HasField("tensor_type")]:
        raise ModelError(f"{path} gives {strange[0]!r}, a sequence or a map and not a tensor: export it with tensors")
    unread = ""
    keeps_opset = as_is and with_usual_input(model)[0] is model
    if opset < _MIN_SCAN_OPSET or (opset < MIN_OPSET and not keeps_opset):
        model, unread = _upgrade_opset(path, model, opset)
    model, given = with_usual_input(model)
    example = _check_example(_example_of(path, model) if example is None else given.as_images(example))
    example = given.like_images(example)
    light, run = _with_channels(model, example), _runner(path, given, model)
    if any_size:
        with suppress(ImageNotTakenError):  # reading its operators at that size says which of them is the reason
            example, _ = _first_taken(run, example, any_size)
            example = given.like_images(example)
    known = read_metadata(properties, example.shape, declared)
    # A map's labels are given, or none: what fits is known too late.
    labels = () if any_size and not known.detects else known.labels
    source = Source(path.stem, f"from {path.name}", light, run, given.suited(known.preprocess), labels, exported=False)
    source = replace(source, origin=known.origin, detects=known.detects, given=given)
    return replace(source, unread=unread), example


def channels_of(model: Any) -> int:  # noqa: ANN401 - as above
    """Return how many channels the images of an ONNX file have, 3 where it does not fix that, or of another model."""
    if not isinstance(model, Path | str) or not str(model).lower().endswith(".onnx"):
        return _RGB
    try:
        read, _ = with_usual_input(read_file(Path(model)))
    except ModelError:  # `load` raises it again
        return _RGB
    return next((dim.dim_value for dim in _dims(read)[1:2]), 0) or _RGB


def _dims(model: ExternalWeightsModel) -> Sequence[TensorShapeProto.Dimension]:
    return model.inputs[0].type.tensor_type.shape.dim if model.inputs else ()


def _with_channels(model: ExternalWeightsModel, example: Array) -> ExternalWeightsModel:
    fixed = model.copied()
    for dim in _dims(fixed)[1:2]:
        dim.dim_value = dim.dim_value or example.shape[1]
    return fixed


def _upgrade_opset(path: Path, model: ExternalWeightsModel, opset: int) -> tuple[ExternalWeightsModel, str]:
    """Return a model at the opset that is read here; or itself, which can run as it is, and why it cannot be."""
    try:
        proto = onnx.version_converter.convert_version(model.proto, OPSET)
    except Exception as error:  # the converter raises RuntimeError and others for operators it does not know
        why = f"it has opset {opset} and cannot be converted to {OPSET}: {(str(error).splitlines() or [''])[0]}"
        if opset < _MIN_SCAN_OPSET:
            raise ModelError(f"{path}: {why}; export it again") from error
        return model, why
    if opset < _MIN_SCAN_OPSET:
        keep_places(proto)
    return replace(model, proto=proto), ""


def _example_of(path: Path, model: ExternalWeightsModel) -> Array:
    dims = [dim.dim_value for dim in _dims(model)]
    size = size_in_metadata(model.proto)
    if size and all(side in (0, own) for side, own in zip(dims[2:], size, strict=True)):
        dims[2:] = size
    if not all(dims[2:]):
        raise ModelError(f"{path} does not fix its input's size: {in_words(model, dims[2:])}")
    if not dims[1]:
        raise ModelError(
            f"{path} does not fix its input's channels: give --size {dims[2]}x{dims[3]} and --set channels=N (in "
            "Python an example)"
        )
    if min(dims[1:]) < 0 or prod(dims[1:]) > MAX_ELEMENTS:
        given = " x ".join(map(str, dims[1:]))
        raise ModelError(f"{path} takes images of {given}: an image has at least 1 and at most {MAX_ELEMENTS:,} values")
    return np.random.default_rng(0).standard_normal((1, *dims[1:]), dtype=np.float32)


def _runner(path: Path, given: GivenInput, model: ExternalWeightsModel) -> Run:
    """Weights in 8 bits of a network that rounds nothing else to them are computed with in float32, as in its plans."""
    session: ort.InferenceSession | None = None
    fitting: set[tuple[int, ...]] = set()
    options = ort.SessionOptions()
    set_threads(options, threads=0)
    options.log_severity_level = _SILENT
    if all(node.op_type != "QuantizeLinear" for node in model.proto.graph.node):
        options.add_session_config_entry("session.disable_quant_qdq", "1")

    def run(batch: Array) -> Answer:
        nonlocal session
        try:
            if batch.shape[2:] not in fitting:  # ONNX Runtime 1.32 ends the process at an optimised pool of no size
                check_windows(_inferred(model, batch.shape[2:]))
                fitting.add(batch.shape[2:])
            session = session or session_of(path, options, without=_IGNORING_AXES)
            names = [output.name for output in session.get_outputs()]
            answers = [
                [
                    given.answers(*output, count)
                    for output in zip(names, session.run(names, {given.name: images}), strict=True)
                ]
                for images, count in given.feeds(batch)
            ]
            outputs = zip(names, zip(*answers, strict=True), strict=True)
            return as_answer({name: _joined(values) for name, values in outputs})
        except Exception as error:  # ONNX Runtime has a class for each status
            size = batch.shape[2], batch.shape[3]
            raise ImageNotTakenError(
                f"{path} does not run in ONNX Runtime: {plain_message(error)}{instead_of(model, size)}"
            ) from error

    return run


def _inferred(model: ExternalWeightsModel, size: Sequence[int]) -> onnx.ModelProto:
    fixed = model.copied()
    for dim, side in zip(_dims(fixed)[2:], size, strict=False):
        dim.dim_value = side
    return shape_inference.infer_shapes(fixed.proto)


def _joined(values: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return an output for several images, a number for each of them too; what is computed in fp16 is float32 here."""
    whole = values[0] if len(values) == 1 else np.concatenate(values) if values[0].ndim else np.stack(values)
    return whole.astype(np.float32) if whole.dtype == np.float16 else whole
