"""LitServe: a process for each worker takes requests from the HTTP server's queue.

The documentation of LitServer (litserve 0.2.19) for CPUs: `workers_per_device` as many as cores; `fast_queue` above 100
requests a second. An HTTP server for each worker is the default. Batching stays off: one image keeps a core busy.
"""

from __future__ import annotations

import os
from base64 import b64decode
from typing import Any

import litserve

from serfer_bench.peers.apps.classifier import PORT, WORKERS, Classifier


class Api(litserve.LitAPI):  # type: ignore[misc] # it ships no types that are seen here
    """Images in base64 in, classes out."""

    def setup(self, device: str) -> None:  # noqa: ARG002 - LitServe's signature
        self._classifier = Classifier.of_variables()

    def decode_request(self, request: dict[str, str]) -> bytes:
        return b64decode(request["image"])

    def predict(self, image: bytes) -> dict[str, Any]:
        return self._classifier.answer(image)

    def encode_response(self, output: dict[str, Any]) -> dict[str, Any]:
        return output


if __name__ == "__main__":
    server = litserve.LitServer(Api(), accelerator="cpu", workers_per_device=int(os.environ[WORKERS]), fast_queue=True)
    server.run(host="127.0.0.1", port=int(os.environ[PORT]), generate_client_file=False, log_level="warning")
