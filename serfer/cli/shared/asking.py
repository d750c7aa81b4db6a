"""Shared by the commands that ask a network about images: the images that are meant, and one query each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serfer.cli.shared.options import print_json
from serfer.cli.shared.terminal import complain
from serfer.control.throttle import Thresholds
from serfer.core.errors import ImageError, InputError, SerferError, UsageError
from serfer.core.plan import ImageLimits
from serfer.images import check_image, image_files
from serfer.offline.gate import OfflineGate
from serfer.settings import Settings, load_settings

if TYPE_CHECKING:
    from serfer.offline.load_source import ServiceLoad
    from serfer.pipeline.blocking import Pipeline

STANDARD_INPUT = "-"


def query_images(
    names: Sequence[str], query: Callable[[str], None], failed: Callable[[str], Mapping[str, Any]] | None
) -> int:
    """Query each image, go on where one fails, and return the exit code of the first failure, 0 for none.

    With --json, `failed` returns what is printed of such an image beside its error.
    """
    failures: list[SerferError] = []
    for name in names:
        try:
            query(name)
        except SerferError as error:
            complain(error if name in str(error) else f"{name}: {error}")
            failures.append(error)
            if failed is not None:
                print_json({**failed(name), "error": str(error)})
    return failures[0].exit_code if failures else 0


def names_of(images: Sequence[str]) -> list[str]:
    """Return the images that are meant, those of folders by their paths; a folder without images stands for itself.

    Raises UsageError where standard input is given twice.
    """
    if images.count(STANDARD_INPUT) > 1:
        raise UsageError("standard input can be read only once")
    names: list[str] = []
    for image in images:
        try:
            names += map(str, image_files(Path(image))) if image != STANDARD_INPUT and Path(image).is_dir() else [image]
        except ImageError:
            names.append(image)
    return names


def check_some(names: Sequence[str], settings: Settings) -> None:
    """Raise the first image's ImageError where there is no image that can be read."""
    limits = ImageLimits(settings.max_image_bytes, settings.max_image_pixels)
    first: ImageError | None = None
    for name in names:
        try:
            if name == STANDARD_INPUT:
                return
            if Path(name).is_dir():
                image_files(Path(name))
            check_image(Path(name), limits)
        except ImageError as error:
            first = first or error
        else:
            return
    if first is not None:
        raise first


def data_of(name: str) -> bytes | Path:
    """Return what an image's name stands for; raises ImageError for a folder without images."""
    if name == STANDARD_INPUT:  # at most one byte more than is accepted
        return sys.stdin.buffer.read(load_settings().max_image_bytes + 1)
    if Path(name).is_dir():
        image_files(Path(name))
    return Path(name)


def made_folder(folder: Path, what: str) -> Path:
    """Make a folder for outputs, say, where it is not there; raises InputError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{str(folder)!r} cannot be a folder for {what}: {reason}") from error
    return folder


@contextmanager
def yielding(
    pipeline: Pipeline, sources: Sequence[ServiceLoad], limits: Thresholds
) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    if not sources:
        yield nullcontext
        return

    def refused() -> int:
        load = pipeline.function_load()
        return load.throttled if load else 0

    gate = OfflineGate(sources, limits=limits, refused=refused)

    def turn() -> AbstractContextManager[None]:
        if reason := gate.reason:
            complain(f"paused: {reason}")
        return gate.task()

    with gate.watching():
        yield turn
