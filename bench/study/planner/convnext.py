"""ConvNeXt-Base, whose weights a zip does not hold, with random weights: `convnext.py:convnext_base`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from serfer.splitter.network.zoo import with_random_weights

if TYPE_CHECKING:
    import torch

_SIZE = 224


def convnext_base() -> torch.nn.Module:
    """Build the network of torchvision; its answers mean nothing."""
    import torchvision  # noqa: PLC0415 - slow to import

    return with_random_weights(torchvision.models.convnext_base(weights=None).eval(), _SIZE)
