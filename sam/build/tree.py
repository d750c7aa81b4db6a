"""Directories that `sam build` takes: the same inputs give the same bytes, and what is missing is noticed.

Each has a Makefile with the targets that SAM calls, in the directory or in a copy of it, and SHA256SUMS of all else.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from serfer.packaging.bundle import link

_MAKEFILE, _SUMS = "Makefile", "SHA256SUMS"
_OWN = frozenset({_MAKEFILE, _SUMS})
_EPOCH = 315_619_200  # 2 January 1980: a zip file knows no earlier year, in whatever time zone it is made
_RULE = """\
build-{name}:
\tsha256sum --check --quiet SHA256SUMS
\tcp -Rp {parts} "$(ARTIFACTS_DIR)"
"""


@dataclass(frozen=True)
class Built:
    """A directory that was written: SHA-256 of the whole tree, and the bytes of what of it reaches AWS, unzipped.

    `compiled_by` is the version of the Python that compiled its modules, None where they were not compiled.
    """

    digest: str
    bytes: int
    compiled_by: str | None = None


def seal(directory: Path, name: str) -> Built:
    """Give a directory its Makefile for this logical id and its sums, and all of it fixed modes and times."""
    parts = sorted(path.name for path in directory.iterdir() if path.name not in _OWN)
    (directory / _MAKEFILE).write_text(_RULE.format(name=name, parts=" ".join(parts)), encoding="utf-8")
    sums = "".join(f"{_sha256(directory / file)}  {file}\n" for file in _payload(directory))
    (directory / _SUMS).write_text(sums, encoding="utf-8")
    settle(directory)
    return built(directory)


def built(directory: Path, compiled_by: str | None = None) -> Built:
    size = sum((directory / name).stat().st_size for name in _payload(directory))
    return Built(tree_digest(directory), size, compiled_by)


def link_tree(source: Path, target: Path) -> None:
    """Give the files of a sealed directory second names below `target`, copies on another file system."""
    target.mkdir(parents=True)
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        if path.is_dir():
            place.mkdir()
        else:
            link(str(path), str(place))
    settle(target)


def settle(directory: Path) -> None:
    """Set the modes and times of a directory and all in it to constants, so that equal contents are equal bytes."""
    for path in (*directory.rglob("*"), directory):
        path.chmod(0o755 if path.is_dir() else 0o644)
        os.utime(path, (_EPOCH, _EPOCH))


def tree_digest(directory: Path) -> str:
    """Return the SHA-256, 64 hex digits, of all files below a directory: their paths, contents and executable bits."""
    digest = hashlib.sha256()
    for name in _files(directory):
        executable = int(bool((directory / name).stat().st_mode & stat.S_IXUSR))
        digest.update(f"{name}\0{executable}\0{_sha256(directory / name)}\n".encode())
    return digest.hexdigest()


def _files(directory: Path) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())


def _payload(directory: Path) -> list[str]:
    return [name for name in _files(directory) if name not in _OWN]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
