"""SerFer: serverless inference of convolutional networks, split into layers and tiles that run on AWS Lambda.

    plan = serfer.split(model, example, out="plan", grids=(2, 2))
    with serfer.open("plan", workers="local") as pipeline:
        logits = pipeline.run(batch)

Importing this package imports neither torch nor boto3: its attributes load what they need when first used.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

from serfer import torchvision_import

if TYPE_CHECKING:
    from serfer.client import AsyncClient as AsyncClient
    from serfer.client import Client as Client
    from serfer.core.plan import Plan as Plan
    from serfer.pipeline import Pipeline as Pipeline
    from serfer.wiring import open_pipeline as open  # noqa: A004 - serfer.open reads as tarfile.open does
    from splitter.split import split as split

# ONNX Runtime would report to its maker, and keep an identifier in the home directory and a file in TMPDIR for that.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

torchvision_import.install()

__version__ = "0.1.0"
__all__ = ["AsyncClient", "Client", "Pipeline", "Plan", "__version__", "open", "split"]

_HOMES = {
    "AsyncClient": ("serfer.client", "AsyncClient"),
    "Client": ("serfer.client", "Client"),
    "Pipeline": ("serfer.pipeline", "Pipeline"),
    "Plan": ("serfer.core.plan", "Plan"),
    "open": ("serfer.wiring", "open_pipeline"),
    "split": ("splitter.split", "split"),
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'serfer' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(import_module(module), attribute)
