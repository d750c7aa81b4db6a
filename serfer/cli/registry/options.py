"""The options of `serfer app register`, and what the record of an application says of who changes it, and why."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from serfer.cli.shared.option_groups import JsonOptions, NetworkFileOptions, RegistryOptions
from serfer.core.errors import UsageError
from serfer.core.options import REQUIRED, argument, option
from serfer.variants.register_options import RegisterOptions

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

    network: str = argument(REQUIRED, "A network, as serfer split takes it, or a plan directory.", metavar="NETWORK")
    app: str = option(REQUIRED, "The application whose queries it shall answer.", metavar="NAME")
    validation: Path | None = option(
        None,
        "Labelled images: a folder for each class, or a labels.csv (file,label) next to the images. Without them, as "
        "for a detector, accuracy is not known, and variants are those that answer as the network does.",
    )
    name: str | None = option(None, "The network's name in the application; by default its file's.")
    by: str | None = option(None, "Who does it, for the record; by default the user's name.", metavar="NAME")


def who(by: str | None) -> str:
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
