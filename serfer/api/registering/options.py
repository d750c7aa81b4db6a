"""The form of a registration, as it is described and checked."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from serfer.core.variants import MAX_VARIANTS

NETWORK_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}", re.ASCII)
"""Names of networks that are registered: variants have longer ones."""
_FILE: Final = {"format": "binary"}


class RegistrationOptions(BaseModel):
    """The values of a form, as the options of `serfer register`; `network` is a zoo name, unless it is a file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    network: Annotated[str | None, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")] = None
    name: Annotated[str | None, Field(pattern=rf"^{NETWORK_NAME.pattern}$")] = None
    output: Annotated[str | None, Field(pattern=r"^(softmax|sigmoid|none)$")] = None
    most: Annotated[int | None, Field(ge=1, le=MAX_VARIANTS)] = None
    max_loss: Annotated[float | None, Field(ge=0, le=1)] = None
    latency_ms: Annotated[float | None, Field(gt=0, le=3_600_000)] = None
    instance: Annotated[str | None, Field(pattern=r"^[a-z0-9.-]{1,40}$")] = None
    usd_per_hour: Annotated[float | None, Field(gt=0, le=10_000)] = None
    size: Annotated[str | None, Field(pattern=r"^[1-9][0-9]{0,4}x[1-9][0-9]{0,4}$")] = None
    channels: Annotated[int, Field(ge=1, le=4096)] = 3

    @property
    def shape(self) -> tuple[int, int, int] | None:
        """The input's channels, height and width, where they are given."""
        if self.size is None:
            return None
        height, width = map(int, self.size.split("x"))
        return self.channels, height, width


class RegistrationForm(RegistrationOptions):
    """The form as /openapi.json describes it."""

    network: Annotated[str, Field(description="An ONNX file, or the name of a network of the zoo.")]
    validation: Annotated[str, Field(description="A zip, tar or tar.gz of images.", json_schema_extra=_FILE)]
    preprocess: Annotated[str | None, Field(description="A file in TOML: how an image becomes the input.")] = None
    labels: Annotated[str | None, Field(description="A file with a class's name in each line.")] = None
