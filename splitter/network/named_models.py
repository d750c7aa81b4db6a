"""Networks by name, `timm:NAME` and `torchvision:NAME`, with the input, preprocessing and labels of their weights."""

from __future__ import annotations

import math
import os
import re
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Self

from serfer.core.errors import ModelError, SerferError, UnavailableError, UsageError
from serfer.core.plan import INTERPOLATIONS, Preprocess
from serfer.plan_directory import LIBRARIES
from serfer.plug_ins import in_one_line
from serfer.splitter.network import zoo

WEIGHTS_FROM: Final = ("cache", "download", "random")
CACHE, DOWNLOAD, RANDOM = WEIGHTS_FROM
MAX_BYTES: Final = 4 * 1024**3
"""The most bytes of a file of weights, packed and unpacked."""
_NAME: Final = re.compile(rf"({'|'.join(LIBRARIES)}):([A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})")
_CHECKPOINT: Final = ("state_dict_ema", "model_ema", "state_dict", "model_state_dict", "model")
_HOW: Final = (
    "give --set weights_file=FILE, --set download=true to fetch them, or --random for random numbers, whose answers "
    "mean nothing (in Python serfer.NamedModel(NAME, FILE), or 'download' or 'random' in place of the file)"
)
Shape = tuple[int, int, int]
"""Channels, height and width."""
Weights = Mapping[str, Any]
"""Tensors by their names."""


def is_named(model: object) -> bool:
    return isinstance(model, NamedModel) or (isinstance(model, str) and model.partition(":")[0] in LIBRARIES)


@dataclass(frozen=True)
class NamedModel:
    """A network of a library, `timm:NAME[.TAG]` or `torchvision:NAME[.WEIGHTS]`, and where its weights are from.

    `weights_from` is "cache", the hubs' caches on this machine; "download", the hub where these lack them; "random"; or
    the path of a file, as torch.save (a state dict) or safetensors write it. Input, preprocessing and labels are those
    that the library has for the weights. Raises UsageError for another name.
    """

    name: str
    weights_from: Path | str = CACHE

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UsageError(f"{self.name!r:.120} is not a network's name: write timm:NAME or torchvision:NAME")

    def __str__(self) -> str:
        return self.name

    @classmethod
    def of(cls, model: Self | str) -> Self:
        return cls(model) if isinstance(model, str) else model


@dataclass(frozen=True)
class NamedNetwork:
    """A network of a library, and what the library says of it; `weights` says in words where they are from.

    `create` returns the module for a number of classes with weights, random ones for None. `cached` is the file of the
    weights on this machine, which `fetch` brings there; the layer `head` tells the classes apart.
    """

    name: str
    weights: str
    shape: Shape
    classes: int
    labels: tuple[str, ...]
    activation: str
    preprocess: Preprocess | None
    create: Callable[[int, Weights | None], Any]
    cached: Path | None
    fetch: Callable[[], Path]
    head: str = ""
    module: Any = None


def build(model: NamedModel, shape: Shape | None = None) -> NamedNetwork:
    """Build a named network in evaluation mode, for an input of `shape` (C, H, W); by default that of its weights.

    Raises ModelError for an unknown name, weights that are not here or of another network, and MissingExtraError.
    """
    library, name = model.name.split(":")
    file = None if model.weights_from in WEIGHTS_FROM else Path(model.weights_from)
    network = describe(library, name, file.name if file else "", shape)
    try:
        if model.weights_from == RANDOM:
            with zoo.drawn_by_seed():
                module = network.create(network.classes, None).eval()
            module = zoo.with_random_weights(module, network.shape)
            return replace(network, module=module, weights=zoo.RANDOM_WEIGHTS)
        weights = read_weights(file or _hub_file(network, model))
        if file is None:
            text = f"pretrained: {network.weights}"
            return replace(network, module=network.create(network.classes, weights).eval(), weights=text)
        return replace(_with_file(network, weights, file), weights=f"from {file.name}")
    except (SerferError, ModuleNotFoundError):
        raise
    except Exception as error:  # whatever the library's own code raises, for a size or an option
        size = f"{network.shape[1]} x {network.shape[2]} pixels and {network.shape[0]} channels"
        raise ModelError(f"{model.name} cannot be built for images of {size}: {in_one_line(error)[:300]}") from error


def _hub_file(network: NamedNetwork, model: NamedModel) -> Path:
    if network.cached or not network.weights or model.weights_from != DOWNLOAD:
        if network.cached is None:
            where = f"the weights {network.weights} are not in a hub's cache here" if network.weights else "no weights"
            raise ModelError(f"{model.name}: {where}: {_HOW}")
        return network.cached
    try:
        return network.fetch()
    except ModuleNotFoundError:
        raise
    except Exception as error:  # the hubs', urllib's and torch's have no common base
        how = "without a network, fetch the file elsewhere, and give it as --set weights_file=FILE"
        raise UnavailableError(f"{network.weights} cannot be fetched: {in_one_line(error)}; {how}") from error


def _with_file(network: NamedNetwork, weights: Weights, path: Path) -> NamedNetwork:
    own = network.create(network.classes, None).state_dict()
    first = next(name for name in own if name.endswith(".weight"))
    prefix = next((name.removesuffix(first) for name in weights if name.endswith(f".{first}")), "")
    if first not in weights:  # DataParallel, torch.compile and Lightning put a prefix before names
        weights = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
    head = f"{network.head}.weight" if network.head else [name for name in own if name.endswith(".weight")][-1]
    classes = weights[head].shape[0] if head in weights else network.classes
    try:
        module = network.create(classes, weights).eval()
    except RuntimeError as error:
        raise ModelError(
            f"{path} does not hold weights of {network.name}: {' '.join(str(error).split())[:300]}"
        ) from error
    if classes == network.classes:
        return replace(network, module=module)
    return replace(network, module=module, labels=(), activation="softmax" if network.head else network.activation)


def read_weights(path: Path) -> Weights:
    """Return the tensors of a file by their names, without running what is in it; raises ModelError."""
    import torch  # noqa: PLC0415 - slow to import

    check_weights_file(path)
    alone = "save the weights alone, torch.save(module.state_dict(), FILE)"
    try:
        if path.suffix == ".safetensors":
            loaded: Any = import_module("safetensors.torch").load_file(path)
        else:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except ModuleNotFoundError:
        raise
    except Exception as error:  # torch and safetensors raise many kinds for damaged files, and for Python objects
        why = in_one_line(error)[:200]
        raise ModelError(
            f"{path} is not a file of torch.save or safetensors with tensors alone ({why}): {alone}"
        ) from error
    if isinstance(loaded, Mapping):
        loaded = next((loaded[key] for key in _CHECKPOINT if isinstance(loaded.get(key), Mapping)), loaded)
        tensors = {name: value for name, value in loaded.items() if isinstance(value, torch.Tensor)}
        if tensors and all(isinstance(name, str) for name in tensors):
            return tensors
    raise ModelError(f"{path} holds no tensors by name: {alone}")


def check_weights_file(path: Path) -> None:
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
        raise ModelError(f"{path} holds more than {MAX_BYTES // 1024**3} GB: save the weights alone")


def describe(library: str, name: str, file: str, shape: Shape | None) -> NamedNetwork:
    """Return what a library says of a network's default weights, of those of its name, or of a published file's."""
    return _timm(name, shape) if library == "timm" else _torchvision(name, file, shape)


def _timm(name: str, shape: Shape | None) -> NamedNetwork:
    timm: Any = zoo.with_torchvision(lambda: import_module("timm"))
    models: Any = import_module("timm.models")
    architecture = name.partition(".")[0]
    if not models.is_model(architecture):
        raise _unknown("timm", architecture, models.list_models())
    try:
        config = models.get_pretrained_cfg(name) or models.PretrainedCfg(architecture=architecture)
    except RuntimeError as error:
        raise _unknown("timm", name, models.get_arch_pretrained_cfgs(architecture)) from error
    own = tuple(config.input_size)
    shape = shape or own

    def create(classes: int, weights: Weights | None) -> Any:  # noqa: ANN401 - a torch.nn.Module
        sides = own[1:] if config.fixed_input_size else shape[1:]
        pairs = {"in_chans": (own[0], shape[0]), "img_size": (sides, shape[1:])}
        options: dict[str, Any] = {key: wanted for key, (given, wanted) in pairs.items() if given != wanted}
        if classes != config.num_classes:
            options["num_classes"] = classes
        if weights is None:
            return timm.create_model(name, pretrained=False, **options)
        overlay = {"state_dict": dict(weights), "num_classes": classes}
        module = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, **options)
        module.pretrained_cfg.pop("state_dict", None)  # a second copy of all weights
        return module

    info = import_module("timm.data.imagenet_info")
    subset = info.infer_imagenet_subset({"num_classes": config.num_classes})
    labels = tuple(info.ImageNetInfo(subset).label_descriptions()) if subset else ()
    given = config.hf_hub_filename or "pytorch_model.bin"
    files = (given.replace("pytorch_model.bin", "model.safetensors"), given)
    tag = f"{architecture}.{config.tag}" if config.tag else architecture
    crop = config.crop_pct if config.crop_mode == "center" else None
    return NamedNetwork(
        tag,
        f"timm {tag}" if config.has_weights else "",
        shape,
        config.num_classes,
        zoo.imagenet_labels() if len(labels) == len(zoo.imagenet_labels()) else labels,
        "softmax" if labels else "none",
        _preprocess(shape, crop, config.interpolation, config.mean, config.std),
        create,
        _hugging_face_file(config.hf_hub_id, files) if config.hf_hub_id else _torch_file(config.url),
        partial(_fetch, config.hf_hub_id, files, config.url),
        config.classifier if isinstance(config.classifier, str) else "",
    )


def _torchvision(name: str, file: str, shape: Shape | None) -> NamedNetwork:
    models: Any = zoo.with_torchvision(lambda: import_module("torchvision.models"))
    architecture, _, wanted = name.partition(".")
    if architecture not in models.list_models():
        raise _unknown("torchvision", architecture, models.list_models(models))
    entries = models.get_model_weights(architecture)
    if wanted not in ("", *entries.__members__):
        raise _unknown("torchvision", name, [f"{architecture}.{member}" for member in entries.__members__])
    published = next((entry for entry in entries if file and entry.url.endswith(f"/{file}")), entries.DEFAULT)
    entry = entries[wanted] if wanted else published
    transforms, kind = entry.transforms(), type(entry.transforms()).__name__
    if kind not in ("ImageClassification", "SemanticSegmentation") or "Quantized" in entries.__name__:
        raise ModelError(
            f"torchvision's {architecture} ({kind}, {entries.__name__}) classifies or segments no float32 image: "
            "write module.py:factory"
        )
    classifies = kind == "ImageClassification"
    side = (transforms.crop_size if classifies else transforms.resize_size)[0]
    labels = tuple(entry.meta["categories"])
    shape = shape or (3, side, side)

    def create(classes: int, weights: Weights | None) -> Any:  # noqa: ANN401 - as above
        if shape[0] != len(transforms.mean):
            raise ModelError(f"torchvision's {architecture} takes images of 3 channels, not {shape[0]}")
        builder = models.get_model_builder(architecture)
        if weights is not None and classes == len(labels):  # in the form in which torchvision published them
            from unittest import mock  # noqa: PLC0415 - 0.8 MB, in every service

            with mock.patch.object(models.WeightsEnum, "get_state_dict", return_value=dict(weights)):
                return builder(weights=entry)
        options = {"weights_backbone": None, "aux_loss": False} if not classifies else {}
        if architecture in ("googlenet", "inception_v3"):
            options = {"aux_logits": False, "init_weights": False}
        module = builder(weights=None, num_classes=classes, **options)
        if weights is not None:
            module.load_state_dict({key: value for key, value in weights.items() if not key.lower().startswith("aux")})
        return module

    return NamedNetwork(
        architecture if entry is entries.DEFAULT else f"{architecture}.{entry.name}",
        f"torchvision {entries.__name__}.{entry.name}",
        shape,
        len(labels),
        labels,
        "softmax" if classifies else "none",
        _preprocess(
            shape, side / transforms.resize_size[0], transforms.interpolation.value, transforms.mean, transforms.std
        ),
        create,
        _torch_file(entry.url),
        partial(_fetch, "", (), entry.url),
    )


def _unknown(library: str, name: str, known: Any) -> ModelError:  # noqa: ANN401 - names
    near = get_close_matches(name, known, 3, 0.5) or list(known)[:20]
    return ModelError(f"{library} has no network {name!r:.80} (did you mean {', '.join(near)}?)")


def _preprocess(shape: Shape, crop: float | None, interpolation: str, mean: Any, std: Any) -> Preprocess | None:  # noqa: ANN401 - numbers
    if shape[0] != len(mean):
        return None
    resize = None if crop is None else math.floor(min(shape[1:]) / crop + 1e-6)
    known = interpolation if interpolation in INTERPOLATIONS else "bilinear"
    return Preprocess(resize, known, "L" if shape[0] == 1 else "RGB", 1 / 255, tuple(mean), tuple(std))


def _torch_file(url: Any) -> Path | None:  # noqa: ANN401 - a text, or what timm has for none
    file = _torch_place(url) if isinstance(url, str) and url else None
    return file if file and file.is_file() else None


def _torch_place(url: str) -> Path:
    return _torch_hub() / "checkpoints" / url.partition("?")[0].rpartition("/")[2]


def _torch_hub() -> Path:
    if torch := sys.modules.get("torch"):  # a program may have set another one
        return Path(torch.hub.get_dir())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "torch")
    return Path(os.environ.get("TORCH_HOME") or cache).expanduser() / "hub"


def _hugging_face_hub() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME") or cache, "hub")).expanduser()


def _hugging_face_file(hub_id: str, names: tuple[str, ...]) -> Path | None:
    repository, _, revision = hub_id.partition("@")
    place = _hugging_face_hub() / f"models--{repository.replace('/', '--')}"
    named = place / "refs" / (revision or "main")
    commit = named.read_text(encoding="utf-8").strip() if named.is_file() else revision
    return next((file for name in names if commit and (file := place / "snapshots" / commit / name).is_file()), None)


def _fetch(hub_id: str, names: tuple[str, ...], url: str) -> Path:
    import torch  # noqa: PLC0415 - as above

    if hub_id:
        repository, _, revision = hub_id.partition("@")
        hub: Any = import_module("huggingface_hub")
        held = {*hub.list_repo_files(repository, revision=revision or None)}
        name = next((name for name in names if name in held), names[-1])
        return Path(hub.hf_hub_download(repo_id=repository, filename=name, revision=revision or None))
    place = _torch_place(url)
    place.parent.mkdir(parents=True, exist_ok=True)
    digest = torch.hub.HASH_REGEX.search(place.name)
    torch.hub.download_url_to_file(url, str(place), digest[1] if digest else None, progress=False)
    return place
