"""Dense networks with random weights for the comparison with other tools, each by its name."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from serfer.splitter.network.zoo import with_random_weights
from serfer_bench.pipeline.unet import Unet

_CLASSES = 4
_SAMPLE = 64


class Denoiser(nn.Module):
    """DnCNN (Zhang et al., 2017), (N, 3, H, W) to the same: 17 convolutions of 32 channels in place of 64."""

    def __init__(self, depth: int = 17, width: int = 32) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1), nn.ReLU()]
        for _ in range(depth - 2):
            layers += [nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Return the image without its noise."""
        noise: torch.Tensor = self.layers(image)
        return image - noise


def _block(before: int, after: int, kernel: int = 3, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    padding = dilation * (kernel // 2)
    conv = nn.Conv2d(before, after, kernel, stride=stride, padding=padding, dilation=dilation, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(after), nn.ReLU())


class _Residual(nn.Module):
    def __init__(self, before: int, after: int, stride: int = 1) -> None:
        super().__init__()
        self.inner = nn.Sequential(_block(before, after, stride=stride), _block(after, after))
        self.side = nn.Conv2d(before, after, 1, stride=stride)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(values) + self.side(values)
        return result


class DeepLab(nn.Module):
    """DeepLabV3+ (Chen et al., 2018), (N, 3, H, W) to scores (N, 4, H, W), of sides that are multiples of 16.

    Its encoder has the stride 16, its pooling pyramid dilations of 6, 12 and 18 and the mean of the whole image, its
    decoder maps of stride 4. Resizing is by factors, without aligned corners.
    """

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        deep = 8 * width
        self.early = nn.Sequential(_block(3, width, stride=2), _Residual(width, 2 * width, 2))
        self.late = nn.Sequential(_Residual(2 * width, 4 * width, 2), _Residual(4 * width, deep, 2))
        self.pyramid = nn.ModuleList(
            [_block(deep, 2 * width, 1), *(_block(deep, 2 * width, dilation=rate) for rate in (6, 12, 18))]
        )
        self.pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(deep, 2 * width, 1), nn.ReLU())
        self.joined, self.low = _block(10 * width, 4 * width, 1), _block(2 * width, width, 1)
        self.last = nn.Sequential(_block(5 * width, 4 * width), nn.Conv2d(4 * width, _CLASSES, 1))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        early = self.early(image)
        late = self.late(early)
        parts = [part(late) for part in self.pyramid]
        pooled = self.pooled(late).expand(-1, -1, *parts[0].shape[2:])
        context = functional.interpolate(self.joined(torch.cat([*parts, pooled], 1)), scale_factor=4, mode="bilinear")
        scores = self.last(torch.cat([context, self.low(early)], 1))
        return functional.interpolate(scores, scale_factor=4, mode="bilinear")


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "U-Net": lambda: Unet(16),
    "DnCNN": Denoiser,
    "DeepLabV3+": DeepLab,
}


def network(name: str) -> nn.Module:
    """Return a network in evaluation mode; its random weights are the same each time."""
    torch.manual_seed(0)
    return with_random_weights(NETWORKS[name]().eval(), _SAMPLE)
