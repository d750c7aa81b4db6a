"""Tensors of the Open Inference Protocol as clients send them."""

from tritonclient.http import InferInput
from tritonclient.utils import np_to_triton_dtype


def triton_input(array, name="input", *, binary=True):
    """Return the inputs that Triton's own client sends of an array."""
    given = InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    given.set_data_from_numpy(array, binary_data=binary)
    return [given]


def plain(array, **more):
    given = {"name": "input", "shape": list(array.shape), "datatype": "FP32", "data": array.ravel().tolist()}
    return {"inputs": [given], **more}
