"""Whether a random network has a map by windows, judged by its operators and by the sizes of its maps.

It knows nothing of the splitter: ONNX Runtime computes the sizes, and what a step looks at is known where it is drawn.
"""

from fractions import Fraction
from itertools import product

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper

ELSEWHERE = ("global(", "global", "flipped", "placed")
"""Steps whose values depend on where in the image they are, or which look at all of a row or column."""
_MOST = 8
"""Of a resizing's factor: the numerator and the denominator of those after so many rows of which it begins again."""
_LEAST = 4
"""Rows and columns of a result that has windows."""


def has_a_map(case):
    """Return whether a case whose network is an ONNX file looks at neighbourhoods and at statistics, at all sizes."""
    if any(step.startswith(ELSEWHERE) or _replaces_lines(step) for step in case.story):
        return False
    heights, widths = zip(*case.sizes, strict=True)
    return all(_is_local(case, size) for size in product(heights, widths))


def _replaces_lines(step):
    return step.startswith("selected_rows") and not step.endswith("[])")


def _is_local(case, size):
    """Return whether a network runs on an image, and each of its resizings begins again after a few rows."""
    resizings = [node for node in case.model.graph.node if node.op_type == "Resize"]
    names = [name for node in resizings for name in (node.input[0], node.output[0])]
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    made = {value.name for value in model.graph.output} | {"x"}
    model.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        for name in dict.fromkeys(names)
        if name not in made
    )
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(model.SerializeToString(), options)
        image = case.image(*size)
        found = dict(zip([each.name for each in session.get_outputs()], session.run(None, {"x": image}), strict=True))
    except Exception:  # noqa: BLE001 - of ONNX Runtime, which raises several for one that does not fit
        return False
    sizes = {name: values.shape[2:] for name, values in found.items()} | {"x": size}
    if min(min(sizes[value.name]) for value in case.model.graph.output) < _LEAST:
        return False
    return all(_begins_again(case, node, sizes) for node in resizings)


def _begins_again(case, node, sizes):
    before, after = sizes[node.input[0]], sizes[node.output[0]]
    factors = [Fraction(new, old) for new, old in zip(after, before, strict=True)]
    if len(node.input) > 2 and node.input[2]:
        [scales] = [numpy_helper.to_array(each) for each in case.model.graph.initializer if each.name == node.input[2]]
        factors = [Fraction(float(scale)).limit_denominator(100) for scale in np.asarray(scales)[2:]]
    aligned = any(each.s == b"align_corners" for each in node.attribute if each.type == onnx.AttributeProto.STRING)
    if aligned and before != after:
        return False
    return all(max(factor.numerator, factor.denominator) <= _MOST for factor in factors)
