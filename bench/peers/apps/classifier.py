"""What every peer computes: an encoded image in, its best classes out, by ONNX Runtime on a network that is whole."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from PIL import Image

MODEL, THREADS, WORKERS, PORT, BATCH = "PEER_MODEL", "PEER_THREADS", "PEER_WORKERS", "PEER_PORT", "PEER_BATCH"
"""The variables that say what a peer serves, on how many threads a pass, in how many processes, where, and how many
images a pass takes at most."""
_TOP = 5


class Classifier:
    """A session for an ONNX file: input (N, 3, H, W) float32, RGB from 0 to 1; output (N, K), scores before softmax.

    Images have the network's size already: no resizing is compared.
    """

    def __init__(self, file: str, threads: int) -> None:
        # onnxruntime.ai/docs/performance/tune-performance/threading.html: with a process for each core, one thread in
        # each, and none that spins.
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        self._input = self._session.get_inputs()[0].name

    @classmethod
    def of_variables(cls) -> Classifier:
        return cls(os.environ[MODEL], int(os.environ[THREADS]))

    def answer(self, image: bytes) -> dict[str, Any]:
        return self.answers([image])[0]

    def answers(self, images: Sequence[bytes]) -> list[dict[str, Any]]:
        batch = np.concatenate([_decoded(image) for image in images]) if len(images) > 1 else _decoded(images[0])
        return [_best(scores) for scores in self._session.run(None, {self._input: batch})[0]]


def _decoded(image: bytes) -> NDArray[np.float32]:
    with Image.open(io.BytesIO(image)) as opened:
        pixels = np.asarray(opened.convert("RGB"))
    return pixels.transpose(2, 0, 1)[None].astype(np.float32) / np.float32(255)


def _best(scores: NDArray[np.float32]) -> dict[str, Any]:
    shares = np.exp(scores - scores.max())
    shares /= shares.sum()
    best = np.argsort(-shares)[:_TOP]
    return {"predictions": [{"index": int(place), "score": float(shares[place])} for place in best]}
