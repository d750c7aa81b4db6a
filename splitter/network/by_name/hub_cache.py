"""The files that the hubs of PyTorch and Hugging Face keep on this machine, found without a network."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from serfer.core.errors import UnavailableError
from serfer.plug_ins import in_one_line

_MAIN: Final = "main"
_MOST_COMMIT: Final = 256  # characters of a file that names a commit
_BY_HAND: Final = "without a network, fetch the file elsewhere, and give it as --weights-file"


def torch_file(url: str) -> Path:
    """Return where torch.hub keeps what it fetched from a URL."""
    import torch  # noqa: PLC0415 - slow to import

    return Path(torch.hub.get_dir(), "checkpoints", Path(urlsplit(url).path).name)


def fetch_torch_file(url: str) -> Path:
    """Fetch a URL into torch.hub's cache, compared with the digest in its name; raises UnavailableError."""
    import torch  # noqa: PLC0415 - slow to import

    place = torch_file(url)
    if not place.is_file():
        known = torch.hub.HASH_REGEX.search(place.name)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(url, str(place), known[1] if known else None, progress=False)
        except Exception as error:  # urllib's, http's and torch's have no common base
            raise UnavailableError(f"{url} cannot be fetched: {in_one_line(error)}; {_BY_HAND}") from error
    return place


def hugging_face_files(repository: str, names: Iterable[str]) -> list[Path]:
    """Return those of a repository's files (`owner/name`, or `owner/name@revision`) that are in its hub's cache."""
    repository, _, revision = repository.partition("@")
    place = hugging_face_directory() / f"models--{repository.replace('/', '--')}"
    try:
        named = place / "refs" / (revision or _MAIN)
        commit = named.read_text(encoding="utf-8")[:_MOST_COMMIT].strip() if named.is_file() else revision
    except (OSError, ValueError):
        return []
    return [file for name in names if commit and (file := place / "snapshots" / commit / name).is_file()]


def hugging_face_directory() -> Path:
    """Return the directory of Hugging Face's cache: HF_HUB_CACHE, HF_HOME or XDG_CACHE_HOME say where it is."""
    given = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if given:
        return Path(given).expanduser()
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return Path(os.environ.get("HF_HOME") or caches / "huggingface").expanduser() / "hub"


def fetch_hugging_face_file(repository: str, names: Iterable[str]) -> Path:
    """Fetch the first of a repository's files that it has into its hub's cache; raises UnavailableError.

    Raises ModuleNotFoundError where huggingface_hub is not installed.
    """
    import huggingface_hub  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415 - seldom installed

    hub: Any = huggingface_hub
    repository, _, revision = repository.partition("@")
    why: Exception | None = None
    for name in names:
        try:
            return Path(hub.hf_hub_download(repo_id=repository, filename=name, revision=revision or None))
        except Exception as error:  # noqa: BLE001 - the hub's, and those of whatever carries its requests
            why = why or error
    reason = in_one_line(why) if why else "no file"
    raise UnavailableError(f"weights of {repository} cannot be fetched: {reason}; {_BY_HAND}")
