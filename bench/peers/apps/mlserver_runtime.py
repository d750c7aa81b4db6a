"""MLServer: a runtime of our own, whose models run in `parallel_workers` processes.

Its guide (mlserver.readthedocs.io/en/latest/user-guide/parallel-inference.html): as many workers as cores. Adaptive
batching stays off, as by default.
"""

from __future__ import annotations

import json

from mlserver import MLModel
from mlserver.codecs import StringCodec
from mlserver.codecs.base64 import Base64Codec
from mlserver.types import InferenceRequest, InferenceResponse

from serfer_bench.peers.apps.classifier import Classifier


class Runtime(MLModel):  # type: ignore[misc] # it ships no types that are seen here
    """One input of BYTES, an image in base64; one output of BYTES, the answer as JSON."""

    async def load(self) -> bool:
        self._classifier = Classifier.of_variables()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        [image] = Base64Codec.decode_input(payload.inputs[0])
        answer = json.dumps(self._classifier.answer(image))
        return InferenceResponse(model_name=self.name, outputs=[StringCodec.encode_output("answer", [answer])])
