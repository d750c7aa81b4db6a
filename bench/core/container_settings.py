"""Settings of functions that are container images, for networks that no package of Lambda holds."""

from __future__ import annotations

from dataclasses import replace

from serfer.core.costs.aws import AwsFacts
from serfer.settings import Settings

IMAGE_MB = 10 << 10
"""The largest container image that Lambda takes."""


class ContainerSettings(Settings):
    """Settings whose functions may be as large as a container image."""

    def facts(self) -> AwsFacts:
        facts = super().facts()
        return replace(facts, functions=replace(facts.functions, package_limit=IMAGE_MB << 20))
