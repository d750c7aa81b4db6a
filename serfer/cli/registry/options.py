"""Shared by the commands of the registry: their options, and what they mean."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

import typer

from serfer.cli.shared.option_groups import JsonOptions, NetworkFileOptions, RegistryOptions
from serfer.core.errors import UsageError
from serfer.core.options import REQUIRED, argument, option
from serfer.settings import load_settings
from serfer.variants.register_options import RegisterOptions

if TYPE_CHECKING:
    from serfer.registry import Registry

RegistryOption = Annotated[
    str | None,
    typer.Option(
        "--registry", metavar="URL", help="The registry: a directory, or s3://BUCKET/PREFIX. [SERFER_REGISTRY]"
    ),
]
ByOption = Annotated[
    str | None, typer.Option("--by", metavar="NAME", help="Who does it, for the record; by default the user's name.")
]
WhyOption = Annotated[str, typer.Option("--why", metavar="TEXT", help="Why, for the record.")]
ApplicationArgument = Annotated[str, typer.Argument(metavar="APP", help="The application.")]
VersionsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="NETWORK@VERSION", help="Network versions, such as resnet18@2."),
]
VersionArgument = Annotated[
    str, typer.Argument(metavar="NETWORK@VERSION", help="A network version, such as resnet18@2.")
]
_VERSION: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,63})@([1-9][0-9]{0,8})", re.ASCII)
_MAX_TEXT: Final = 300


@dataclass(frozen=True, kw_only=True)
class RegisterCommand(RegisterOptions, RegistryOptions, NetworkFileOptions, JsonOptions):
    """Make variants of a network, measure them, and register them under an application.

    Interrupted or killed, it goes on where it was when it is run again; run twice at once, one does the work and both
    end with the same result. Nothing of it answers queries before all is done.
    """

    command: ClassVar[str] = "app register"
    line: ClassVar[str] = (
        "app validation name registry by most instance usd_per_hour size preprocess labels output random as_json"
    )

    network: str = argument(
        REQUIRED,
        "As serfer split takes it (zoo name, timm:NAME, torchvision:NAME, .onnx, module.py:factory), or a plan "
        "directory.",
        metavar="NETWORK",
    )
    app: str = option(REQUIRED, "The application whose queries it shall answer.", metavar="NAME")
    validation: Path | None = option(
        None,
        "Labelled images: a folder for each class, or a labels.csv (file,label) next to the images. Without them, as "
        "for a detector, accuracy is not known, and variants are those that answer as the network does.",
    )
    name: str | None = option(None, "The network's name in the application; by default its file's.")
    by: str | None = option(None, "Who does it, for the record; by default the user's name.", metavar="NAME")


def opened(url: str | None) -> Registry:
    """Open the registry of --registry or of the settings; raises UsageError where neither names one."""
    from serfer.registry import open_registry  # noqa: PLC0415 - the command line starts fast

    chosen = url or load_settings().registry
    if chosen is None:
        raise UsageError("which registry? Give --registry, or set SERFER_REGISTRY")
    return open_registry(chosen, create=False)


def network_version(text: str) -> tuple[str, int]:
    """Return the network and the number of NETWORK@VERSION; raises UsageError."""
    match = _VERSION.fullmatch(text)
    if not match:
        raise UsageError(f"{text!r:.100} is not a network version: give NETWORK@VERSION, such as resnet18@2")
    return match[1], int(match[2])


def network_versions(texts: Sequence[str]) -> dict[str, int]:
    """Return the versions by network; raises UsageError for two of one network."""
    pairs = [network_version(text) for text in texts]
    if len(dict(pairs)) < len(pairs):
        raise UsageError("two versions of one network: a release has one of each")
    return dict(pairs)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def who(by: str | None) -> str:
    """Return who does something: the name that was given, or the user's."""
    if by is not None:
        return short("--by", by)
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"user {os.getuid()}"


def short(option: str, text: str) -> str:
    """Return a text for a record; raises UsageError for what is too long or not one line."""
    if len(text) > _MAX_TEXT or not text.isprintable():
        raise UsageError(f"{option} should be one line of at most {_MAX_TEXT} characters")
    return text
