"""The networks that both planners are run on, without values of weights: a plan depends on their shapes alone.

Wide-ResNet-50-4 and -5 are as Gillis's builder has them (`tool/wresnet_builder.py`): all channels but those of the
first convolution are 4 or 5 times as many, 1.5 and 2.3 GB of weights. Batch norms are folded into the convolutions.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from serfer.core.errors import UsageError
from serfer.splitter.network import zoo
from serfer.splitter.network.graph import Graph
from serfer.splitter.network.source import load
from serfer.splitter.tiling.from_onnx import from_onnx

if TYPE_CHECKING:
    import torch

NETWORKS: Final = ("vgg11", "vgg16", "resnet50", "wrn50-4", "wrn50-5")
SIZE: Final = 224
_WIDE: Final = "wrn50-"
_BLOCKS: Final = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # channels, blocks, stride


def read(name: str) -> Graph:
    if name not in NETWORKS:
        raise UsageError(f"--model is one of {', '.join(NETWORKS)}, not {name!r:.80}")
    image = np.zeros((1, 3, SIZE, SIZE), dtype=np.float32)
    source, _ = load(_without_values(lambda: _module(name)), image)
    return from_onnx(source.onnx, SIZE, SIZE)


def _without_values(build: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    """Return a module whose parameters are each one number, repeated: they take no memory."""
    import torch  # noqa: PLC0415 - slow to import

    with torch.device("meta"):
        module = build()
    for part in module.modules():
        for name, value in part.named_parameters(recurse=False):
            repeated = torch.zeros(()).expand(value.shape)
            setattr(part, name, torch.nn.Parameter(repeated, requires_grad=False))
    return module.eval()


def _module(name: str) -> torch.nn.Module:
    import torch  # noqa: PLC0415 - slow to import

    models: Any = zoo.with_torchvision(lambda: import_module("torchvision.models"))

    def no_norm(_: int) -> torch.nn.Module:
        return torch.nn.Identity()

    if not name.startswith(_WIDE):
        norm = {} if name.startswith("vgg") else {"norm_layer": no_norm}
        module: torch.nn.Module = models.get_model(name, weights=None, **norm)
        return module
    wider = int(name.removeprefix(_WIDE))
    network: Any = models.resnet50(weights=None, norm_layer=no_norm)
    network.inplanes = _BLOCKS[0][0]
    for number, (channels, blocks, stride) in enumerate(_BLOCKS, start=1):
        layer = network._make_layer(models.resnet.Bottleneck, wider * channels, blocks, stride)  # noqa: SLF001
        setattr(network, f"layer{number}", layer)
    network.fc = torch.nn.Linear(network.inplanes, network.fc.out_features)
    return network  # type: ignore[no-any-return]
