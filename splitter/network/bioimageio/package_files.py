"""The files of a model package, a zip or a directory: by their names, of bounded size, never from outside of it."""

from __future__ import annotations

import lzma
import shutil
import stat
import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from serfer.core.errors import ModelError
from serfer.core.units import MIB

DESCRIPTIONS = ("bioimageio.yaml", "rdf.yaml")
"""What the description of a package is called, the newer name first."""
MOST_BYTES = 16 * 1024 * MIB
"""The most bytes of any file."""
_MOST_FILES = 10_000
_CHUNK = 4 * MIB
_ENCRYPTED = 0x1
_UNIX = 16  # bits of a zip's external attributes below Unix's own
_IGNORED = "__MACOSX"


def is_package(text: str) -> bool:
    """Return whether a path is that of a model package: a zip, a directory with a description, or the description."""
    path = Path(text)
    if path.suffix.lower() == ".zip":
        return not path.is_dir()
    return path.name in DESCRIPTIONS or any((path / name).is_file() for name in DESCRIPTIONS)


class PackageFiles:
    """A package's files, of which those of a zip are unpacked when they are asked for, as long as this object lives.

    Raises ModelError for what is not a package, and for names that lead out of it.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self._scratch: Path | None = None
        self._zip = _open_zip(place) if place.suffix.lower() == ".zip" else None
        if self._zip is None:
            self._folder = place.parent if place.name in DESCRIPTIONS else place
            found = [name for name in DESCRIPTIONS if (self._folder / name).is_file()]
        else:
            self._folder = self.scratch
            found = _descriptions(self._zip)
        if not found:
            raise ModelError(
                f"{place} has no {' or '.join(DESCRIPTIONS)}: it is not a model package of bioimage.io; give an .onnx "
                "file, or a package as bioimage.io offers it for download"
            )
        self._root = PurePosixPath(found[0]).parent
        self.description = PurePosixPath(found[0]).name

    @property
    def scratch(self) -> Path:
        """A directory of its own, as long as this object lives."""
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="serfer-package-"))
            weakref.finalize(self, shutil.rmtree, self._scratch, ignore_errors=True)
        return self._scratch

    def read(self, name: str, most: int) -> bytes:
        """Return the content of a file of at most `most` bytes."""
        return self.path(name, most).read_bytes()

    def path(self, name: str, most: int = MOST_BYTES) -> Path:
        """Return the path of a file of at most `most` bytes."""
        self._check_name(name)
        inside = self._root / PurePosixPath(name)
        path = self._folder / inside
        with self._naming(name):
            if self._zip is not None and not path.exists():
                self._unpack(self._zip, str(inside), path, most)
            real = path.resolve()
            if not real.is_relative_to(self._folder.resolve()):
                raise ModelError(f"{self.place}: {name} is a link that leads out of the package")
            if not real.is_file():
                raise ModelError(f"{self.place} has no file {name}, which its {self.description} names")
            if real.stat().st_size > most:
                raise ModelError(f"{self.place}: {name} has more than {most:,} bytes")
        return real

    def _check_name(self, name: str) -> None:
        if "://" in name:
            raise ModelError(
                f"{self.place} has {name:.200} elsewhere: give the package as bioimage.io offers it for "
                "download, which has its files"
            )
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or {"..", "\\"} & {*parts, *name} or "\0" in name:
            raise ModelError(f"{self.place}: {name!r:.200} is not the name of a file in the package")

    def _unpack(self, archive: zipfile.ZipFile, name: str, path: Path, most: int) -> None:
        """Write a file of the archive; every byte is counted, whatever the archive's table says."""
        try:
            entry = archive.getinfo(name)
        except KeyError:
            return
        if entry.flag_bits & _ENCRYPTED or stat.S_ISLNK(entry.external_attr >> _UNIX) or entry.is_dir():
            raise ModelError(f"{self.place}: {name} is encrypted, a link or a directory, and not a file")
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.part")
        with archive.open(entry) as source, part.open("wb") as target:
            size = 0
            while chunk := source.read(_CHUNK):
                size += len(chunk)
                if size > most:
                    raise ModelError(f"{self.place}: {name} has more than {most:,} bytes")
                target.write(chunk)
        part.rename(path)

    @contextmanager
    def _naming(self, name: str) -> Iterator[None]:
        """Say which file it is that cannot be read."""
        try:
            yield
        except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError, OSError) as error:
            raise ModelError(f"{self.place}: {name} cannot be read: {error}") from error


def _open_zip(place: Path) -> zipfile.ZipFile:
    try:
        archive = zipfile.ZipFile(place)
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise ModelError(f"{place} cannot be read as a zip: {getattr(error, 'strerror', None) or error}") from error
    if len(archive.filelist) > _MOST_FILES:
        raise ModelError(f"{place} has more than {_MOST_FILES:,} files: it is not a model package")
    return archive


def _descriptions(archive: zipfile.ZipFile) -> list[str]:
    """Return where descriptions are in an archive: at its root, or in the one folder around all of it."""
    names = [name for name in archive.namelist() if not name.startswith(_IGNORED)]
    folders = {PurePosixPath(name).parts[0] for name in names if PurePosixPath(name).parts}
    around = f"{folders.pop()}/" if len(folders) == 1 else ""
    return [place for known in DESCRIPTIONS for place in (known, f"{around}{known}") if place in names]
