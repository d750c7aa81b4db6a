"""`serfer app list`: what an application has to choose from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from serfer.cli.registry.options import RegistryOption, opened
from serfer.cli.shared.display import plain, print_table
from serfer.cli.shared.options import JsonOption, print_json
from serfer.cli.shared.terminal import out

if TYPE_CHECKING:
    from serfer.core.variants import Application, Figure, NetworkVersion, Variant

_MILLION = 1e6
_PREDICTED = "~"
_FIGURES = ("p95 ms", "load ms", "MB", "images/s", "$ a million")


def variants(
    application: Annotated[str | None, typer.Argument(metavar="APP", help="The application; by default all.")] = None,
    registry: RegistryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the variants of applications, with accuracy, latency, loading, dollars, and whether they answer queries."""
    source = opened(registry)
    for name in [application] if application else source.applications():
        record = source.known(name)
        if as_json:
            print_json(application_object(record))
        else:
            _print(record)


def state_of(application: Application, version: NetworkVersion) -> str:
    """Return what a network version does: "live", "canary", "shadow", "retired", or "other"."""
    if version.retired:
        return "retired"
    live, canary = application.live_release, application.canary
    if live and live.networks.get(version.network) == version.version:
        return "live"
    if canary and canary.networks.get(version.network) == version.version:
        return "shadow" if canary.shadow else "canary"
    return "other"


def application_object(application: Application) -> dict[str, Any]:
    """Return what --json says of an application."""
    from serfer.core.dataclass_codec import unstructure  # noqa: PLC0415 - the command line starts fast

    live = application.live_release
    return {
        "application": application.name,
        "classes": application.classes,
        "live": unstructure(live),
        "canary": unstructure(application.canary),
        "networks": [
            {
                "network": each.network,
                "version": each.version,
                "state": state_of(application, each),
                "created": each.created,
                "by": each.by,
                "remarks": [*each.remarks],
                "variants": [_variant_object(variant) for variant in each.variants],
            }
            for each in application.networks
        ],
    }


def _variant_object(variant: Variant) -> dict[str, Any]:
    from serfer.core.dataclass_codec import unstructure  # noqa: PLC0415 - the command line starts fast

    fields: dict[str, Any] = unstructure(variant)
    if variant.accuracy:
        low, high = variant.accuracy.interval
        fields["accuracy"] |= {"share": variant.accuracy.share, "low": low, "high": high}
    return fields


def _print(application: Application) -> None:
    live, canary = application.live_release, application.canary
    parts = [f"{application.name}: {application.classes} classes"]
    parts += [f"release {live.number} is live ({networks_in_words(live.networks)})" if live else "no release is live"]
    if canary:
        what = "answers in the shadow of" if canary.shadow else "answers"
        parts.append(f"{networks_in_words(canary.networks)} {what} {canary.share:.3g} of the queries")
    out.print(plain("; ".join(parts)), soft_wrap=True)
    print_variants((version, state_of(application, version)) for version in application.networks)


def print_variants(versions: Iterable[tuple[NetworkVersion, str]]) -> None:
    """Print the variants of network versions, each version with its state."""
    retired, rows = [], []
    for version, state in versions:
        if version.retired:
            retired.append([f"{version.network}@{version.version}", state])
        rows += [[variant.name, state, *_cells(variant)] for variant in version.variants]
    print_table(["variant", "state", "place", "accuracy", "95% interval", *_FIGURES], [*retired, *rows])
    if any(cell.startswith(_PREDICTED) for row in rows for cell in row):
        out.print(f"{_PREDICTED} predicted; all other figures were measured")


def _cells(variant: Variant) -> list[str]:
    share, interval = "unknown", ""
    if variant.accuracy:
        low, high = variant.accuracy.interval
        share, interval = f"{variant.accuracy.share:.4f}", f"{low:.4f} to {high:.4f}"
    place = f"{variant.place} {variant.kind} x{variant.batch}" if variant.kind else f"{variant.place}"
    figures = (variant.latency_ms, variant.load_ms, variant.peak_mb, variant.qps)
    return [place, share, interval, *map(_figure, figures), _figure(variant.usd, _MILLION)]


def _figure(figure: Figure, scale: float = 1.0) -> str:
    sign = _PREDICTED if figure.source == "predicted" else ""
    value = figure.value * scale
    return f"{sign}{value:,.1f}" if value >= 1 or value == 0 else f"{sign}{value:.3g}"


def networks_in_words(networks: dict[str, int]) -> str:
    return ", ".join(f"{network}@{number}" for network, number in networks.items())
