"""`serfer app promote`, `canary`, `rollback` and `retire`: which network versions answer an application's queries."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from serfer.cli.registry.options import (
    ApplicationArgument,
    ByOption,
    RegistryOption,
    VersionArgument,
    VersionsArgument,
    WhyOption,
    network_version,
    network_versions,
    now,
    opened,
    short,
    who,
)
from serfer.cli.registry.variants import networks_in_words
from serfer.cli.shared.display import plain
from serfer.cli.shared.terminal import out
from serfer.core.errors import UsageError

if TYPE_CHECKING:
    from serfer.core.variants import Application


def promote(
    application: ApplicationArgument,
    versions: VersionsArgument = None,
    registry: RegistryOption = None,
    only: Annotated[
        bool, typer.Option("--only", help="The release has these versions alone; other networks answer no more.")
    ] = False,
    by: ByOption = None,
    why: WhyOption = "promoted by hand",
) -> None:
    """Make a release: the live one with these versions in place of their networks', or what the canary has.

    A canary ends.
    """
    chosen, by, why = network_versions(versions or ()), who(by), short("--why", why)

    def step(record: Application) -> Application:
        return record.promoted(record.networks_with(chosen, only=only), now(), by, why)

    _change(registry, application, step)


def canary(
    application: ApplicationArgument,
    versions: VersionsArgument,
    registry: RegistryOption = None,
    share: Annotated[float, typer.Option(help="The share of the queries, above 0 to 1.")] = 0.1,
    window_s: Annotated[float, typer.Option(help="Seconds within which it is judged, 1 to 604,800.")] = 600.0,
    queries: Annotated[int, typer.Option(help="Queries of its own before it is judged.")] = 50,
    max_error_rate: Annotated[
        float, typer.Option(help="The share of failed queries above the live release's that takes it back.")
    ] = 0.02,
    max_latency_ratio: Annotated[
        float, typer.Option(help="Its 95th percentile over the live release's that takes it back.")
    ] = 1.5,
    shadow: Annotated[
        bool, typer.Option("--shadow", help="It answers copies, which are compared with the live answers.")
    ] = False,
    by: ByOption = None,
) -> None:
    """Let the live release with these versions in it answer a share of queries; it is taken back if it is worse."""
    from serfer.core.dataclass_codec import structure  # noqa: PLC0415 - the command line starts fast
    from serfer.core.variants import Canary  # noqa: PLC0415 - same

    chosen = network_versions(versions or ())
    limits = {
        "window_s": window_s,
        "queries": queries,
        "max_error_rate": max_error_rate,
        "max_latency_ratio": max_latency_ratio,
    }
    fields = {"share": share, "since": now(), "by": who(by), "limits": limits, "shadow": shadow}

    def step(record: Application) -> Application:
        networks = record.networks_with(chosen)
        return record.with_canary(structure(Canary, {**fields, "networks": networks}, "canary", error=UsageError))

    _change(registry, application, step)


def rollback(
    application: ApplicationArgument,
    registry: RegistryOption = None,
    by: ByOption = None,
    why: WhyOption = "rolled back by hand",
) -> None:
    """Take the canary back or, where there is none, return to the versions of the release before."""
    by, why = who(by), short("--why", why)
    _change(registry, application, lambda record: record.rolled_back(now(), by, why))


def retire(
    application: ApplicationArgument,
    version: VersionArgument,
    registry: RegistryOption = None,
    forget: Annotated[
        bool, typer.Option("--forget", help="Take a retired version out of the record, which makes room.")
    ] = False,
) -> None:
    """End a network version that answers no queries: its files go with the garbage, once nothing else needs them."""
    chosen = network_version(version)
    if forget:
        _change(registry, application, lambda record: record.forgotten(*chosen))
    else:
        _change(registry, application, lambda record: record.retired(*chosen))


def _change(url: str | None, name: str, step: Callable[[Application], Application]) -> None:
    record = opened(url).update(name, lambda found: step(found) if found else None)
    live, tried = record.live_release, record.canary
    parts = [f"release {live.number}: {networks_in_words(live.networks)}" if live else "no release is live"]
    if tried:
        parts.append(
            f"canary at {tried.share:.3g}{' in the shadow' * tried.shadow}: {networks_in_words(tried.networks)}"
        )
    out.print(plain(f"{record.name}: {'; '.join(parts)}"), soft_wrap=True)
