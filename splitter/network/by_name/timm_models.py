"""timm's architectures, each with the configuration of its weights: input, normalisation, crop and classes."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from serfer.core.errors import ModelError
from serfer.core.plan import INTERPOLATIONS
from serfer.splitter.network.by_name import hub_cache
from serfer.splitter.network.by_name.model_card import ModelCard
from serfer.splitter.network.zoo import imagenet_labels

if TYPE_CHECKING:
    import torch

    from serfer.splitter.network.by_name.weights_file import Weights

_FILES: Final = ("model.safetensors", "pytorch_model.bin")
_OPEN_CLIP: Final = {"open_clip_pytorch_model.bin": "open_clip_model.safetensors"}
_IMAGENET: Final = 1000
_NEAR: Final = 3


def card(name: str, file: str = "") -> ModelCard:  # noqa: ARG001 - torchvision's weights are known by their files' names
    """Return what timm's configuration of NAME or NAME.TAG says; raises ModelError for a name that it has not."""
    architecture = name.partition(".")[0]
    config = _config(name)
    shape: tuple[int, int, int] = tuple(config.input_size)
    stretched = config.crop_mode != "center"
    labels = _labels(config.num_classes)
    return ModelCard(
        name=f"{architecture}.{config.tag}" if config.tag else architecture,
        weights=f"timm {architecture}.{config.tag}" if config.has_weights else "",
        shape=shape,
        classes=config.num_classes,
        crop=None if stretched else config.crop_pct,
        interpolation=config.interpolation,
        mean=tuple(config.mean),
        std=tuple(config.std),
        labels=labels,
        activation="softmax" if labels else "none",
        cached=tuple(_cached(config)),
        missing=_missing(config),
        others=tuple(_others(architecture, config.tag)),
        note=_note(config),
        head=config.classifier if isinstance(config.classifier, str) else "",
    )


def _config(name: str) -> Any:  # noqa: ANN401 - timm has no types that mypy reads
    models = import_module("timm.models")
    architecture, _, tag = name.partition(".")
    if not models.is_model(architecture):
        near = difflib.get_close_matches(architecture, models.list_models(), _NEAR)
        raise ModelError(
            f"timm has no architecture {architecture!r:.80}" + (f" (did you mean {', '.join(near)}?)" if near else "")
        )
    try:
        return models.get_pretrained_cfg(name) or models.PretrainedCfg(architecture=architecture)
    except RuntimeError as error:
        known = ", ".join(_tags(architecture))
        raise ModelError(f"timm has no weights {tag!r:.80} of {architecture}: it has {known}") from error


def _tags(architecture: str) -> list[str]:
    return list(import_module("timm.models").get_arch_pretrained_cfgs(architecture))


def _others(architecture: str, tag: str | None) -> list[str]:
    """Return the weights of an architecture that are here, but for those of a tag."""
    known = import_module("timm.models").get_arch_pretrained_cfgs(architecture)
    return [name for name, config in known.items() if config.tag != tag and _cached(config)]


def _labels(classes: int) -> tuple[str, ...]:
    """Return the names of the classes of ImageNet's subset that has so many; of its 1,000 as the zoo has them."""
    if classes == _IMAGENET:
        return imagenet_labels()
    info = import_module("timm.data.imagenet_info")
    subset = info.infer_imagenet_subset({"num_classes": classes})
    return tuple(info.ImageNetInfo(subset).label_descriptions()) if subset else ()


def _files(config: Any) -> list[str]:  # noqa: ANN401 - as above
    """Return the names that a repository's file of weights may have, safetensors first."""
    given = config.hf_hub_filename
    if not given:
        return list(_FILES)
    return [_OPEN_CLIP.get(given, f"{given.removesuffix('.bin')}.safetensors"), given]


def _url(config: Any) -> str:  # noqa: ANN401 - as above
    return config.url if isinstance(config.url, str) else ""


def _cached(config: Any) -> list[Path]:  # noqa: ANN401 - as above
    files = hub_cache.hugging_face_files(config.hf_hub_id, _files(config)) if config.hf_hub_id else []
    fetched = hub_cache.torch_file(_url(config)) if _url(config) else None
    return [*files, *([fetched] if fetched and fetched.is_file() else [])]


def _missing(config: Any) -> str:  # noqa: ANN401 - as above
    places = [f"{hub_cache.hugging_face_directory()} ({config.hf_hub_id})"] if config.hf_hub_id else []
    return " or ".join([*places, *([str(hub_cache.torch_file(_url(config)))] if _url(config) else [])])


def _note(config: Any) -> str:  # noqa: ANN401 - as above
    """Return what the configuration has that a plan's preprocessing has not."""
    if config.crop_mode == "border":
        return "timm pads images to a square (crop_mode border), the plan stretches them"
    if config.crop_mode == "squash" and config.crop_pct < 1:
        return f"timm stretches images and keeps the middle {config.crop_pct:.0%} of each side, the plan keeps all"
    if config.interpolation not in INTERPOLATIONS:
        return f"timm resizes images by {config.interpolation}, the plan bilinearly"
    return ""


def fetch(name: str) -> Path:
    """Fetch the weights of a name into the hub's cache; raises UnavailableError."""
    config = _config(name)
    if config.hf_hub_id:
        return hub_cache.fetch_hugging_face_file(config.hf_hub_id, _files(config))
    return hub_cache.fetch_torch_file(_url(config))


def build(name: str, shape: tuple[int, int, int], classes: int, given: Collection[str] = ()) -> torch.nn.Module:  # noqa: ARG001 - as torchvision's
    """Build an architecture with timm's own random weights."""
    module: torch.nn.Module = import_module("timm").create_model(
        name, pretrained=False, **_options(name, shape, classes)
    )
    return module


def filled(name: str, shape: tuple[int, int, int], weights: Weights) -> torch.nn.Module:
    """Build an architecture and have timm fill it with weights in the form in which its authors published them.

    Raises what torch raises for other weights.
    """
    options = _options(name, shape, _config(name).num_classes)
    overlay = {"state_dict": dict(weights)}
    module: Any = import_module("timm").create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, **options)
    module.pretrained_cfg.pop("state_dict", None)  # a second copy of all weights
    filled_module: torch.nn.Module = module
    return filled_module


def _options(name: str, shape: tuple[int, int, int], classes: int) -> dict[str, Any]:
    """Return the arguments of create_model for an input and classes that are not the configuration's."""
    config, options = _config(name), dict[str, Any]()
    if shape[0] != config.input_size[0]:
        options["in_chans"] = shape[0]
    if config.fixed_input_size and shape[1:] != tuple(config.input_size[1:]):
        options["img_size"] = shape[1:]
    if classes != config.num_classes:
        options["num_classes"] = classes
    return options
