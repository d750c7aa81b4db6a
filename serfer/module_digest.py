"""What a PyTorch module computes, as a digest: the same module has the same one in every process."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serfer.core.errors import ModelError

if TYPE_CHECKING:
    import torch

_PLAIN = (bool, int, float, str, tuple, type(None))


def module_digest(module: Any) -> str:  # noqa: ANN401 - checked here
    """Return a SHA-256 of a module's weights, its settings, and the files in which the classes of its parts are.

    What its code reads besides, such as functions of other files, is not in it. Raises ModelError for no module.
    """
    import torch  # noqa: PLC0415 - slow to import, and ONNX files need none of it

    if not isinstance(module, torch.nn.Module):
        raise ModelError(f"{type(module).__name__} is not a torch.nn.Module")
    digest = hashlib.sha256(repr(module).encode())
    for name, value in module.state_dict().items():
        if isinstance(value, torch.Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        else:
            digest.update(f"{name} {value!r}\n".encode())
    for name, part in module.named_modules():
        settings = {key: value for key, value in sorted(vars(part).items()) if isinstance(value, _PLAIN)}
        digest.update(f"{name} {settings}\n".encode())
    for file in sorted({*_files(module)}):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _files(module: torch.nn.Module) -> Iterator[Path]:
    for kind in {type(part) for part in module.modules()}:
        try:
            file = inspect.getsourcefile(kind)
        except (TypeError, OSError):  # a class without a file
            continue
        if file is not None and Path(file).is_file():
            yield Path(file)
