"""Commands and options that have another name now: an old name is refused with the new one."""

from __future__ import annotations

from typing import Final

COMMANDS: Final = {
    "up": "serve",
    "register": "app register",
    "variants": "app list",
    "promote": "app promote",
    "canary": "app canary",
    "rollback": "app rollback",
    "retire": "app retire",
    "registry": "app",
    "package": "deploy package",
    "warm": "deploy warm",
    "sweep": "deploy sweep",
    "profile": "study profile",
    "tune": "study tune",
    "simulate": "study simulate",
    "train-forecaster": "study train-forecaster",
}
"""Commands of the top level, and where each is now."""
OPTIONS: Final = {"--driver": "--engine"}
"""Options of any command, and what each is called now."""
