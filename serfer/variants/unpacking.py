"""A process that unpacks an uploaded archive of labelled images: a job in JSON in, the folder of the images out.

The author of the archive is not trusted, so nothing of it is read anywhere else: this process has limits of memory,
processor time and file size, and no secrets. Files and folders alone are unpacked, below one folder, and every byte is
counted when it is written, whatever the archive's tables say.

    *.zip (stored or deflated), *.tar, *.tar.gz       as serfer app register --validation takes a directory; one folder
                                                      around it all is passed over
"""

from __future__ import annotations

import json
import resource
import stat
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Final

from serfer.core.dataclass_codec import structure, unstructure
from serfer.core.errors import InputError, SerferError
from serfer.core.units import MIB
from serfer.images import image_files
from serfer.pipeline.labelled.labels import LIST_FILE, MOST_IMAGES, listed

SET: Final = "the validation set"
"""What messages call the folder."""
MOST_ENTRIES: Final = 2 * MOST_IMAGES
"""Files and folders of an archive, those that are passed over included."""
_MEMORY_BYTES: Final = 512 * MIB  # of addresses; a zip's table of contents is in memory, and has no bound of its own
_PROCESSOR_S: Final = 600
_MAX_JOB_BYTES: Final = 65_536
_MOST_PART, _MOST_PARTS = 200, 16  # bytes of a name's part, parts of a name
_CHUNK: Final = 1 << 20
_IGNORED: Final = "__MACOSX"
_KINDS: Final = "a zip (stored or deflated), a tar or a tar.gz"
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED: Final = 0x1
_UNIX: Final = 16  # bits of a zip's external attributes below Unix's own


@dataclass(frozen=True, slots=True)
class UnpackJob:
    """An archive, the folder that its files go below, and the most bytes that they may have together.

    Messages call it as it is `called`. Images that are labelled lie in one folder for each class, or beside a list.
    """

    archive: str
    folder: str
    most_bytes: int
    called: str = SET
    most_images: int = MOST_IMAGES
    is_labelled: bool = True


@dataclass(frozen=True, slots=True)
class ImageFolder:
    """The folder of the images, and how many there are."""

    folder: str
    images: int


@dataclass
class _Written:
    """What was written below a folder so far, of at most `most_bytes`."""

    folder: Path
    most_bytes: int
    size: int = 0

    def write(self, name: str, file: IO[bytes]) -> None:
        """Write a file; raises InputError for a name that may not be, or a second time, and for too many bytes."""
        place = _place(name)
        if place is None:
            return
        path = self.folder / place
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as out:
                while chunk := file.read(min(_CHUNK, self.most_bytes - self.size + 1)):
                    self.size += len(chunk)
                    if self.size > self.most_bytes:
                        raise InputError(f"{SET} has more than {self.most_bytes:,} bytes unpacked")
                    out.write(chunk)
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            raise InputError(f"{SET} has {name!r:.80} twice") from None


def unpack(job: UnpackJob) -> ImageFolder:
    """Unpack an archive and look at what is in it; raises InputError that says what is wrong with it."""
    archive, written = Path(job.archive), _Written(Path(job.folder), job.most_bytes)
    written.folder.mkdir()
    try:
        for name, file in _files(archive):
            written.write(name, file)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError) as error:
        raise InputError(f"{SET} cannot be unpacked: {error}; send {_KINDS}") from error
    except MemoryError:
        raise InputError(f"{SET} takes too much memory to unpack: send {_KINDS}, of fewer files") from None
    folder = _inner(written.folder)
    try:
        images = len(listed(folder) if job.is_labelled else image_files(folder))
    except InputError as error:
        raise InputError(str(error).replace(str(folder), job.called)) from error
    if images > job.most_images:
        raise InputError(f"{job.called} has {images:,} images: at most {job.most_images:,} are taken")
    return ImageFolder(str(folder), images)


def _files(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the names and contents of an archive's files; raises InputError for a link, a device, too many."""
    with archive.open("rb") as file:
        head = file.read(4)
    if head[:2] == b"PK":
        yield from _of_zip(archive)
    else:
        yield from _of_tar(archive, "r|gz" if head[:2] == b"\x1f\x8b" else "r|")


def _of_zip(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(archive) as opened:
        entries = opened.infolist()
        if len(entries) > MOST_ENTRIES:
            raise _too_many()
        for entry in entries:
            kind = stat.S_IFMT(entry.external_attr >> _UNIX)
            if entry.is_dir():
                continue
            if kind not in (0, stat.S_IFREG):
                raise _no_file(entry.filename)
            if entry.flag_bits & _ENCRYPTED or entry.compress_type not in _METHODS:
                raise InputError(f"{SET}: {entry.filename!r:.80} is encrypted or compressed otherwise: send {_KINDS}")
            with opened.open(entry) as content:
                yield entry.filename, content


def _of_tar(archive: Path, mode: str) -> Iterator[tuple[str, IO[bytes]]]:
    with tarfile.open(archive, mode) as opened:  # type: ignore[call-overload]  # a stream: each member once, in order
        for number, member in enumerate(opened, 1):
            opened.members.clear()  # else all are kept
            if number > MOST_ENTRIES:
                raise _too_many()
            if member.isdir():
                continue
            content = opened.extractfile(member) if member.isreg() and not member.issparse() else None
            if content is None:
                raise _no_file(member.name)
            yield member.name, content


def _place(name: str) -> PurePosixPath | None:
    """Return where below the folder a file goes, None for what is passed over; raises InputError for elsewhere."""
    place = PurePosixPath(name)
    parts = place.parts
    odd = place.is_absolute() or ".." in parts or "\\" in name or not name.isprintable()
    if odd or not parts or len(parts) > _MOST_PARTS or any(len(part.encode()) > _MOST_PART for part in parts):
        raise InputError(f"{SET} has a file named {name!r:.80}: send files with names below one folder")
    return None if parts[0] == _IGNORED or any(part.startswith(".") for part in parts) else place


def _inner(folder: Path) -> Path:
    """Return the folder itself, or the one that is around all that is in it."""
    entries = list(folder.iterdir())
    if len(entries) != 1 or not entries[0].is_dir():
        return folder
    inside = list(entries[0].iterdir())
    is_around = any(path.is_dir() for path in inside) or (entries[0] / LIST_FILE).exists()
    return entries[0] if is_around else folder


def _too_many() -> InputError:
    return InputError(f"{SET} has more than {MOST_ENTRIES:,} files and folders")


def _no_file(name: str) -> InputError:
    return InputError(f"{SET} has {name!r:.80}, which is a link or a device: send files and folders")


def main() -> None:
    """Unpack within limits, or exit with what was wrong in a line."""
    job = structure(UnpackJob, json.loads(sys.stdin.buffer.read(_MAX_JOB_BYTES)), "job", error=InputError)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_PROCESSOR_S, _PROCESSOR_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        unpacked = unpack(job)
    except SerferError as error:
        print(str(error).replace(SET, job.called), file=sys.stderr)  # noqa: T201 - the process that waits reads it
        raise SystemExit(error.exit_code) from error
    print(json.dumps(unstructure(unpacked)))  # noqa: T201 - same


if __name__ == "__main__":
    main()
