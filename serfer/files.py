"""Files that users name: what is read is bounded before it is decoded, what is written appears whole or not at all."""

from __future__ import annotations

import fcntl
import grp
import os
import pwd
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from serfer.core.errors import InputError, UsageError

_OWN = 0o600


def read_text(path: Path, most_bytes: int) -> str:
    """Return a file's text; raises InputError that names it and says what is wrong: too large, no text, not there."""
    try:
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)
        if len(data) > most_bytes:
            raise InputError(f"{path} has more than {most_bytes:,} bytes")
        return data.decode("utf-8-sig")
    except (OSError, ValueError) as error:  # ValueError: no text, or a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"{str(path)!r} cannot be read: {reason}") from error


def why_unsafe(path: Path) -> str:
    """Return why another user than root may change a file or directory, "" where none may; raises OSError.

    A group counts as the user's own where it has the user's name and no other member (umask 002), or no name at all.
    """
    owner, others = _writers(path)
    return owner or others


def check_owner(directory: Path) -> None:
    """Refuse a directory for data that another user made for others to write; raises UsageError, OSError.

    What root made may be for others: mounted volumes are.
    """
    if all(why := _writers(directory)):
        raise UsageError(f"{directory} {' and '.join(why)}: give one of your own")


def _writers(path: Path) -> tuple[str, str]:
    status, user, sudo = path.stat(), os.geteuid(), os.environ.get("SUDO_UID", "")
    trusted = {0, user} | ({int(sudo)} if user == 0 and sudo.isdecimal() else set())
    owner = "" if status.st_uid in trusted else f"belongs to another user ({status.st_uid})"
    others = status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and not _is_own(status.st_gid, trusted))
    writable = others and not os.statvfs(path).f_flag & os.ST_RDONLY
    return owner, "can be written by other users" if writable else ""


def _is_own(group: int, users: Iterable[int]) -> bool:
    try:
        names, entry = {pwd.getpwuid(user).pw_name for user in users}, grp.getgrgid(group)
    except KeyError:  # in a container
        return group in {os.getegid(), *os.getgroups()}
    return entry.gr_name in names and names.issuperset(entry.gr_mem)


def check_place(path: Path) -> None:
    """Refuse a path that cannot be written, before long work whose result it is for; raises InputError.

    A device or a pipe is refused too: the file would take its place.
    """
    if _is_taken(path) or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise InputError(
            f"{str(path)!r} cannot be written: it should be a regular file in a directory that you may write"
        )


def lies_inside(place: str, around: str) -> bool:
    """Return whether a directory or a URL is another one, or lies in it; options of URLs do not count."""
    inside, outside = _parts(place), _parts(around)
    return inside[: len(outside)] == outside


def _parts(url: str) -> list[str]:
    if "://" not in url:
        url = f"file://{Path(url).expanduser().absolute()}"
    split = urlsplit(url)
    return [split.scheme, split.netloc, *(part for part in split.path.split("/") if part)]


def _is_taken(path: Path) -> bool:
    """Return whether something else than a file is there; a name that no file can have is not."""
    try:
        return path.exists() and not path.is_file()
    except ValueError:  # a NUL in the name
        return False


def write_whole(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write a file of a mode (less the umask), in place of what was there; raises InputError where that cannot be."""
    write_chunks(path, (data,), mode)


def write_chunks(path: Path, chunks: Iterable[bytes], mode: int = 0o666) -> None:
    """Write a file as `write_whole` does, of chunks; what their iterator raises leaves no file either."""
    if _is_taken(path):
        raise InputError(f"{str(path)!r} cannot be written: it is not a regular file")
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")  # containers of one volume share process ids
    try:
        try:
            part.touch(mode)
            with part.open("wb") as file:
                for chunk in chunks:
                    file.write(chunk)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise InputError(f"{str(path)!r} cannot be written: {getattr(error, 'strerror', None) or error}") from error


def sync_folder(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@contextmanager
def locked(path: Path, kind: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Hold a lock on a file, which is made where there is none, while no other process holds it; raises OSError.

    `kind` is fcntl's: LOCK_SH is shared by those who ask for that.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OWN)
    try:
        fcntl.flock(descriptor, kind)
        yield
    finally:
        os.close(descriptor)
