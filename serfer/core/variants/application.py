"""The record of an application: its networks by version, its releases, and the steps from one record to the next.

Every step is a pure function of a record and what is asked; the registry writes its result by compare-and-set.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Final

from serfer.core.dataclass_codec import Bounds
from serfer.core.errors import InputError, UsageError
from serfer.core.variants.variant import PRECISIONS, Variant

FORMAT: Final = 2
MAX_NETWORKS: Final = 200
"""Network versions of an application, retired ones included."""
MAX_VARIANTS: Final = 200
"""Variants of a network version."""
MAX_RELEASES: Final = 50
"""Releases that an application remembers; the oldest are forgotten."""
MAX_WHY: Final = 500
"""Characters of a reason."""
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
"""Names of applications, networks and variants."""


@dataclass(frozen=True, slots=True)
class Validation:
    """The validation set that accuracies were measured on: a digest of its images and labels, and their number."""

    digest: str
    images: Annotated[int, Bounds(1)]
    classes: Annotated[int, Bounds(1)]


@dataclass(frozen=True, slots=True)
class NetworkVersion:
    """A network as it was registered, and its variants; `source` is the digest of the ONNX graph and its weights.

    Times are ISO 8601, UTC. `retired` versions answer no queries, and their artefacts go when no other refers to them.
    `registration` is the id of the registration that made it, by which one that is finished twice adds one version.
    """

    network: str
    version: Annotated[int, Bounds(1)]
    source: str
    created: str
    by: str
    validation: Validation | None
    variants: tuple[Variant, ...]
    remarks: tuple[str, ...] = ()
    retired: bool = False
    registration: str = ""


@dataclass(frozen=True, slots=True)
class Release:
    """The version of each network that answers queries together."""

    number: Annotated[int, Bounds(1)]
    networks: dict[str, int]
    created: str
    by: str
    why: str


@dataclass(frozen=True, slots=True)
class CanaryLimits:
    """When a canary is taken back: after `queries` of its own at least, within `window_s`.

    `max_error_rate` is a share of failed queries above the live release's, `max_latency_ratio` its 95th percentile over
    the live release's.
    """

    window_s: Annotated[float, Bounds(1.0, 604_800.0)] = 600.0
    queries: Annotated[int, Bounds(1, 1_000_000)] = 50
    max_error_rate: Annotated[float, Bounds(0.0, 1.0)] = 0.02
    max_latency_ratio: Annotated[float, Bounds(1.0, 100.0)] = 1.5


@dataclass(frozen=True, slots=True)
class Canary:
    """Network versions that answer `share` of the queries in place of the live release, and are taken back if worse.

    A `shadow` answers copies of that share instead: its answers are compared with the live ones and go nowhere else.
    """

    networks: dict[str, int]
    share: Annotated[float, Bounds(0.0, 1.0, above=True)]
    since: str
    by: str
    limits: CanaryLimits = field(default_factory=CanaryLimits)
    shadow: bool = False


@dataclass(frozen=True, slots=True)
class TakenBack:
    """A canary that was worse than the live release, and why it was taken back."""

    networks: dict[str, int]
    since: str
    why: str


@dataclass(frozen=True, slots=True)
class Application:
    """An application: network versions, releases, the live one, a canary, and the last one that was taken back.

    `classes` is the number of classes of all of its networks, 1 where they know none, `labels` a digest of their names
    and of outputs that are not classes, which all share.
    """

    name: str
    classes: Annotated[int, Bounds(1)]
    labels: str
    networks: tuple[NetworkVersion, ...] = ()
    releases: tuple[Release, ...] = ()
    live: Annotated[int, Bounds(0)] = 0
    canary: Canary | None = None
    taken_back: TakenBack | None = None
    format: int = FORMAT

    def versions(self, network: str) -> list[NetworkVersion]:
        return [entry for entry in self.networks if entry.network == network]

    def version(self, network: str, number: int) -> NetworkVersion:
        """Return a version of a network; raises UsageError that names those that there are."""
        for entry in self.networks:
            if (entry.network, entry.version) == (network, number):
                return entry
        known = ", ".join(f"{entry.network}@{entry.version}" for entry in self.networks) or "nothing"
        raise UsageError(f"application {self.name} has no {network:.64}@{number}: it has {known}")

    def release(self, number: int) -> Release:
        for release in self.releases:
            if release.number == number:
                return release
        raise UsageError(f"application {self.name} has no release {number}")

    @property
    def live_release(self) -> Release | None:
        """The release that answers queries; None where nothing was promoted yet."""
        return self.release(self.live) if self.live else None

    def variants(self, networks: Mapping[str, int]) -> Iterator[Variant]:
        for network, number in networks.items():
            yield from self.version(network, number).variants

    def networks_with(self, chosen: Mapping[str, int], *, only: bool = False) -> dict[str, int]:
        """Return the live release's versions with the chosen ones in place of their networks', or these alone.

        Without a choice, those of the canary; raises UsageError where there is none.
        """
        if not chosen and self.canary is None:
            raise UsageError(f"which version? Application {self.name} has no canary: name NETWORK@VERSION")
        if not chosen and self.canary:
            return dict(self.canary.networks)
        live = self.live_release
        return {**(live.networks if live and not only else {}), **chosen}

    def with_version(self, added: NetworkVersion) -> Application:
        """Return the record with a network version, whose number has to be the next one of its network.

        The first version of a network joins the live release, and the canary if there is one; a later version waits to
        be promoted. Raises InputError for more than the record may hold, or for variants whose names are taken.
        """
        number = 1 + max((version.version for version in self.versions(added.network)), default=0)
        if added.version != number:
            raise UsageError(f"the next version of {added.network} is {number}, not {added.version}")
        if len(self.networks) >= MAX_NETWORKS:
            raise InputError(
                f"application {self.name} has {MAX_NETWORKS} network versions: retire some, and forget those (serfer "
                "app retire --forget)"
            )
        if not 0 < len(added.variants) <= MAX_VARIANTS:
            raise InputError(f"a network version has 1 to {MAX_VARIANTS} variants, not {len(added.variants)}")
        grown = replace(self, networks=(*self.networks, added))
        _check_variants(grown)
        if number > 1:
            return grown
        live = self.live_release
        first = {added.network: 1}
        why = f"{added.network} was registered"
        released = grown.promoted({**(live.networks if live else {}), **first}, added.created, added.by, why)
        canary = replace(self.canary, networks={**self.canary.networks, **first}) if self.canary else None
        return replace(released, canary=canary)

    def promoted(self, networks: Mapping[str, int], created: str, by: str, why: str) -> Application:
        """Return the record with a new live release of these versions; a canary ends.

        Raises UsageError for versions that cannot answer.
        """
        self.check_usable(networks)
        number = 1 + max((earlier.number for earlier in self.releases), default=0)
        release = Release(number, dict(networks), created, by, why)
        releases = (*self.releases, release)[-MAX_RELEASES:]
        return replace(self, releases=releases, live=number, canary=None)

    def with_canary(self, canary: Canary) -> Application:
        """Return the record with a canary; raises UsageError for one that cannot be, or beside another one."""
        if not self.live:
            raise UsageError(f"application {self.name} has no live release yet: promote one first")
        if self.canary is not None:
            raise UsageError(f"application {self.name} has a canary already: promote it or roll it back first")
        self.check_usable(canary.networks)
        if self.live_release and canary.networks == self.live_release.networks:
            raise UsageError("the canary is what the live release has: choose another version")
        return replace(self, canary=canary)

    def with_canary_taken_back(self, why: str) -> Application:
        """Return the record without its canary, which was worse than the live release, and with the reason."""
        canary = self.canary
        taken_back = TakenBack(canary.networks, canary.since, why[:MAX_WHY]) if canary else self.taken_back
        return replace(self, canary=None, taken_back=taken_back)

    def rolled_back(self, created: str, by: str, why: str) -> Application:
        """Return the record without its canary, or else with the versions of the release before as a new release.

        Raises UsageError where there is no release to go back to. Rolling back twice leads to where it began.
        """
        if self.canary is not None:
            return replace(self, canary=None)
        live = self.live_release
        usable = [
            release
            for release in self.releases
            if live and release.networks != live.networks and self._answers(release)
        ]
        if not usable:
            raise UsageError(f"application {self.name} has no earlier release to go back to")
        return self.promoted(usable[-1].networks, created, by, why)

    def retired(self, network: str, number: int) -> Application:
        """Return the record in which a version answers no more; raises UsageError where the live release has it."""
        version = self.version(network, number)
        live, canary = self.live_release, self.canary
        used = [release.networks for release in (live, canary) if release]
        if any(networks.get(network) == number for networks in used):
            raise UsageError(f"{network}@{number} answers queries: promote another version first")
        left = tuple(
            replace(entry, retired=True, variants=()) if entry is version else entry for entry in self.networks
        )
        return replace(self, networks=left)

    def forgotten(self, network: str, number: int) -> Application:
        """Return the record without a retired version and without the releases that had it, which makes room.

        The newest version of a network stays, so that no number is given twice. Raises UsageError for a version that is
        not retired, or the newest.
        """
        if not self.version(network, number).retired:
            raise UsageError(f"{network}@{number} is not retired: retire it first")
        if number == max(version.version for version in self.versions(network)):
            raise UsageError(f"{network}@{number} is the newest version of {network}, whose number is not given again")
        networks = tuple(entry for entry in self.networks if (entry.network, entry.version) != (network, number))
        releases = tuple(release for release in self.releases if release.networks.get(network) != number)
        return replace(self, networks=networks, releases=releases)

    @property
    def artefacts(self) -> frozenset[str]:
        return frozenset(variant.artefact for network in self.networks for variant in network.variants)

    def check_usable(self, networks: Mapping[str, int]) -> None:
        if not networks:
            raise UsageError("a release needs a network")
        for network, number in networks.items():
            if self.version(network, number).retired:
                raise UsageError(f"{network}@{number} is retired: register it again")

    def _answers(self, release: Release) -> bool:
        return not any(self.version(network, number).retired for network, number in release.networks.items())


def check_application(application: Application) -> None:
    """Raise InputError for a record whose parts contradict each other, or are more than it may hold."""
    names = [application.name, *(network.network for network in application.networks)]
    if wrong := [name for name in names if not NAME.fullmatch(name)]:
        raise InputError(f"{wrong[0]!r:.100} cannot be a name")
    versions = [(network.network, network.version) for network in application.networks]
    if len(versions) > MAX_NETWORKS or len(application.releases) > MAX_RELEASES:
        raise InputError(f"there are more than {MAX_NETWORKS} network versions or {MAX_RELEASES} releases")
    if len(set(versions)) < len(versions):
        raise InputError("two network versions have one name and number")
    _check_variants(application)
    _check_releases(application)


def _check_variants(application: Application) -> None:
    names: set[str] = set()
    for network in application.networks:
        if len(network.variants) > MAX_VARIANTS or (network.retired and network.variants):
            raise InputError(f"{network.network}@{network.version} has too many variants")
        for variant in network.variants:
            if variant.name in names:
                raise InputError(f"two variants of application {application.name} are named {variant.name!r:.100}")
            names.add(variant.name)
            check_variant(variant)
            if (variant.network, variant.version) != (network.network, network.version):
                raise InputError(
                    f"variant {variant.name} is of {variant.network}@{variant.version}, not of {network.network}"
                )


def check_variant(variant: Variant) -> None:
    if not NAME.fullmatch(variant.name):
        raise InputError(f"{variant.name!r:.100} cannot be the name of a variant")
    if variant.precision not in PRECISIONS:
        raise InputError(f"variant {variant.name} has the precision {variant.precision!r:.40}")
    if wrong := [name for name in variant.measured_on if not NAME.fullmatch(name)]:
        raise InputError(f"variant {variant.name} was measured on {wrong[0]!r:.40}")
    if variant.accuracy and variant.accuracy.correct > variant.accuracy.images:
        raise InputError(f"variant {variant.name} has more correct answers than images")


def _check_releases(application: Application) -> None:
    numbers = [release.number for release in application.releases]
    if numbers != sorted(set(numbers)):
        raise InputError("the releases are out of order")
    if application.live and application.live not in numbers:
        raise InputError(f"the live release {application.live} is not there")
    if application.canary and not application.live:
        raise InputError("there is a canary without a live release")
    live = [release.networks for release in application.releases if release.number == application.live]
    for networks in [*live, *([application.canary.networks] if application.canary else [])]:
        try:
            application.check_usable(networks)
        except UsageError as error:
            raise InputError(str(error)) from error
