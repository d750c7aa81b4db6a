"""Networks that are handed in to be registered: the form that is sent."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import IO, TypeAlias

from serfer.client.messages import Form
from serfer.core.errors import InputError, UsageError

Place: TypeAlias = str | PathLike[str]
_ONNX = ".onnx"


@dataclass(frozen=True)
class Described:
    """What describes a network that is registered: paths of its preprocessing and its labels, and other options."""

    name: str | None = None
    preprocess: Place | None = None
    labels: Place | None = None
    options: Mapping[str, str | float] = field(default_factory=dict)


def registration_form(network: Place, validation: Place | None, described: Described) -> Form:
    """Return the form of a registration; a directory of images goes as a zip. Raises InputError for what is not there.

    A network is an ONNX file, by its suffix, or the name of one of the zoo.
    """
    texts = {key: str(value) for key, value in described.options.items()}
    if described.name is not None:
        texts["name"] = described.name
    files = [("validation", validation), ("preprocess", described.preprocess), ("labels", described.labels)]
    if str(network).endswith(_ONNX):
        files.append(("network", Path(network)))
    else:
        texts["network"] = str(network)
    for name in texts:
        if '"' in name or not name.isprintable():
            raise UsageError(f"{name!r:.40} is not an option of a registration")
    with ExitStack() as opened:
        sent = [
            (name, (_called(Path(path)), opened.enter_context(_open(Path(path)))))
            for name, path in files
            if path is not None
        ]
        opened.pop_all()  # the form's `with` closes them
    return Form(texts, sent)


def _called(path: Path) -> str:
    """Return what a file is called in the form: never nothing (of "."), which httpx would send as a value."""
    return "".join(filter(str.isprintable, path.name)) or "unnamed"


def _open(path: Path) -> IO[bytes]:
    """Open a file, or a directory as a zip; its images are not compressed again."""
    try:
        if path.is_file():
            return path.open("rb")
        with ExitStack() as undone:
            copy = undone.enter_context(tempfile.TemporaryFile())
            if path.is_dir():
                with zipfile.ZipFile(copy, "w", zipfile.ZIP_STORED) as archive:
                    for file in _files(path):
                        archive.write(file, file.relative_to(path).as_posix())
            else:  # a pipe, say: of a length that only its end shows
                with path.open("rb") as source:
                    shutil.copyfileobj(source, copy)
            copy.flush()
            undone.pop_all()
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    return copy


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and not hidden:
            yield path
