"""What holds of every application's record: the steps keep it, and what was read is checked against it."""

from __future__ import annotations

from collections.abc import Mapping

from serfer.core.errors import InputError
from serfer.core.variants.application import MAX_NETWORKS, MAX_RELEASES, MAX_VARIANTS, NAME, Application
from serfer.core.variants.variant import PRECISIONS, Variant


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
                raise InputError(f"two variants are named {variant.name!r:.100}")
            names.add(variant.name)
            check_variant(variant)
            if (variant.network, variant.version) != (network.network, network.version):
                raise InputError(
                    f"variant {variant.name} is of {variant.network}@{variant.version}, but stands elsewhere"
                )


def check_variant(variant: Variant) -> None:
    """Raise InputError for a variant that cannot be."""
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
        _check_usable(application, networks)


def _check_usable(application: Application, networks: Mapping[str, int]) -> None:
    usable = {(entry.network, entry.version) for entry in application.networks if not entry.retired}
    if missing := [
        f"{network:.64}@{number}" for network, number in networks.items() if (network, number) not in usable
    ]:
        raise InputError(f"{missing[0]} should answer queries, but is not there or retired")
    if not networks:
        raise InputError("no network should answer queries")
