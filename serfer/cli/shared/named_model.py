"""Options that say where the weights of `timm:NAME` and `torchvision:NAME` are from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from serfer.core.errors import UsageError
from splitter.network.by_name.named_model import DOWNLOAD, RANDOM, NamedModel, is_named

WeightsFileOption = Annotated[
    Path | None,
    typer.Option(
        "--weights-file",
        help="Of timm:NAME and torchvision:NAME: a file of their weights, as torch.save (a state dict) or safetensors "
        "write it. Without it, they are looked for in the caches of torch.hub and Hugging Face on this machine.",
    ),
]
RandomOption = Annotated[
    bool, typer.Option("--random", help="Give timm:NAME or torchvision:NAME random weights; every answer says so.")
]
DownloadOption = Annotated[
    bool, typer.Option("--download", help="Fetch the weights of timm:NAME or torchvision:NAME that are not here.")
]


def named_model(model: str, weights_file: Path | None, random: bool, download: bool) -> NamedModel | str:  # noqa: FBT001 - flags of commands
    """Return a model as the splitter takes it; raises UsageError for options that contradict it or each other."""
    given = [
        option
        for option, value in (("--weights-file", weights_file), ("--random", random), ("--download", download))
        if value
    ]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} contradict each other: give one of them")
    if not is_named(model):
        if given:
            raise UsageError(
                f"{given[0]} says where the weights of timm:NAME or torchvision:NAME are from, not {model}'s"
            )
        return model
    if weights_file is not None:
        return NamedModel(model, weights_file)
    return NamedModel(model, RANDOM) if random else NamedModel(model, DOWNLOAD) if download else NamedModel(model)
