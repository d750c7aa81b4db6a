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
from serfer.extras import named_extras

if TYPE_CHECKING:
    from serfer.client.client import AsyncClient as AsyncClient
    from serfer.client.client import AsyncJob as AsyncJob
    from serfer.client.client import Client as Client
    from serfer.client.client import Job as Job
    from serfer.core.errors import AlteredPieceError as AlteredPieceError
    from serfer.core.errors import BrokenPlanError as BrokenPlanError
    from serfer.core.errors import CeilingError as CeilingError
    from serfer.core.errors import DeadlineError as DeadlineError
    from serfer.core.errors import ImageError as ImageError
    from serfer.core.errors import ImageTooLargeError as ImageTooLargeError
    from serfer.core.errors import InputError as InputError
    from serfer.core.errors import KeyRefusedError as KeyRefusedError
    from serfer.core.errors import LambdaThrottledError as LambdaThrottledError
    from serfer.core.errors import LambdaUnavailableError as LambdaUnavailableError
    from serfer.core.errors import MissingExtraError as MissingExtraError
    from serfer.core.errors import MissingKeyError as MissingKeyError
    from serfer.core.errors import ModelError as ModelError
    from serfer.core.errors import NotFiniteError as NotFiniteError
    from serfer.core.errors import OverloadedError as OverloadedError
    from serfer.core.errors import PlanError as PlanError
    from serfer.core.errors import PlanWarning as PlanWarning
    from serfer.core.errors import QueryError as QueryError
    from serfer.core.errors import RequestRefusedError as RequestRefusedError
    from serfer.core.errors import SerferError as SerferError
    from serfer.core.errors import ServiceDeadlineError as ServiceDeadlineError
    from serfer.core.errors import ServiceError as ServiceError
    from serfer.core.errors import ServiceUnavailableError as ServiceUnavailableError
    from serfer.core.errors import StoreError as StoreError
    from serfer.core.errors import StoreUnavailableError as StoreUnavailableError
    from serfer.core.errors import TaskFailedError as TaskFailedError
    from serfer.core.errors import UnavailableError as UnavailableError
    from serfer.core.errors import UsageError as UsageError
    from serfer.core.errors import ValueTooLargeError as ValueTooLargeError
    from serfer.core.errors import WrongAnswerError as WrongAnswerError
    from serfer.core.plan import Plan as Plan
    from serfer.core.plan import Preprocess as Preprocess
    from serfer.core.report import QueryReport as QueryReport
    from serfer.core.served import ServedReport as ServedReport
    from serfer.pipeline.pipeline import Pipeline as Pipeline
    from serfer.pipeline.result import Result as Result
    from serfer.wiring.open_pipeline import open_pipeline as open  # noqa: A004 - serfer.open reads as tarfile.open does
    from splitter.split import split as split

# ONNX Runtime would report to its maker, and keep an identifier in the home directory and a file in TMPDIR for that.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

torchvision_import.install()

__version__ = "0.1.0"
__all__ = [
    "AlteredPieceError",
    "AsyncClient",
    "AsyncJob",
    "BrokenPlanError",
    "CeilingError",
    "Client",
    "DeadlineError",
    "GangAbortedError",
    "GangStalledError",
    "ImageError",
    "ImageTooLargeError",
    "InputError",
    "Job",
    "KeyRefusedError",
    "LambdaThrottledError",
    "LambdaUnavailableError",
    "MissingExtraError",
    "MissingKeyError",
    "ModelError",
    "NotFiniteError",
    "OverloadedError",
    "Pipeline",
    "Plan",
    "PlanError",
    "PlanWarning",
    "Preprocess",
    "QueryError",
    "QueryReport",
    "RequestRefusedError",
    "Result",
    "SerferError",
    "ServedReport",
    "ServiceDeadlineError",
    "ServiceError",
    "ServiceUnavailableError",
    "StoreError",
    "StoreUnavailableError",
    "TaskFailedError",
    "UnavailableError",
    "UsageError",
    "ValueTooLargeError",
    "WrongAnswerError",
    "__version__",
    "open",
    "split",
]

_HOMES = {
    "AsyncClient": ("serfer.client.client", "AsyncClient"),
    "AsyncJob": ("serfer.client.client", "AsyncJob"),
    "Client": ("serfer.client.client", "Client"),
    "Job": ("serfer.client.client", "Job"),
    "Pipeline": ("serfer.pipeline.pipeline", "Pipeline"),
    "Plan": ("serfer.core.plan", "Plan"),
    "Preprocess": ("serfer.core.plan", "Preprocess"),
    "QueryReport": ("serfer.core.report", "QueryReport"),
    "Result": ("serfer.pipeline.result", "Result"),
    "ServedReport": ("serfer.core.served", "ServedReport"),
    "open": ("serfer.wiring.open_pipeline", "open_pipeline"),
    "split": ("splitter.split", "split"),
}
_ERRORS = "serfer.core.errors"


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'serfer' has no attribute {name!r}")
    module, attribute = _HOMES.get(name, (_ERRORS, name))
    with named_extras():
        return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
