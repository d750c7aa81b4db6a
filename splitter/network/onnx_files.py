"""An ONNX file as all commands read it: in one form, whatever its writer chose of what ONNX Runtime runs.

ONNX's checker, its version converter and the reader of operators each refuse other files that ONNX Runtime runs:

    sparse tensors                          dense, of at most MOST_CONSTANT_BYTES together
    the domain "ai.onnx"                    ONNX's own domain, whose name is empty
    functions of the file's own             written out, before the opset is converted
    IR 1 to 3                               as IR 4, whose weights need not be inputs
    GroupNormalization of opset 18 to 20    plain operators
    operators in any order, no shapes       sorted, open shapes (ONNX Runtime's fp16 converter writes such files)
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import onnx
import onnx.inliner
import onnxruntime as ort
from onnx import AttributeProto, TensorProto, TensorShapeProto, helper, numpy_helper, shape_inference
from onnxscript import ir

from serfer.core.errors import ModelError, PlanWarning
from serfer.splitter.network.external_weights import ExternalWeightsModel
from serfer.splitter.network.graph import MAP_RANK
from serfer.splitter.network.group_norms import with_plain_group_norms
from serfer.splitter.network.onnx_models import OPSET, model_of, session_of

MOST_CONSTANT_BYTES = 2 * 1024**3
"""What constants that are computed while a network is read may take together: as much as an ONNX file holds."""
_MOST_ONNX_BYTES = 2 * 1024**3 - 1
_ONE_PROCESSOR = "com.microsoft.nchwc"
"""The domain of operators on channels in blocks, whose size is a processor's."""
_ONE_PROCESSORS = (
    "was saved by ONNX Runtime with all optimisations, for one kind of processor: save it with basic ones, or give the "
    "file that it was made of"
)
_MENDED = (
    "topologically sorted",
    "GroupNormalization is deprecated",
    "Field 'shape' of 'type' is required",
    "in initializer but not in graph input",
    "No opset import for domain 'ai.onnx'",
    "Field 'name' of 'graph' is required",
    "Field 'type' of 'value_info' is required",
    "model with IR version < 3 cannot have opset_import",
    "not compatible with the version imported by model",
)
"""What the checker says of files that ONNX Runtime runs."""


def read_file(path: Path) -> ExternalWeightsModel:
    """Read an ONNX file; raises ModelError for one that cannot be read, or that ONNX's checker refuses rightly."""
    _check_size(path)
    try:
        return _checked(path)
    except ModelError:
        raise
    except Exception as error:  # the checker and the reader raise many kinds, for directories too
        why = str(error).partition("\n")[0]
        if lacking := _lacking_weights(path, why):
            raise ModelError(lacking) from error
        if "is higher than the checker's" in why:
            why = f"its IR version is newer than those that are read: export it with opset {OPSET}"
        if "does not have an ir_version" in why:  # a field that every model has
            why = "it is a file of another kind"
        raise ModelError(f"{path} is not an ONNX model: {why}") from error


def _check_size(path: Path) -> None:
    try:
        size = path.stat().st_size
        if path.is_dir():
            raise ModelError(f"{path} is a directory, not an .onnx file")
        path.open("rb").close()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    if not size:
        raise ModelError(f"{path} is not an ONNX model: it is empty")
    if size > _MOST_ONNX_BYTES:
        raise ModelError(f"{path} is larger than 2 GB; save its weights as external data")


def _checked(path: Path) -> ExternalWeightsModel:
    try:
        onnx.checker.check_model(path)  # by its path: the file is never in memory together with the model
    except onnx.checker.ValidationError as error:
        if not any(fault in str(error) for fault in _MENDED):
            raise
        try:
            model = _in_one_form(path, sort=True)
            with_plain_group_norms(model.proto)
            if not all(value.HasField("type") for value in model.proto.graph.output):
                model = replace(model, proto=shape_inference.infer_shapes(model.proto))
            _check_without_shapes(model.proto)
        except ModelError:
            raise
        except Exception:  # noqa: BLE001 - any failure means that this was not the only fault
            raise error from None
        return model
    return _in_one_form(path)


def _in_one_form(path: Path, *, sort: bool = False) -> ExternalWeightsModel:
    proto = onnx.load(path, load_external_data=False)
    _check_version(path, proto)
    proto.graph.name = proto.graph.name or "graph"
    _Dense(path).fill(proto.graph, (node for function in proto.functions for node in function.node))
    for holder in (proto, *proto.functions):
        own = [item for item in holder.opset_import if item.domain in ("", "ai.onnx")]
        for item in own[:1]:
            item.domain = ""
        for item in own[1:]:
            holder.opset_import.remove(item)
    whole = ir.from_proto(proto)
    ir.external_data.set_base_dir(whole.graph, path.parent)
    if sort:
        whole.graph.sort()
    model = ExternalWeightsModel.of(whole)
    if not proto.functions:
        return model
    return replace(model, proto=onnx.inliner.inline_local_functions(model.proto, convert_version=True))


def _check_version(path: Path, proto: onnx.ModelProto) -> None:
    """Refuse what the ONNX Runtime that is there, or onnx, does not read; warn of what other processors do not run."""
    opset = max((item.version for item in proto.opset_import if item.domain in ("", "ai.onnx")), default=0)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    probe = model_of([helper.make_node("Identity", ["x"], ["y"])], values[:1], values[1:], opset=opset)
    probe.ir_version = proto.ir_version
    try:
        session_of(probe)
        read = opset <= onnx.defs.onnx_opset_version()
    except Exception:  # noqa: BLE001 - ONNX Runtime has a class for each status
        read = False
    if not read:
        versions = f"opset {opset} and IR version {proto.ir_version}, newer than ONNX Runtime {ort.__version__}"
        raise ModelError(f"{path} has {versions} or onnx {onnx.__version__} reads: export it with opset {OPSET}")
    if any(node.domain == _ONE_PROCESSOR for node in proto.graph.node):
        warnings.warn(f"{path} {_ONE_PROCESSORS}", PlanWarning, stacklevel=2)


class _Dense:
    """Writes sparse tensors as dense ones; a few bytes can declare more than memory holds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._bytes = 0

    def fill(self, graph: onnx.GraphProto, others: Iterable[onnx.NodeProto] = ()) -> None:
        graph.initializer.extend(self._tensor(sparse) for sparse in graph.sparse_initializer)
        del graph.sparse_initializer[:]
        for attribute in (attribute for node in (*graph.node, *others) for attribute in node.attribute):
            if attribute.type == AttributeProto.SPARSE_TENSOR:
                attribute.CopyFrom(helper.make_attribute("value", self._tensor(attribute.sparse_tensor)))
            for inner in (attribute.g, *attribute.graphs) if attribute.type in _GRAPHS else ():
                self.fill(inner)

    def _tensor(self, sparse: onnx.SparseTensorProto) -> TensorProto:
        kind = helper.tensor_dtype_to_np_dtype(sparse.values.data_type)
        self._bytes += kind.itemsize * prod(sparse.dims)
        if self._bytes > MOST_CONSTANT_BYTES:
            raise ModelError(f"{self._path} has sparse tensors of more than {MOST_CONSTANT_BYTES:,} bytes when dense")
        dense = np.zeros(tuple(sparse.dims), kind)
        places = numpy_helper.to_array(sparse.indices)
        flat = places if places.ndim == 1 else np.ravel_multi_index(tuple(places.T), dense.shape)
        dense.reshape(-1)[flat] = numpy_helper.to_array(sparse.values)
        return numpy_helper.from_array(dense, sparse.values.name)


_GRAPHS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)


def _check_without_shapes(model: onnx.ModelProto) -> None:
    """Check a model of which inputs and outputs may lack a shape; such an input gets the axes of images, all open."""
    graph = model.graph
    lacking = [value for value in (*graph.input, *graph.output) if not value.type.tensor_type.HasField("shape")]
    for value in lacking:
        value.type.tensor_type.shape.SetInParent()
    onnx.checker.check_model(model)
    for value in lacking:
        if value in graph.input:
            value.type.tensor_type.shape.dim.extend(TensorShapeProto.Dimension() for _ in range(MAP_RANK))
        else:
            value.type.tensor_type.ClearField("shape")


def _lacking_weights(path: Path, why: str) -> str:
    """Say that the files of a model's weights are not beside it, or not whole; empty where that is not the fault."""
    if missing := re.search(r"should be stored in (.+), but it (?:is not|does)", why):
        name = Path(missing[1]).name
        return (
            f"{path} has its weights in {name}, which is not a file beside it: copy it there, or export with one file"
        )
    if "buffer is smaller than requested" in why or "cannot mmap an empty file" in why:
        return f"{path} has its weights in another file, which is cut off: copy it again"
    return ""
