"""`timm:NAME` and `torchvision:NAME`: an architecture, and where its weights are from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from serfer.core.errors import ModelError, SerferError, UsageError
from serfer.core.plan import Preprocess
from serfer.plan_directory import LIBRARIES
from serfer.plug_ins import in_one_line
from serfer.splitter.network.by_name.model_card import ModelCard

if TYPE_CHECKING:
    import torch

WEIGHTS_FROM: Final = ("cache", "download", "random")
CACHE, DOWNLOAD, RANDOM = WEIGHTS_FROM
_NAME: Final = re.compile(rf"({'|'.join(LIBRARIES)}):([A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})")
_HOW: Final = (
    "give --weights-file FILE, --download to fetch them, or --random for random numbers, whose answers mean nothing "
    "(in Python serfer.NamedModel(NAME, FILE), or 'download' or 'random' in place of the file)"
)


def is_named(model: object) -> bool:
    """Return whether a model is given by the name that it has in a library."""
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
        """Return a model that was given as such or by its name."""
        return cls(model) if isinstance(model, str) else model


@dataclass(frozen=True)
class NamedNetwork:
    """A network that was built, for an input of `shape` (C, H, W), and what the metadata of its weights say of it.

    `weights` says in words where they are from; `note` is empty, or what a plan does not do as the metadata say.
    """

    name: str
    module: torch.nn.Module
    shape: tuple[int, int, int]
    weights: str
    preprocess: Preprocess | None
    labels: tuple[str, ...]
    activation: str
    note: str = ""


def build(model: NamedModel, shape: tuple[int, int, int] | None = None) -> NamedNetwork:
    """Build a named network in evaluation mode, for an input of `shape` (C, H, W); by default that of its weights.

    Raises ModelError for an unknown name, weights that are not here or of another network, and MissingExtraError.
    """
    library_name, name = model.name.split(":")
    library: Any = import_module(f"serfer.splitter.network.by_name.{library_name}_models")
    file = None if model.weights_from in WEIGHTS_FROM else Path(model.weights_from)
    card: ModelCard = library.card(name, file.name if file else "")
    shape = shape or card.shape
    try:
        if model.weights_from == RANDOM:
            module, weights, classes = _random(library, card, shape)
        else:
            path = file or _hub_file(library, card, model)
            module, classes = _with_weights(
                library, card, shape, path, published=path in card.cached or path.name in card.published
            )
            weights = f"from {path.name}" if file else f"pretrained: {card.weights}"
    except (SerferError, ModuleNotFoundError):
        raise
    except Exception as error:  # whatever the library's own code raises, for a size or an option
        raise ModelError(f"{model.name} cannot be built for {_size(shape)}: {_mismatch(error)}") from error
    own = classes == card.classes
    return NamedNetwork(
        card.name,
        module.eval(),
        shape,
        weights,
        card.preprocess(shape),
        card.labels if own else (),
        card.activation if own or not card.classifies else "softmax",
        card.note,
    )


def _size(shape: tuple[int, int, int]) -> str:
    return f"images of {shape[1]} x {shape[2]} pixels and {shape[0]} channels"


def _mismatch(error: Exception) -> str:
    """Return what an error says; torch lists what does not fit from its second line on."""
    first, *others = str(error).strip().splitlines() or [""]
    return others[0].strip()[:300] if "loading state_dict" in first and others else in_one_line(error)[:300]


def _random(
    library: Any,  # noqa: ANN401 - one of the two modules
    card: ModelCard,
    shape: tuple[int, int, int],
) -> tuple[torch.nn.Module, str, int]:
    from serfer.splitter.network.zoo import RANDOM_WEIGHTS, drawn_by_seed, with_random_weights  # noqa: PLC0415 - light here

    with drawn_by_seed():
        module = library.build(card.name, shape, card.classes)
    return with_random_weights(module.eval(), shape), RANDOM_WEIGHTS, card.classes


def _hub_file(library: Any, card: ModelCard, model: NamedModel) -> Path:  # noqa: ANN401 - as above
    if card.cached:
        return card.cached[0]
    if not card.weights:
        raise ModelError(f"{model.name} has no published weights: {_HOW}")
    if model.weights_from == DOWNLOAD:
        fetched: Path = library.fetch(card.name)
        return fetched
    others = f" (there are those of {', '.join(card.others)}: name them)" if card.others else ""
    raise ModelError(f"the weights {card.weights} are not on this machine, in {card.missing}{others}: {_HOW}")


def _with_weights(
    library: Any,  # noqa: ANN401 - as above
    card: ModelCard,
    shape: tuple[int, int, int],
    path: Path,
    *,
    published: bool,
) -> tuple[torch.nn.Module, int]:
    """Return a network with a file's weights, and its number of classes, which the file may have changed.

    Files of the hub's are for the library to read, as what it does with them may depend on which they are; others are,
    where they do not fit as they are.
    """
    from serfer.splitter.network.by_name.weights_file import classes_of, misfit, read_weights, unwrapped  # noqa: PLC0415 - same

    weights = read_weights(path)
    if published:
        return library.filled(card.name, shape, weights), card.classes
    module = library.build(card.name, shape, card.classes, weights)
    weights = unwrapped(weights, module)
    classes = classes_of(weights, module, card.classes, card.head)
    if classes != card.classes:
        module = library.build(card.name, shape, classes, weights)
    why = misfit(weights, module)
    if not why:
        module.load_state_dict(dict(weights), strict=False)
        return module, classes
    try:
        return library.filled(card.name, shape, weights), card.classes
    except Exception as error:  # the library's own: which weights are not the network's is said better above
        raise ModelError(f"{path} does not hold weights of {card.name}: {why}") from error
