"""A U-Net to measure with: three halvings, transposed convolutions back, four classes."""

from __future__ import annotations

import itertools

import torch
from torch import nn

_HALVINGS = 3
_CLASSES = 4


def _block(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()),
        *(nn.Conv2d(after, after, 3, padding=1), nn.ReLU()),
    )


class Unet(nn.Module):
    """Takes (N, 3, H, W) float32, whose sides are multiples of 8; returns scores (N, 4, H, W)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = [width * 2**depth for depth in range(_HALVINGS + 1)]
        self.down = nn.ModuleList(_block(before, after) for before, after in zip([3, *sizes], sizes, strict=False))
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(below, above, 2, stride=2) for above, below in itertools.pairwise(sizes)
        )
        self.back = nn.ModuleList(_block(2 * size, size) for size in sizes[:-1])
        self.pool = nn.MaxPool2d(2)
        self.last = nn.Conv2d(width, _CLASSES, 1)

    @torch.inference_mode()
    def centre(self, image: torch.Tensor) -> None:
        """Give the scores of an image the mean 0 and the deviation 1, so that no class has all pixels."""
        scores = self(image)
        mean, deviation = scores.mean((0, 2, 3)), scores.std((0, 2, 3))
        self.last.weight /= deviation[:, None, None, None]
        self.last.bias = nn.Parameter(((self.last.bias - mean) if self.last.bias is not None else -mean) / deviation)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        maps = [self.down[0](image)]
        for block in self.down[1:]:
            maps.append(block(self.pool(maps[-1])))
        result = maps.pop()
        for up, back in reversed([*zip(self.up, self.back, strict=True)]):
            result = back(torch.cat([maps.pop(), up(result)], dim=1))
        scores: torch.Tensor = self.last(result)
        return scores
