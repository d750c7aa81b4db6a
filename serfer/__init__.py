"""SerFer: serverless inference of convolutional networks, split into layers and tiles that run on AWS Lambda.

    plan = serfer.split(model, example, out="plan", grids=(2, 2))
    with serfer.open("plan", workers="local") as pipeline:
        logits = pipeline.run(batch)

Importing this package imports neither torch nor boto3: its attributes load what they need when first used.
"""

from __future__ import annotations

import os
from importlib import import_module

TYPE_CHECKING = False  # typing's, which takes a while to import: the command first sees to an interrupt
if TYPE_CHECKING:
    from serfer.client.async_client import AsyncClient as AsyncClient
    from serfer.client.async_client import AsyncJob as AsyncJob
    from serfer.client.results import AsyncServedResult as AsyncServedResult
    from serfer.client.results import ServedOutput as ServedOutput
    from serfer.client.results import ServedResult as ServedResult
    from serfer.client.sync_client import Client as Client
    from serfer.client.sync_client import Job as Job
    from serfer.core.errors import AlteredPieceError as AlteredPieceError
    from serfer.core.errors import BrokenPlanError as BrokenPlanError
    from serfer.core.errors import CeilingError as CeilingError
    from serfer.core.errors import DeadlineError as DeadlineError
    from serfer.core.errors import ImageError as ImageError
    from serfer.core.errors import ImageTooLargeError as ImageTooLargeError
    from serfer.core.errors import IncompleteMapError as IncompleteMapError
    from serfer.core.errors import InputError as InputError
    from serfer.core.errors import KeyRefusedError as KeyRefusedError
    from serfer.core.errors import LambdaThrottledError as LambdaThrottledError
    from serfer.core.errors import LambdaUnavailableError as LambdaUnavailableError
    from serfer.core.errors import MissingExtraError as MissingExtraError
    from serfer.core.errors import MissingKeyError as MissingKeyError
    from serfer.core.errors import ModelError as ModelError
    from serfer.core.errors import NetworkLoadError as NetworkLoadError
    from serfer.core.errors import NotFiniteError as NotFiniteError
    from serfer.core.errors import OverloadedError as OverloadedError
    from serfer.core.errors import PlanError as PlanError
    from serfer.core.errors import PlanWarning as PlanWarning
    from serfer.core.errors import QueryError as QueryError
    from serfer.core.errors import RegistrationLostError as RegistrationLostError
    from serfer.core.errors import RequestRefusedError as RequestRefusedError
    from serfer.core.errors import ResultDamagedError as ResultDamagedError
    from serfer.core.errors import ResultGoneError as ResultGoneError
    from serfer.core.errors import SerferError as SerferError
    from serfer.core.errors import ServiceDeadlineError as ServiceDeadlineError
    from serfer.core.errors import ServiceError as ServiceError
    from serfer.core.errors import ServiceUnavailableError as ServiceUnavailableError
    from serfer.core.errors import StoreError as StoreError
    from serfer.core.errors import StoreUnavailableError as StoreUnavailableError
    from serfer.core.errors import TaskFailedError as TaskFailedError
    from serfer.core.errors import UnavailableError as UnavailableError
    from serfer.core.errors import UnmetObjectivesError as UnmetObjectivesError
    from serfer.core.errors import UsageError as UsageError
    from serfer.core.errors import ValueTooLargeError as ValueTooLargeError
    from serfer.core.errors import WrongAnswerError as WrongAnswerError
    from serfer.core.http_messages import Objectives as Objectives
    from serfer.core.http_messages import SelectedVariant as SelectedVariant
    from serfer.core.http_messages import ServedPrediction as ServedPrediction
    from serfer.core.http_messages import ServedReport as ServedReport
    from serfer.core.inference_protocol import ServedTensor as ServedTensor
    from serfer.core.plan import Plan as Plan
    from serfer.core.plan import Preprocess as Preprocess
    from serfer.core.plan import SideLimit as SideLimit
    from serfer.core.plan.image_normalisation import ImageNormalisation as ImageNormalisation
    from serfer.core.plan.image_normalisation import ImageStatistics as ImageStatistics
    from serfer.core.report import PredictedImage as PredictedImage
    from serfer.core.report import QueryReport as QueryReport
    from serfer.mapping.many_images import ManyReport as ManyReport
    from serfer.mapping.map import map_image as map  # noqa: A004 - a map of an image
    from serfer.mapping.map import map_many as map_many
    from serfer.mapping.map_network import MapNetwork as MapNetwork
    from serfer.mapping.options import MapOptions as MapOptions
    from serfer.mapping.report import MapReport as MapReport
    from serfer.pipeline.blocking import Pipeline as Pipeline
    from serfer.pipeline.result import Result as Result
    from serfer.results.manifest import ResultManifest as ResultManifest
    from serfer.results.results import StoredResult as StoredResult
    from serfer.splitter.describe import describe as describe
    from serfer.splitter.map_plan import map_plan as map_plan
    from serfer.splitter.map_plan_options import MapPlanOptions as MapPlanOptions
    from serfer.splitter.network.named_models import NamedModel as NamedModel
    from serfer.splitter.planning.split_options import FunctionOptions as FunctionOptions
    from serfer.splitter.planning.split_options import SplitOptions as SplitOptions
    from serfer.splitter.split import split as split
    from serfer.splitter.whole import whole_plan as whole_plan
    from serfer.variants.register import Registered as Registered
    from serfer.variants.register import register as register
    from serfer.variants.register_options import RegisterOptions as RegisterOptions
    from serfer.wiring.open_pipeline import open_pipeline as open  # noqa: A004 - serfer.open reads as tarfile.open does

# ONNX Runtime would report to its maker, and keep an identifier in the home directory and a file in TMPDIR for that.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__version__ = "0.2.0"
__all__ = [
    "AlteredPieceError",
    "AsyncClient",
    "AsyncJob",
    "AsyncServedResult",
    "BrokenPlanError",
    "CeilingError",
    "Client",
    "DeadlineError",
    "FunctionOptions",
    "GangAbortedError",
    "GangStalledError",
    "ImageError",
    "ImageNormalisation",
    "ImageStatistics",
    "ImageTooLargeError",
    "IncompleteMapError",
    "InputError",
    "Job",
    "KeyRefusedError",
    "LambdaThrottledError",
    "LambdaUnavailableError",
    "ManyReport",
    "MapNetwork",
    "MapOptions",
    "MapPlanOptions",
    "MapReport",
    "MissingExtraError",
    "MissingKeyError",
    "ModelError",
    "NamedModel",
    "NetworkLoadError",
    "NotFiniteError",
    "Objectives",
    "OverloadedError",
    "Pad",
    "Pipeline",
    "Plan",
    "PlanError",
    "PlanWarning",
    "PredictedImage",
    "Preprocess",
    "QueryError",
    "QueryReport",
    "RegisterOptions",
    "Registered",
    "RegistrationLostError",
    "RequestRefusedError",
    "Result",
    "ResultDamagedError",
    "ResultGoneError",
    "ResultManifest",
    "SelectedVariant",
    "SerferError",
    "ServedOutput",
    "ServedPrediction",
    "ServedReport",
    "ServedResult",
    "ServedTensor",
    "ServiceDeadlineError",
    "ServiceError",
    "ServiceUnavailableError",
    "SideLimit",
    "SplitOptions",
    "StoreError",
    "StoreUnavailableError",
    "StoredResult",
    "TaskFailedError",
    "UnavailableError",
    "UnmetObjectivesError",
    "UsageError",
    "ValueTooLargeError",
    "WrongAnswerError",
    "__version__",
    "describe",
    "map",
    "map_many",
    "map_plan",
    "open",
    "register",
    "split",
    "whole_plan",
]

_HOMES = {
    "AsyncClient": ("serfer.client.async_client", "AsyncClient"),
    "AsyncJob": ("serfer.client.async_client", "AsyncJob"),
    "AsyncServedResult": ("serfer.client.results", "AsyncServedResult"),
    "Client": ("serfer.client.sync_client", "Client"),
    "FunctionOptions": ("serfer.splitter.planning.split_options", "FunctionOptions"),
    "ImageNormalisation": ("serfer.core.plan.image_normalisation", "ImageNormalisation"),
    "ImageStatistics": ("serfer.core.plan.image_normalisation", "ImageStatistics"),
    "Job": ("serfer.client.sync_client", "Job"),
    "ManyReport": ("serfer.mapping.many_images", "ManyReport"),
    "MapNetwork": ("serfer.mapping.map_network", "MapNetwork"),
    "MapOptions": ("serfer.mapping.options", "MapOptions"),
    "MapPlanOptions": ("serfer.splitter.map_plan_options", "MapPlanOptions"),
    "MapReport": ("serfer.mapping.report", "MapReport"),
    "NamedModel": ("serfer.splitter.network.named_models", "NamedModel"),
    "Objectives": ("serfer.core.http_messages", "Objectives"),
    "Pipeline": ("serfer.pipeline.blocking", "Pipeline"),
    "Plan": ("serfer.core.plan", "Plan"),
    "Pad": ("serfer.core.plan", "Pad"),
    "PredictedImage": ("serfer.core.report", "PredictedImage"),
    "Preprocess": ("serfer.core.plan", "Preprocess"),
    "SideLimit": ("serfer.core.plan", "SideLimit"),
    "QueryReport": ("serfer.core.report", "QueryReport"),
    "RegisterOptions": ("serfer.variants.register_options", "RegisterOptions"),
    "Registered": ("serfer.variants.register", "Registered"),
    "Result": ("serfer.pipeline.result", "Result"),
    "ResultManifest": ("serfer.results.manifest", "ResultManifest"),
    "SelectedVariant": ("serfer.core.http_messages", "SelectedVariant"),
    "ServedOutput": ("serfer.client.results", "ServedOutput"),
    "ServedPrediction": ("serfer.core.http_messages", "ServedPrediction"),
    "ServedReport": ("serfer.core.http_messages", "ServedReport"),
    "ServedResult": ("serfer.client.results", "ServedResult"),
    "ServedTensor": ("serfer.core.inference_protocol", "ServedTensor"),
    "SplitOptions": ("serfer.splitter.planning.split_options", "SplitOptions"),
    "StoredResult": ("serfer.results.results", "StoredResult"),
    "map": ("serfer.mapping.map", "map_image"),
    "map_many": ("serfer.mapping.map", "map_many"),
    "describe": ("serfer.splitter.describe", "describe"),
    "map_plan": ("serfer.splitter.map_plan", "map_plan"),
    "open": ("serfer.wiring.open_pipeline", "open_pipeline"),
    "register": ("serfer.variants.register", "register"),
    "split": ("serfer.splitter.split", "split"),
    "whole_plan": ("serfer.splitter.whole", "whole_plan"),
}
_ERRORS = "serfer.core.errors"


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'serfer' has no attribute {name!r}")
    from serfer.extras import named_extras  # noqa: PLC0415 - as typing

    module, attribute = _HOMES.get(name, (_ERRORS, name))
    with named_extras():
        return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
