"""A record of the registry as queries need it: catalogues of the live release and of the canary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from serfer.control.selection import Catalogue
from serfer.core.errors import UnavailableError
from serfer.core.variants import Application, Canary, Objectives, Release, Variant


@dataclass(frozen=True)
class Side:
    """Network versions that answer together, their variants by name, and the catalogue of these."""

    networks: Mapping[str, int]
    variants: Mapping[str, Variant]
    catalogue: Catalogue

    def has(self, asked: Objectives) -> bool:
        """Whether it has the variant and the network that a query names, if it names any."""
        has_variant = asked.variant is None or asked.variant in self.variants
        return has_variant and (asked.network is None or asked.network in self.networks)


@dataclass(frozen=True)
class Table:
    """An application's live release and canary, as far as their variants can run here."""

    application: Application
    release: Release
    live: Side
    canary: Side | None

    def sides(self, *, canary_first: bool) -> list[Side]:
        """Return the live release and the canary, if there is one, in the order in which a query is to try them."""
        both = [self.live, *([self.canary] if self.canary else [])]
        return both[::-1] if canary_first else both

    @property
    def trial(self) -> Canary | None:
        """The canary's terms; None where its variants cannot run here."""
        return self.application.canary if self.canary else None

    @cached_property
    def variants(self) -> dict[str, Variant]:
        """All variants that queries may be answered by."""
        return {**self.live.variants, **(self.canary.variants if self.canary else {})}


def table_of(application: Application, runs_here: Callable[[Variant], bool]) -> Table:
    """Return the table of an application; raises UnavailableError where no variant of its live release can run here."""
    release = application.live_release
    if release is None:
        raise UnavailableError(f"application {application.name} has no live release yet: serfer app promote")
    live = _side(application, release.networks, runs_here)
    if live is None:
        raise UnavailableError(
            f"no variant of application {application.name} can run here: register plans for functions"
        )
    canary = application.canary
    return Table(application, release, live, _side(application, canary.networks, runs_here) if canary else None)


def _side(application: Application, networks: Mapping[str, int], runs_here: Callable[[Variant], bool]) -> Side | None:
    usable = {each.name: each for each in application.variants(networks) if runs_here(each)}
    return Side(networks, usable, Catalogue(usable.values())) if usable else None
