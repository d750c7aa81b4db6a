"""torchvision's classifying and segmenting architectures, with the transforms and categories of their weights."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from serfer.core.errors import ModelError
from serfer.splitter.network.by_name import hub_cache
from serfer.splitter.network.by_name.model_card import ModelCard

if TYPE_CHECKING:
    import torch

    from serfer.splitter.network.by_name.weights_file import Weights

_CLASSIFIES, _SEGMENTS = "ImageClassification", "SemanticSegmentation"
_AUXILIARY: Final = {"googlenet": "aux_logits", "inception_v3": "aux_logits"}
_NEAR: Final = 3


def card(name: str, file: str = "") -> ModelCard:
    """Return what torchvision says of NAME's default weights, of NAME.WEIGHTS, or of those that a file is named after.

    Raises ModelError for a name that it has not, or that is not of a network of one image.
    """
    entry = _entry(name, file)
    transforms = entry.transforms()
    side, crop = _sizes(name, transforms)
    classifies = type(transforms).__name__ == _CLASSIFIES
    categories = tuple(entry.meta["categories"])
    cached = hub_cache.torch_file(entry.url)
    return ModelCard(
        name=_architecture(name) if entry is _entry(_architecture(name)) else f"{_architecture(name)}.{entry.name}",
        weights=f"torchvision {type(entry).__name__}.{entry.name}",
        shape=(3, side, side),
        classes=len(categories),
        crop=crop,
        interpolation=transforms.interpolation.value,
        mean=tuple(transforms.mean),
        std=tuple(transforms.std),
        labels=categories,
        activation="softmax" if classifies else "none",
        cached=(cached,) if cached.is_file() else (),
        published=(cached.name,),
        missing=str(cached),
        others=tuple(_others(name, entry)),
        classifies=classifies,
    )


def _architecture(name: str) -> str:
    return name.partition(".")[0]


def _builder(name: str) -> Any:  # noqa: ANN401 - torchvision has no types that mypy reads
    models, architecture = import_module("torchvision.models"), _architecture(name)
    if architecture not in models.list_models():
        near = difflib.get_close_matches(architecture, models.list_models(models), _NEAR)
        raise ModelError(
            f"torchvision has no architecture {architecture!r:.80}"
            + (f" (did you mean {', '.join(near)}?)" if near else "")
        )
    return models.get_model_builder(architecture)


def _entries(name: str) -> Any:  # noqa: ANN401 - as above
    return import_module("torchvision.models").get_model_weights(_builder(name))


def _entry(name: str, file: str = "") -> Any:  # noqa: ANN401 - as above
    """Return the weights of a name: those it names, or a file's, or the default ones."""
    entries, wanted = _entries(name), name.partition(".")[2]
    if wanted and wanted not in entries.__members__:
        known = ", ".join(entries.__members__)
        raise ModelError(f"torchvision has no weights {wanted!r:.80} of {_architecture(name)}: it has {known}")
    if wanted:
        return entries[wanted]
    named = [entry for entry in entries if file and entry.url.endswith(f"/{file}")]
    return named[0] if named else entries.DEFAULT


def _others(name: str, entry: Any) -> list[str]:  # noqa: ANN401 - as above
    return [
        f"{_architecture(name)}.{other.name}"
        for other in _entries(name)
        if other is not entry and hub_cache.torch_file(other.url).is_file()
    ]


def _sizes(name: str, transforms: Any) -> tuple[int, float]:  # noqa: ANN401 - as above
    """Return the input's side and its share of the resized image's."""
    kind, quantised = type(transforms).__name__, _builder(name).__module__.rpartition(".")[0].endswith("quantization")
    if kind == _CLASSIFIES and not quantised:
        return transforms.crop_size[0], transforms.crop_size[0] / transforms.resize_size[0]
    if kind == _SEGMENTS:  # which torchvision resizes and does not crop; a plan's input has one size
        return transforms.resize_size[0], 1.0
    raise ModelError(
        f"torchvision's {_architecture(name)} does not take one image alone, in float32 (it is of {kind}"
        f"{', in 8 bits' if quantised else ''}): by name, those that classify images or segment them are known; write "
        "module.py:factory for others"
    )


def fetch(name: str) -> Path:
    """Fetch the weights of a name into torch.hub's cache; raises UnavailableError."""
    return hub_cache.fetch_torch_file(_entry(name).url)


def build(name: str, shape: tuple[int, int, int], classes: int, given: Collection[str] = ()) -> torch.nn.Module:
    """Build an architecture with random weights, and the auxiliary outputs of training where `given` names are of them.

    Raises ModelError for other than three channels.
    """
    if shape[0] != card(name).shape[0]:
        raise ModelError(f"torchvision's {_architecture(name)} takes images of 3 channels, not {shape[0]}")
    builder = _builder(name)
    options: dict[str, Any] = {"weights": None, "num_classes": classes}
    auxiliary = any(parameter.lower().startswith("aux") for parameter in given)
    if "weights_backbone" in inspect.signature(builder).parameters:
        options |= {"weights_backbone": None, "aux_loss": auxiliary}
    if _architecture(name) in _AUXILIARY:
        options |= {_AUXILIARY[_architecture(name)]: auxiliary, "init_weights": False}
    module: torch.nn.Module = builder(**options)
    return module


def filled(name: str, _shape: tuple[int, int, int], weights: Weights) -> torch.nn.Module:
    """Build an architecture and have torchvision fill it with published weights, with what these need.

    Raises what torch raises for other weights.
    """
    entry = _entry(name)

    def read(_entry: object, *_: object, **_options: object) -> Weights:
        return dict(weights)

    base = import_module("torchvision.models").WeightsEnum
    with mock.patch.object(base, "get_state_dict", read):  # its own fetches, and unpickles what it gets
        module: torch.nn.Module = _builder(name)(weights=entry)
    return module
