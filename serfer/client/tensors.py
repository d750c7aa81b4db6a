"""Tensors between client and service, in the Open Inference Protocol's binary form; numpy is not needed here.

A batch is anything that gives its memory, such as a numpy array; an answer's outputs are what `numpy.asarray` takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

from serfer.client.messages import Call, Reply, unreadable
from serfer.core.errors import InputError, UsageError
from serfer.core.inference_protocol import HEADER, ServedTensor, decode_answer, encode_request

MAX_ANSWER_BYTES: Final = 1024 * 1024 * 1024
INLINE: Final = "inline"
LINK: Final = "link"
_AXES = 4
_INPUTS: Final = {"f": ("input", "FP32"), "B": ("image", "UINT8")}


def infer_call(
    model: str,
    batch: Any,  # noqa: ANN401 - whatever has the buffer protocol
    outputs: Sequence[str] | None,
    deadline_ms: int | None,
    result: str = INLINE,
) -> Call:
    """Return the request for a batch, (N, C, H, W) float32 or (N, H, W, C) uint8 pixels; raises UsageError.

    `result` says whether the outputs are wanted in the answer, `INLINE`, or kept by the service, `LINK`.
    """
    try:
        view = memoryview(batch)
    except TypeError:
        raise UsageError("a batch is a numpy array, or something else that gives its memory") from None
    if view.format not in _INPUTS or view.ndim != _AXES:
        raise UsageError("a batch is (N, C, H, W) float32, or (N, H, W, C) uint8 pixels of the network's size")
    name, datatype = _INPUTS[view.format]
    wanted = {"binary_data_output": True} if result == INLINE else {}
    parameters = {"result": result} | wanted | ({} if deadline_ms is None else {"deadline_ms": deadline_ms})
    named = [{"name": output} for output in outputs or ()]
    content, length = encode_request((name, datatype, view.shape or ()), view.tobytes(), named, parameters)
    return Call(
        method="POST",
        path=f"/v2/models/{quote(model, safe='')}/infer",
        headers={HEADER: str(length), "Content-Type": "application/octet-stream"},
        content=content,
        most_reply_bytes=MAX_ANSWER_BYTES,
    )


def read_tensors(reply: Reply) -> dict[str, ServedTensor]:
    try:
        _, outputs = decode_answer(reply.body, reply.headers.get(HEADER, ""))
    except InputError as error:
        raise unreadable(str(error), reply) from error
    return {output.name: output for output in outputs}
