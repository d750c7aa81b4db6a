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
    from serfer.core.errors import NoRegistryError as NoRegistryError
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
    from serfer.mapping.options import WindowOptions as WindowOptions
    from serfer.mapping.report import MapReport as MapReport
    from serfer.mapping.windows import MapWindow as MapWindow
    from serfer.mapping.windows import MapWindows as MapWindows
    from serfer.mapping.windows import PassStatistics as PassStatistics
    from serfer.mapping.windows import WindowSums as WindowSums
    from serfer.mapping.windows import combine as combine
    from serfer.mapping.windows import windows as windows
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
    "MapWindow",
    "MapWindows",
    "MissingExtraError",
    "MissingKeyError",
    "ModelError",
    "NamedModel",
    "NetworkLoadError",
    "NoRegistryError",
    "NotFiniteError",
    "Objectives",
    "OverloadedError",
    "Pad",
    "PassStatistics",
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
    "WindowOptions",
    "WindowSums",
    "WrongAnswerError",
    "__version__",
    "combine",
    "describe",
    "map",
    "map_many",
    "map_plan",
    "open",
    "register",
    "split",
    "whole_plan",
    "windows",
]

_HOMES = {
    "serfer.client.async_client": "AsyncClient AsyncJob",
    "serfer.client.results": "AsyncServedResult ServedOutput ServedResult",
    "serfer.client.sync_client": "Client Job",
    "serfer.core.http_messages": "Objectives SelectedVariant ServedPrediction ServedReport",
    "serfer.core.inference_protocol": "ServedTensor",
    "serfer.core.plan": "Plan Pad Preprocess SideLimit",
    "serfer.core.plan.image_normalisation": "ImageNormalisation ImageStatistics",
    "serfer.core.report": "PredictedImage QueryReport",
    "serfer.mapping.many_images": "ManyReport",
    "serfer.mapping.map": "map map_many",
    "serfer.mapping.map_network": "MapNetwork",
    "serfer.mapping.options": "MapOptions WindowOptions",
    "serfer.mapping.report": "MapReport",
    "serfer.mapping.windows": "MapWindow MapWindows PassStatistics WindowSums combine windows",
    "serfer.pipeline.blocking": "Pipeline",
    "serfer.pipeline.result": "Result",
    "serfer.results.manifest": "ResultManifest",
    "serfer.results.results": "StoredResult",
    "serfer.splitter.describe": "describe",
    "serfer.splitter.map_plan": "map_plan",
    "serfer.splitter.map_plan_options": "MapPlanOptions",
    "serfer.splitter.network.named_models": "NamedModel",
    "serfer.splitter.planning.split_options": "FunctionOptions SplitOptions",
    "serfer.splitter.split": "split",
    "serfer.splitter.whole": "whole_plan",
    "serfer.variants.register": "Registered register",
    "serfer.variants.register_options": "RegisterOptions",
    "serfer.wiring.open_pipeline": "open",
}
_RENAMED = {"map": "map_image", "open": "open_pipeline"}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'serfer' has no attribute {name!r}")
    from serfer.extras import named_extras  # noqa: PLC0415 - as typing

    module = next((module for module, names in _HOMES.items() if name in names.split()), "serfer.core.errors")
    with named_extras():
        return getattr(import_module(module), _RENAMED.get(name, name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
