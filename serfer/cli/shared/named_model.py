"""Options that say where the weights of `timm:NAME` and `torchvision:NAME` are from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
