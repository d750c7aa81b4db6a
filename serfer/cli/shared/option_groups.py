"""Groups of options that several commands have; nothing heavy is imported, so that help shows at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from serfer.core.errors import UsageError
from serfer.core.options import Options, changed, option

if TYPE_CHECKING:
    from serfer.splitter.network.named_models import NamedModel


@dataclass(frozen=True, kw_only=True)
class WeightsOptions(Options):
    """Where the weights of `timm:NAME` and `torchvision:NAME` are from."""

    weights_file: Path | None = option(
        None,
        "Of timm:NAME and torchvision:NAME: a file of their weights, as torch.save (a state dict) or safetensors write "
        "it. Without it, they are looked for in the caches of torch.hub and Hugging Face on this machine.",
    )
    random: bool = option(False, "Give timm:NAME or torchvision:NAME random weights; every answer says so.")
    download: bool = option(False, "Fetch the weights of timm:NAME or torchvision:NAME that are not here.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if sum((self.weights_file is not None, self.random, self.download)) > 1:
            raise UsageError(f"{self.weights_given} contradict each other: give one of them")

    @property
    def weights_given(self) -> str:
        return " and ".join(changed(self, WeightsOptions()))

    def model_with_weights(self, model: str) -> NamedModel | str:
        """Return a model as the splitter takes it; raises UsageError for one that has its own weights."""
        from serfer.plan_directory import LIBRARIES  # noqa: PLC0415 - help shows at once

        if model.partition(":")[0] not in LIBRARIES:
            if self.weights_given:
                raise UsageError(
                    f"{self.weights_given} says where the weights of timm:NAME or torchvision:NAME are from, not "
                    f"{model}'s"
                )
            return model
        from serfer.splitter.network.named_models import CACHE, DOWNLOAD, RANDOM, NamedModel  # noqa: PLC0415 - help shows at once

        if self.weights_file is not None:
            return NamedModel(model, self.weights_file)
        return NamedModel(model, RANDOM if self.random else DOWNLOAD if self.download else CACHE)


@dataclass(frozen=True, kw_only=True)
class NamedNetworkOptions(Options):
    """The network of a command whose arguments are images."""

    network: str | None = option(
        None,
        "The network: an .onnx file, timm:NAME or torchvision:NAME, of map also module.py:factory. Its plan is made "
        "and kept in the cache; other options say more of it.",
    )


@dataclass(frozen=True, kw_only=True)
class NetworkFileOptions(WeightsOptions):
    """What a network's file does not say."""

    size: str | None = option(
        None, "Where a file does not fix it: the input's HEIGHTxWIDTH, or a range: 32..2016x32..2016,multiple=32."
    )
    channels: int | None = option(None, "With size: the input's channels; else the file's, or 3.", least=1, most=4096)
    preprocess: Path | None = option(
        None,
        "Of an .onnx file, a TOML file: how an image becomes its input (docs/how-to/preprocess.md).",
        shown="stretched to its size, RGB, values from 0 to 1",
    )
    labels: Path | None = option(None, "Of an .onnx file: a text file with a class's name in each line; else numbers.")
    output: str | None = option(None, "What outputs are: scores, by softmax, sigmoid or none, or a detector's boxes.")


@dataclass(frozen=True, kw_only=True)
class JsonOptions(Options):
    """Whether a command prints JSON."""

    as_json: bool = option(False, "Print JSON, one object a line.", "--json")


@dataclass(frozen=True, kw_only=True)
class ProfilesOptions(Options):
    """What compute times are predicted by."""

    profiles: Path | None = option(
        None, "Operator profiles to predict by, from serfer study profile.", setting="profiles_file", own_default=True
    )


@dataclass(frozen=True, kw_only=True)
class RegistryOptions(Options):
    """Where applications are registered."""

    registry: str | None = option(
        None, "The registry: a directory, or s3://BUCKET/PREFIX.", metavar="URL", setting="registry", own_default=True
    )
