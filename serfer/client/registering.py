"""Registrations of networks over HTTP: what is sent, what comes back, and handles of those that run."""

from __future__ import annotations

import io
import secrets
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TypeAlias

from serfer.client.conversation import Conversation
from serfer.client.messages import Upload
from serfer.client.wire import AsyncWire, Wire
from serfer.core.errors import InputError, UsageError
from serfer.core.served import ServedRegistration

Place: TypeAlias = str | PathLike[str]
_ONNX = ".onnx"


@dataclass(frozen=True)
class Described:
    """What describes a network that is registered: paths of its preprocessing and its labels, and other options."""

    name: str | None = None
    preprocess: Place | None = None
    labels: Place | None = None
    options: Mapping[str, str | float] = field(default_factory=dict)


def registration_form(network: Place, validation: Place, described: Described) -> Upload:
    """Return the form of a registration; a directory of images goes as a zip. Raises InputError for what is not there.

    A network is an ONNX file, by its suffix, or the name of one of the zoo.
    """
    texts = {key: str(value) for key, value in described.options.items()}
    if described.name is not None:
        texts["name"] = described.name
    files = [("validation", Path(validation)), ("preprocess", described.preprocess), ("labels", described.labels)]
    if str(network).endswith(_ONNX):
        files.append(("network", Path(network)))
    else:
        texts["network"] = str(network)
    boundary, parts = secrets.token_hex(16), []
    for name, text in texts.items():
        if '"' in name or not name.isprintable():
            raise UsageError(f"{name!r:.40} is not an option of a registration")
        parts.append(_part(boundary, f'name="{name}"', text.encode()))
    parts += [
        _part(boundary, f'name="{name}"; filename="{_called(Path(path))}"', _read(Path(path)))
        for name, path in files
        if path is not None
    ]
    return Upload(b"".join([*parts, f"--{boundary}--\r\n".encode()]), f"multipart/form-data; boundary={boundary}")


def _part(boundary: str, disposition: str, data: bytes) -> bytes:
    head = f"--{boundary}\r\nContent-Disposition: form-data; {disposition}\r\n\r\n"
    return head.encode(errors="replace") + data + b"\r\n"


def _called(path: Path) -> str:
    return "".join(filter(str.isprintable, path.name)).replace("\\", "\\\\").replace('"', '\\"')


def _read(path: Path) -> bytes:
    """Return a file, or a directory as a zip; its images are not compressed again."""
    try:
        if not path.is_dir():
            return path.read_bytes()
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
            for file in _files(path):
                archive.write(file, file.relative_to(path).as_posix())
        return buffer.getvalue()
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and not hidden:
            yield path


@dataclass(frozen=True)
class RegistrationJob:
    """A registration that was handed in: the service makes and measures variants, and registers them at the end."""

    application: str
    id: str
    _wire: Wire = field(repr=False)
    _conversation: Conversation = field(repr=False)

    def status(self) -> ServedRegistration:
        """Return how far it is."""
        return self._wire.run(self._conversation.registration(self.application, self.id))

    def result(self, timeout_s: float) -> ServedRegistration:
        """Wait until it is done, at most `timeout_s`.

        Raises RequestRefusedError with the reason where it failed or was stopped, and ServiceDeadlineError when the
        time is up: it goes on, and `result` may be called again.
        """
        return self._wire.run(self._conversation.registered(self.application, self.id, timeout_s))

    def cancel(self) -> None:
        """Stop it, and forget it; a network that is registered stays."""
        self._wire.run(self._conversation.cancel_registration(self.application, self.id))


@dataclass(frozen=True)
class AsyncRegistrationJob:
    """All of RegistrationJob, awaited."""

    application: str
    id: str
    _wire: AsyncWire = field(repr=False)
    _conversation: Conversation = field(repr=False)

    async def status(self) -> ServedRegistration:
        """Return how far it is."""
        return await self._wire.run(self._conversation.registration(self.application, self.id))

    async def result(self, timeout_s: float) -> ServedRegistration:
        """Wait until it is done as `RegistrationJob.result` does."""
        return await self._wire.run(self._conversation.registered(self.application, self.id, timeout_s))

    async def cancel(self) -> None:
        """Stop it, and forget it."""
        await self._wire.run(self._conversation.cancel_registration(self.application, self.id))
