"""A network in place of a plan directory: the plan, which runs it whole, is made when the network is first named.

    net.onnx, options ── SHA-256 ──▶ CACHE/plans/net-KEY ── there ─────────────────────▶ a plan directory
    timm:NAME, options                        └── not there: splitter/whole.py ─────────┘  of one task

Apart from open_pipeline.py, because a driver in AWS has no splitter.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import re
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from serfer.core.dataclass_codec import unstructure
from serfer.core.errors import ModelError
from serfer.core.plan import Plan, Preprocess
from serfer.extras import named_extras
from serfer.packaging.bundle import code_stamp
from serfer.plan_directory import file_sha256
from serfer.settings import Settings
from serfer.splitter.network.description import Description
from serfer.splitter.network.description import assumed_preprocess as assumed_for
from serfer.splitter.network.named_models import CACHE, DOWNLOAD, WEIGHTS_FROM, NamedModel, check_weights_file
from serfer.wiring.plan_cache import cached_plan, planned_for

_MOST_BYTES: Final = 2 * 1024**3  # of an ONNX file; its weights may be in others
_MOST_LOCATION: Final = 4096  # bytes of the name of a file of weights
_EXTERNAL: Final = re.compile(rb"\x6a[\x80-\xff]?[\x00-\x7f]\Z", re.DOTALL)  # its field 13, with the entry's length
_LOCATION: Final = b"\x0a\x08location\x12"
_UNNAMED: Final = re.compile(r"[^A-Za-z0-9._-]+")
_SHOWN: Final = 40  # characters of a file's name in its plan's
_KEY: Final = 16  # hex digits


@named_extras()
def plan_of_file(
    network: Path | NamedModel,
    settings: Settings,
    progress: Callable[[str], None],
    example: NDArray[np.float32] | None = None,
    description: Description | None = None,
    sizes: str | None = None,
) -> Path:
    """Return the directory of the plan that runs an ONNX file or a named network whole, as one task, in the cache.

    It is made when the network is first named, and again whenever its file, that of its weights, the version of its
    library, options or the splitter's own code have changed; of several processes, one makes it. `example`,
    (N, C, H, W) float32, fixes the input's size where the file does not; `description` says what the network does not;
    with `sizes` it takes images of many (`whole_plan`). Where nothing says how an image becomes the input, it is
    assumed (`assumption`). Raises ModelError for a network that cannot be run, UnavailableError for a cache
    that cannot be written.
    """
    description = description or Description()
    called, parts = of_name(network) if isinstance(network, NamedModel) else of_file(network)
    circumstances = planned_for(settings)
    what = f"building {network}" if isinstance(network, NamedModel) else f"reading {network.name}"

    def make(directory: Path) -> None:
        from serfer.splitter.whole import whole_plan  # noqa: PLC0415 - imports onnx, which a plan in the cache spares

        progress(f"{what}, once: its plan stays in {directory.parent}")
        whole_plan(
            network if isinstance(network, NamedModel) else str(network),
            example,
            directory,
            preprocess=description.preprocess,
            assume_preprocess=True,
            labels=description.labels,
            activation=description.output,
            sizes=sizes,
            progress=progress,
            **circumstances,
        )

    given = None if example is None else [example.shape, hashlib.sha256(example.tobytes()).hexdigest()]
    parts = {
        **parts,
        "example": given,
        "description": unstructure(description),
        "sizes": sizes,
        "for": repr(circumstances),
    }
    return cached_plan(settings.cache_dir, plan_name(called, parts), make)


def assumed_preprocess(plan: Plan) -> Preprocess | None:
    """Return how an image becomes a plan's input where nothing says it; None where no image has such numbers."""
    return assumed_for(plan.input.channels, plan.file.dtype if plan.file else "float32")


def assumption(plan: Plan) -> str:
    """Say what was assumed about the images of a file's plan; empty where they are preprocessed in another way."""
    shape, assumed = plan.input, plan.preprocess
    if assumed is None:
        return (
            f"{plan.model} takes {shape.channels} channels of numbers that image files do not have: give it arrays "
            f"(serfer run FILE.npy, Pipeline.run), (N, {shape.channels}, {shape.height}, {shape.width}) float32"
        )
    if assumed != assumed_preprocess(plan):
        return ""
    fit = f"{shape.height} x {shape.width} pixels"
    fit = f"the nearest of {plan.sizes.input}" if plan.sizes else fit
    colours = "RGB" if assumed.channels == "RGB" else "grey"
    values = "as they are, 0 to 255" if assumed.scale == 1 else "times 1/255"
    return (
        f"assumed: images of {plan.model} are stretched to {fit}, {colours}, their "
        f"values {values}; preprocess=FILE.toml says what is right (docs/how-to/preprocess.md)"
    )


def outside_weights(file: Path) -> Iterator[str]:
    """Yield, for each tensor of an ONNX file whose values are in another file, that file's name as it stands there.

    Nothing of the network is read but entries of TensorProto.external_data (field 13) whose key (field 1) is "location"
    and that have a value (field 2).
    """
    with file.open("rb") as opened:
        if not file.stat().st_size:
            return
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            place = data.find(_LOCATION)
            while place >= 0:
                if _EXTERNAL.search(data[max(0, place - 3) : place]):
                    yield _text_at(data, place + len(_LOCATION))
                place = data.find(_LOCATION, place + 1)


def _text_at(data: mmap.mmap, place: int) -> str:
    length = shift = 0
    for byte in data[place : place + 3]:
        place += 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:  # noqa: PLR2004 - the last byte of a number has no eighth bit
            break
    return data[place : place + min(length, _MOST_LOCATION)].decode(errors="replace")


def of_file(file: Path) -> tuple[str, dict[str, Any]]:
    try:
        if not file.is_file():
            raise ModelError(f"{file} {'is not a file' if file.exists() else 'does not exist'}: give an .onnx file")
        if file.stat().st_size > _MOST_BYTES:
            raise ModelError(f"{file} is larger than 2 GB; save its weights as external data")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ModelError(f"{str(file)!r} cannot be read: {getattr(error, 'strerror', error)}") from error
    names = sorted({name for name in outside_weights(file) if "\0" not in name})
    files = [file, *(path for name in names if (path := file.parent / name).is_file())]
    return file.stem, {"name": file.name, "files": [_sha256(path) for path in files]}


def of_name(model: NamedModel) -> tuple[str, dict[str, Any]]:
    """Return what a named network is called, and what its plan depends on; the hubs' files are known by the name.

    Whether these were here or are fetched makes no difference.
    """
    library, _, called = model.name.partition(":")
    weights: str = "hub"
    if model.weights_from not in WEIGHTS_FROM:
        path = Path(model.weights_from)
        check_weights_file(path)
        weights = _sha256(path)
    elif model.weights_from not in (CACHE, DOWNLOAD):
        weights = str(model.weights_from)
    return called, {"name": model.name, "weights": weights, "versions": [_version(library), _version("torch")]}


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def plan_name(called: str, parts: dict[str, Any]) -> str:
    """Return the name of a network's plan in the cache: it changes with the JSON values that the plan depends on.

    And with the splitter's own code.
    """
    parts = {**parts, "code": code_stamp(("serfer.splitter", "serfer.core"))}
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:_KEY]
    return f"{_UNNAMED.sub('-', called)[:_SHOWN]}-{key}"


def _sha256(file: Path) -> str:
    try:
        return file_sha256(file)
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror}") from error
