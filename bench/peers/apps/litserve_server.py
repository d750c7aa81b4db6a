"""LitServe: a process for each worker takes requests from the HTTP server's queue.

The documentation of LitServer (litserve 0.2.19) for CPUs: `workers_per_device` as many as cores; `fast_queue` above 100
requests a second. An HTTP server for each worker is the default. With batches, a pass takes what waits: none waits for
more (`batch_timeout`).
"""

from __future__ import annotations

import os
from base64 import b64decode
from typing import Any

import litserve

from serfer_bench.peers.apps.classifier import BATCH, PORT, WORKERS, Classifier


class Api(litserve.LitAPI):  # type: ignore[misc] # it ships no types that are seen here
    """Images in base64 in, classes out."""

    def setup(self, device: str) -> None:  # noqa: ARG002 - LitServe's signature
        self._classifier = Classifier.of_variables()

    def decode_request(self, request: dict[str, str]) -> bytes:
        return b64decode(request["image"])

    def batch(self, inputs: list[bytes]) -> list[bytes]:
        return inputs

    def predict(self, images: bytes | list[bytes]) -> dict[str, Any] | list[dict[str, Any]]:
        return self._classifier.answers(images) if isinstance(images, list) else self._classifier.answer(images)

    def unbatch(self, output: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return output

    def encode_response(self, output: dict[str, Any]) -> dict[str, Any]:
        return output


if __name__ == "__main__":
    api = Api(max_batch_size=int(os.environ[BATCH]), batch_timeout=0.0)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=int(os.environ[WORKERS]), fast_queue=True)
    server.run(host="127.0.0.1", port=int(os.environ[PORT]), generate_client_file=False, log_level="warning")
