"""Files of weights, as torch.save and safetensors write them, read without running what is in them."""

from __future__ import annotations

import pickle
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from serfer.core.errors import ModelError
from serfer.plug_ins import in_one_line

if TYPE_CHECKING:
    import torch

    Weights = Mapping[str, torch.Tensor]

MAX_BYTES: Final = 4 * 1024**3
"""The most bytes of a file of weights, packed and unpacked."""
_SAFETENSORS: Final = ".safetensors"
_WRAPPERS: Final = ("state_dict_ema", "model_ema", "state_dict", "model_state_dict", "model")
"""Under what a training's checkpoint has the weights, an average of them first."""
_MOST_NAMED: Final = 3


def read_weights(path: Path) -> Weights:
    """Return the tensors of a file by their names, on the processor; raises ModelError for what is not such a file."""
    check_weights_file(path)
    try:
        loaded = _safetensors(path) if path.suffix == _SAFETENSORS else _torch(path)
    except ModuleNotFoundError:
        raise
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"{path} holds Python objects as well as tensors, or is not a file of torch.save: save the weights alone, "
            "torch.save(module.state_dict(), FILE)"
        ) from error
    except Exception as error:  # torch and safetensors raise many kinds for damaged files
        raise ModelError(f"{path} is not a file of torch.save or safetensors: {in_one_line(error)[:200]}") from error
    return _tensors(path, loaded)


def check_weights_file(path: Path) -> None:
    """Refuse what is not a file of weights' size before it is read; raises ModelError."""
    try:
        size = path.stat().st_size
        if path.is_file() and zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                size = max(size, sum(entry.file_size for entry in archive.infolist()))
    except (OSError, ValueError, zipfile.BadZipFile) as error:  # ValueError: a NUL in the name
        raise ModelError(f"{str(path)!r} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not path.is_file():
        raise ModelError(f"{path} is not a file")
    if size > MAX_BYTES:
        raise ModelError(
            f"{path} holds more than {MAX_BYTES // 1024**3} GB: save the weights alone, without a training's state"
        )


def _torch(path: Path) -> Any:  # noqa: ANN401 - looked through by the caller
    import torch  # noqa: PLC0415 - slow to import

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of protocols: what cannot be read is an error in any case
        return torch.load(path, map_location="cpu", weights_only=True)


def _safetensors(path: Path) -> Any:  # noqa: ANN401 - as above
    from safetensors.torch import load_file  # noqa: PLC0415 - not every install has it

    return load_file(path)


def _tensors(path: Path, loaded: Any) -> Weights:  # noqa: ANN401 - whatever a file holds
    import torch  # noqa: PLC0415 - slow to import

    if isinstance(loaded, Mapping):
        loaded = next((loaded[key] for key in _WRAPPERS if isinstance(loaded.get(key), Mapping)), loaded)
        tensors = {name: value for name, value in loaded.items() if isinstance(value, torch.Tensor)}
        if tensors and all(isinstance(name, str) for name in tensors):
            return tensors
    raise ModelError(f"{path} holds no tensors by name: save the weights alone, torch.save(module.state_dict(), FILE)")


def unwrapped(weights: Weights, module: torch.nn.Module) -> Weights:
    """Return weights without what DataParallel, torch.compile or Lightning put before the names of a module's."""
    own = [name for name, _ in module.named_parameters()]
    for wrapped in [name for name in weights if own and name.endswith(f".{own[0]}")]:
        prefix = wrapped.removesuffix(own[0])
        inner = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        if inner.keys() >= set(own):
            return inner
    return weights


def classes_of(weights: Weights, module: torch.nn.Module, classes: int, head: str = "") -> int:
    """Return how many classes weights tell apart, where that is all in which they differ from a module of `classes`.

    A module of none lacks the layer `head`, which weights may have.
    """
    if not classes and f"{head}.weight" in weights:
        return weights[f"{head}.weight"].shape[0]
    other = {
        tuple(weights[name].shape[:1])
        for name, value in module.state_dict().items()
        if name in weights and weights[name].shape != value.shape
        if value.shape[0] == classes and weights[name].shape[1:] == value.shape[1:]
    }
    return next(iter(other))[0] if len(other) == 1 else classes


def misfit(weights: Weights, module: torch.nn.Module) -> str:
    """Return why weights are not a module's, in words; empty where they are."""
    own = module.state_dict()
    needed = {name for name in own if not name.endswith("num_batches_tracked")}  # files from before torch 0.4 lack it
    return "; ".join(
        filter(
            None,
            (
                _listed("it lacks", needed - weights.keys()),
                _listed("the network has no", weights.keys() - own.keys()),
                *_shapes(weights, own),
            ),
        )
    )


def _shapes(weights: Weights, own: Weights) -> list[str]:
    differing = sorted(name for name in own.keys() & weights.keys() if own[name].shape != weights[name].shape)
    return [
        f"{name!r:.80} is {tuple(weights[name].shape)}, the network's {tuple(own[name].shape)}"
        for name in differing[:_MOST_NAMED]
    ]


def _listed(what: str, names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - _MOST_NAMED} more" if len(ordered) > _MOST_NAMED else ""
    return f"{what} {', '.join(f'{name!r:.80}' for name in ordered[:_MOST_NAMED])}{more}" if ordered else ""
