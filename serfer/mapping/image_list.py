"""The images of a map of many, and the result of each: files, folders, objects of S3 and prefixes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from serfer.core.errors import InputError, UsageError
from serfer.files import read_text
from serfer.images import folder_files
from serfer.raster.objects import Bucket
from serfer.raster.place import S3Place, parse_place

IMAGE_SUFFIXES = (".tif", ".tiff", ".png", ".jpg", ".jpeg")
_MOST_LIST_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True)
class MapItem:
    """An image, and the place of its result."""

    image: str
    result: str


def is_many(images: Sequence[str], out: str) -> bool:
    """Whether images are to be mapped into a folder or prefix: there are several, or a folder, or `out` is one."""
    return len(images) != 1 or _is_folder(images[0]) or _is_folder(out)


def map_items(images: Sequence[str], out: str, suffix: str) -> list[MapItem]:
    """Return images and their results in `out`, as deep as the images lie; raises UsageError for two of a name."""
    items = []
    for given in images:
        found = [*_images_with_names(given, out)]
        if not found:
            raise InputError(f"{given} holds no images: nothing in it ends in {', '.join(IMAGE_SUFFIXES)}")
        items += [MapItem(image, _within(out, PurePosixPath(name).with_suffix(suffix))) for image, name in found]
    _check_names(items)
    return items


def read_list(path: Path) -> list[str]:
    return [line for line in read_text(path, _MOST_LIST_BYTES).splitlines() if line.strip()]


def _images_with_names(given: str, out: str) -> Iterator[tuple[str, str]]:
    where = parse_place(given)
    if isinstance(where, S3Place):
        if not given.partition("?")[0].endswith("/"):
            yield given, PurePosixPath(where.key).name
            return
        for key in Bucket(where).listed():
            if key.lower().endswith(IMAGE_SUFFIXES):
                yield replace(where, key=key).url, key.removeprefix(where.key)
    elif where.is_dir():
        results = Path(out).absolute()
        for path in folder_files(where):
            if path.suffix.lower() in IMAGE_SUFFIXES and not path.absolute().is_relative_to(results):
                yield str(path), path.relative_to(where).as_posix()
    else:
        yield given, where.name


def _within(out: str, name: PurePosixPath) -> str:
    where = parse_place(out)
    if isinstance(where, S3Place):
        return replace(where, key=f"{where.key.rstrip('/')}/{name}").url
    return str(where / name)


def _is_folder(place: str) -> bool:
    where = parse_place(place)
    return place.partition("?")[0].endswith("/") or (isinstance(where, Path) and where.is_dir())


def _check_names(items: Sequence[MapItem]) -> None:
    by_result: dict[str, list[str]] = defaultdict(list)
    for item in items:
        by_result[item.result].append(item.image)
    for result, images in by_result.items():
        if len(images) > 1:
            raise UsageError(f"{images[0]} and {images[1]} would have one result, {result}: map them into two folders")
    if taken := by_result.keys() & {item.image for item in items}:
        raise UsageError(f"the result {min(taken)} would replace an image: choose another --out")
