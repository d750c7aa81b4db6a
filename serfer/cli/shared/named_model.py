"""Options that say where the weights of `timm:NAME` and `torchvision:NAME` are from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from serfer.core.errors import UsageError
from serfer.splitter.network.named_models import CACHE, DOWNLOAD, RANDOM, NamedModel, is_named

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


@dataclass(frozen=True)
class WeightsFrom:
    """What --weights-file, --random and --download say; raises UsageError where they contradict each other."""

    file: Path | None = None
    random: bool = False
    download: bool = False

    def __post_init__(self) -> None:
        if sum((self.file is not None, self.random, self.download)) > 1:
            raise UsageError(f"{self.given} contradict each other: give one of them")

    @property
    def given(self) -> str:
        """The options that were given."""
        options = {"--weights-file": self.file is not None, "--random": self.random, "--download": self.download}
        return " and ".join(option for option, is_given in options.items() if is_given)

    def of(self, model: str) -> NamedModel | str:
        """Return a model as the splitter takes it; raises UsageError for one that has its own weights."""
        if not is_named(model):
            if self.given:
                raise UsageError(
                    f"{self.given} says where the weights of timm:NAME or torchvision:NAME are from, not {model}'s"
                )
            return model
        if self.file is not None:
            return NamedModel(model, self.file)
        return NamedModel(model, RANDOM) if self.random else NamedModel(model, DOWNLOAD if self.download else CACHE)


FROM_CACHE = WeightsFrom()


def named_model(model: str, weights_file: Path | None, random: bool, download: bool) -> NamedModel | str:  # noqa: FBT001 - flags of commands
    """Return a model as the splitter takes it; raises UsageError for options that contradict it or each other."""
    return WeightsFrom(weights_file, random, download).of(model)
