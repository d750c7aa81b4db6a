"""BentoML: the HTTP server and the model in one process, as many of these as cores.

Its guide (docs.bentoml.com/en/latest/build-with-bentoml/parallelize-requests.html): `workers="cpu_count"` for what
Python's lock holds up. Adaptive batching is off, as by default.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import bentoml

from serfer_bench.peers.apps.classifier import WORKERS, Classifier


@bentoml.service(workers=int(os.environ[WORKERS]), metrics={"enabled": False}, logging={"access": {"enabled": False}})
class Service:
    """A form whose field `image` is a file."""

    def __init__(self) -> None:
        self._classifier = Classifier.of_variables()

    @bentoml.api  # type: ignore[untyped-decorator] # its types are not seen here
    def classify(self, image: Path) -> dict[str, Any]:
        return self._classifier.answer(image.read_bytes())
