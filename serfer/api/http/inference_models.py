"""Requests and answers of the Open Inference Protocol, version 2, as models that check and document them."""

from __future__ import annotations

from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SkipValidation, model_validator
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

from serfer.api.http.validation import MAX_DEADLINE_MS, Body, shown
from serfer.core.variants import NAME
from serfer.core.wire import MAX_BATCH

_SHARED_MEMORY: Final = "shared_memory"
_MAX_ID = 4096  # characters
MOST_OUTPUTS: Final = 16
_MAX_BYTES = (1 << 63) - 1  # an int64, as the protocol says
_DATATYPES: Final[JsonDict] = {"enum": ["FP32", "INT64", "INT32", "UINT8", "BOOL", "BYTES"]}
_INPUT_DATATYPES: Final[JsonDict] = {
    "enum": ["FP32", "FP16", "FP64", "UINT8", "INT8", "UINT16", "INT16", "INT32", "INT64", "BOOL"]
}
_Scalar = str | bool | int | float


class Parameters(BaseModel):
    """Parameters by name; unknown ones are ignored."""

    model_config = ConfigDict(extra="allow", strict=True)
    __pydantic_extra__: dict[str, _Scalar] = Field(init=False)

    @model_validator(mode="before")
    @classmethod
    def _scalars(cls, value: object) -> object:
        if not isinstance(value, dict):
            raise PydanticCustomError("object", "Input should be an object")
        for name, parameter in value.items():
            if name.startswith(_SHARED_MEMORY):
                refused = {"name": shown(name)}
                raise PydanticCustomError("shared", "{name}: no shared memory here, send the data itself", refused)
            left_out = parameter is None and name in cls.model_fields
            if not (isinstance(parameter, _Scalar) or left_out):
                wrong = {"name": shown(name)}
                raise PydanticCustomError("scalar", "{name} should be text, a number, true or false", wrong)
        return value


class RequestParameters(Parameters):
    """Parameters of a request; `timeout` is Triton's, in microseconds, where 0 stands for the default deadline.

    `result` says whether the outputs are in the answer, "inline", or are kept by the service, "link"; without it they
    are in the answer, unless that would be too large and the service keeps results.

    `latency_ms`, `min_accuracy`, `max_cost_usd`, `variant` and `strict` are what a request may ask of an application.
    """

    binary_data_output: bool = False
    result: Literal["inline", "link"] | None = None
    deadline_ms: int | None = Field(default=None, ge=1, le=MAX_DEADLINE_MS)
    timeout: int | None = Field(default=None, ge=0)
    latency_ms: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    min_accuracy: float | None = Field(default=None, ge=0, le=1)
    max_cost_usd: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    variant: str | None = Field(default=None, pattern=rf"^{NAME.pattern}$")
    strict: bool = False


class InputParameters(Parameters):
    """Parameters of an input tensor."""

    binary_data_size: int | None = Field(default=None, ge=0, le=_MAX_BYTES)


class OutputParameters(Parameters):
    """Parameters of an output; `classification` asks for so many of the highest scores as text."""

    binary_data: bool | None = None
    classification: int = Field(default=0, ge=0)


class RequestTensor(Body):
    """An input tensor."""

    name: str
    shape: list[int] = Field(fail_fast=True)
    datatype: str = Field(json_schema_extra=_INPUT_DATATYPES)
    parameters: InputParameters | None = None
    data: SkipValidation[list[Any]] | None = Field(
        default=None, description="Flat or nested; left out where binary data follows the JSON."
    )


class RequestOutput(Body):
    """An output that is asked for."""

    name: str
    parameters: OutputParameters | None = None


class InferenceRequest(Body):
    """One tensor, and how the answer should look: all outputs, unless some are named."""

    id: str | None = Field(default=None, max_length=_MAX_ID)
    model_name: SkipValidation[str] | None = None
    model_version: SkipValidation[str] | None = None
    parameters: RequestParameters | None = None
    inputs: list[RequestTensor] = Field(min_length=1, max_length=1, fail_fast=True)
    outputs: list[RequestOutput] | None = Field(default=None, max_length=MOST_OUTPUTS, fail_fast=True)


class IndexRequest(BaseModel):
    """Which models to list."""

    model_config = ConfigDict(strict=True)

    ready: bool = False


class RepositoryParameters(Parameters):
    """Parameters of loading and unloading; there are no dependent models. A configuration or files are refused."""

    unload_dependents: bool = False

    @model_validator(mode="after")
    def _known(self) -> Self:
        for name in self.__pydantic_extra__:
            raise PydanticCustomError("unknown", "{name} is not taken here", {"name": shown(name)})
        return self


class RepositoryRequest(BaseModel):
    """A model to load or unload, as it was given when the service started."""

    model_config = ConfigDict(strict=True)

    parameters: RepositoryParameters | None = None


class BatchingRequest(BaseModel):
    """Images computed at once, and how long a free engine waits for so many; without `max_batch`, as at the start."""

    model_config = ConfigDict(strict=True, extra="forbid")

    max_batch: int | None = Field(default=None, ge=1, le=MAX_BATCH)
    window_ms: float = Field(default=0.0, ge=0, le=60_000, allow_inf_nan=False)


class BatchingState(BaseModel):
    """How a model is batched now: never more images at once than it was measured with at its start."""

    name: str
    max_batch: int
    window_ms: float


class AnswerParameters(BaseModel):
    """How many images an instance ran together, and for how long; or the id of a result that is kept.

    `result_location` is the result's path, `result_expires` the end of its lifetime in seconds since 1970.
    """

    batch: int | None = None
    computed_ms: float | None = None
    result: str | None = None
    result_location: str | None = None
    result_expires: int | None = None


class ResponseTensor(BaseModel):
    """An output tensor; one of a result that is kept has no data, and in `parameters` where it can be had.

    `result_zarr` is the path of a zarr array, `result_link` that of a .npy file of `result_bytes` bytes.
    """

    name: str
    datatype: str = Field(json_schema_extra=_DATATYPES)
    shape: list[int]
    parameters: dict[str, int | str] | None = None
    data: list[Any] | None = Field(default=None, description="Left out where binary data follows the JSON.")


class InferenceResponse(BaseModel):
    """The outputs, in the order in which they were asked for, or of scores the highest."""

    model_name: str
    model_version: str
    id: str | None = None
    parameters: AnswerParameters | None = None
    outputs: list[ResponseTensor]


class InferenceError(BaseModel):
    """Why there is no answer."""

    error: str


class TensorMetadata(BaseModel):
    """A tensor that a model takes or gives; -1 stands for the batch, and for a size that depends on the image."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(BaseModel):
    """What a model takes and gives."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ServerMetadata(BaseModel):
    """Which server this is."""

    name: str
    version: str
    extensions: list[str]


class IndexEntry(BaseModel):
    """A model of the repository."""

    name: str
    version: str
    state: Literal["READY", "UNAVAILABLE"]
    reason: str


class ServerLive(BaseModel):
    """That the process lives."""

    live: bool


class ServerReady(BaseModel):
    """Whether queries can be answered."""

    live: bool
    ready: bool


class ModelReady(BaseModel):
    """Whether a model can answer."""

    name: str
    ready: bool
