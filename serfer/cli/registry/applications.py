"""`serfer app list`, `promote`, `rollback` and the other commands that look after registered applications."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from serfer.cli.registry.options import short, who
from serfer.cli.shared.display import byte_size, plain, print_table
from serfer.cli.shared.options import JsonOption, print_json
from serfer.cli.shared.terminal import out
from serfer.core.dataclass_codec import structure, unstructure
from serfer.core.errors import UsageError
from serfer.core.variants import Application, Canary, Figure, NetworkVersion, Variant
from serfer.registry import Registry, collect_garbage, open_registry
from serfer.settings import load_settings

_RegistryOption = Annotated[
    str | None, typer.Option("--registry", metavar="URL", help="A directory, or s3://BUCKET/PREFIX. [SERFER_REGISTRY]")
]
_ByOption = Annotated[
    str | None, typer.Option("--by", metavar="NAME", help="Who does it, for the record; by default the user's name.")
]
_WhyOption = Annotated[str, typer.Option("--why", metavar="TEXT", help="Why, for the record.")]
_ApplicationArgument = Annotated[str, typer.Argument(metavar="APP", help="The application.")]
_VersionArgument = Annotated[str, typer.Argument(metavar="NETWORK@VERSION", help="A version, such as resnet18@2.")]
_VersionsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="NETWORK@VERSION", help="Network versions, such as resnet18@2.")
]
_VERSION: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,63})@([1-9][0-9]{0,8})", re.ASCII)
_HOUR_S = 3600.0
_MILLION = 1e6
_PREDICTED = "~"
_FIGURES = ("p95 ms", "load ms", "MB", "images/s", "$ a million")


def variants(
    application: Annotated[str | None, typer.Argument(metavar="APP", help="The application; by default all.")] = None,
    registry: _RegistryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the variants of applications, with accuracy, latency, loading, dollars, and whether they answer queries."""
    source = _open(registry)
    for name in [application] if application else source.applications():
        record = source.known(name)
        if as_json:
            print_json(_application_object(record))
        else:
            _print_line(record, f"{record.classes} classes")
            print_variants((version, _state_of(record, version)) for version in record.networks)


def promote(
    application: _ApplicationArgument,
    versions: _VersionsArgument = None,
    registry: _RegistryOption = None,
    only: Annotated[
        bool, typer.Option("--only", help="The release has these versions alone; other networks answer no more.")
    ] = False,
    by: _ByOption = None,
    why: _WhyOption = "promoted by hand",
) -> None:
    """Make a release: the live one with these versions in place of their networks', or what the canary has.

    A canary ends.
    """
    chosen, by, why = _network_versions(versions), who(by), short("--why", why)

    def step(record: Application) -> Application:
        return record.promoted(record.networks_with(chosen, only=only), _now(), by, why)

    _change(registry, application, step)


def canary(
    application: _ApplicationArgument,
    versions: _VersionsArgument,
    registry: _RegistryOption = None,
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
    by: _ByOption = None,
) -> None:
    """Let the live release with these versions in it answer a share of queries; it is taken back if it is worse."""
    chosen = _network_versions(versions)
    limits = {
        "window_s": window_s,
        "queries": queries,
        "max_error_rate": max_error_rate,
        "max_latency_ratio": max_latency_ratio,
    }
    fields = {"share": share, "since": _now(), "by": who(by), "limits": limits, "shadow": shadow}

    def step(record: Application) -> Application:
        networks = record.networks_with(chosen)
        return record.with_canary(structure(Canary, {**fields, "networks": networks}, "canary", error=UsageError))

    _change(registry, application, step)


def rollback(
    application: _ApplicationArgument,
    registry: _RegistryOption = None,
    by: _ByOption = None,
    why: _WhyOption = "rolled back by hand",
) -> None:
    """Take the canary back or, where there is none, return to the versions of the release before."""
    by, why = who(by), short("--why", why)
    _change(registry, application, lambda record: record.rolled_back(_now(), by, why))


def retire(
    application: _ApplicationArgument,
    version: _VersionArgument,
    registry: _RegistryOption = None,
    forget: Annotated[
        bool, typer.Option("--forget", help="Take a retired version out of the record, which makes room.")
    ] = False,
) -> None:
    """End a network version that answers no queries: its files go with the garbage, once nothing else needs them."""
    [(network, number)] = _network_versions([version]).items()
    step = Application.forgotten if forget else Application.retired
    _change(registry, application, lambda record: step(record, network, number))


def fetch(
    application: _ApplicationArgument,
    variant: Annotated[str, typer.Argument(metavar="VARIANT", help="A variant's name, from serfer app list APP.")],
    directory: Annotated[Path, typer.Option("--out", help="The directory to write, which must not be there.")],
    registry: _RegistryOption = None,
) -> None:
    """Write a variant's plan directory, to be packaged, explained or verified."""
    source = _open(registry)
    known = {found.name: found for version in source.known(application).networks for found in version.variants}
    if variant not in known:
        raise UsageError(f"no variant {variant!r:.100} of {application}: it has {', '.join(known) or 'none'}")
    source.copy_directory(known[variant].artefact, directory)
    out.print(f"{plain(variant)} is in {plain(str(directory))}", soft_wrap=True)


def gc(
    registry: _RegistryOption = None,
    older_than_h: Annotated[
        float, typer.Option(min=1.0, help="Hours for which what was put lately stays: a registration may be at it.")
    ] = 24.0,
    as_json: JsonOption = False,
) -> None:
    """Delete the files that no application and no registration refers to, and registrations that have ended."""
    collected = collect_garbage(_open(registry), older_than_h * _HOUR_S)
    if as_json:
        print_json(unstructure(collected))
        return
    out.print(
        f"deleted {collected.artefacts:,} files of {byte_size(collected.bytes)} and {collected.registrations:,} "
        f"registrations; {collected.kept_artefacts:,} files of {byte_size(collected.kept_bytes)} are kept",
        soft_wrap=True,
    )


def history(application: _ApplicationArgument, registry: _RegistryOption = None, as_json: JsonOption = False) -> None:
    """Print the versions of an application's record that are kept, the newest first."""
    rows: list[tuple[str, ...]] = []
    source = _open(registry)
    versions = list(source.history(application))
    if not versions:
        source.known(application)  # raises, and says which there are
    for kept in versions:
        live = kept.application.live_release if kept.application else None
        when = datetime.fromtimestamp(kept.written, UTC).isoformat(timespec="seconds")
        if as_json:
            print_json({"version": kept.version, "written": when, "application": unstructure(kept.application)})
        elif live:
            tried = kept.application.canary if kept.application else None
            canary = _name_versions(tried.networks) if tried else ""
            rows.append((when, kept.version, str(live.number), canary, live.why, live.by))
        else:
            rows.append((when, kept.version, "none" if kept.application else "cannot be read"))
    if not as_json:
        print_table(["written", "version", "release", "canary", "why", "by"], rows)


def delete(
    application: _ApplicationArgument,
    registry: _RegistryOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete an application: drivers answer its queries no more. `serfer app restore` brings it back."""
    source = _open(registry)
    versions = len(source.known(application).networks)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(f"deleting {application} ends all answers of its {versions} network versions: give --yes")
        typer.confirm(f"Delete {application} and its {versions} network versions from {source}?", abort=True)
    source.delete(application)
    out.print(plain(f"{application} is deleted; serfer app history {application} lists what can be restored"))


def restore(
    application: _ApplicationArgument,
    version: Annotated[str, typer.Argument(metavar="VERSION", help="One of serfer app history.")],
    registry: _RegistryOption = None,
) -> None:
    """Put an earlier version of an application's record in place of the last one, a damaged or deleted one too."""
    _print_line(_open(registry).restore(application, version))


def _open(url: str | None) -> Registry:
    chosen = url or load_settings().registry
    if chosen is None:
        raise UsageError("which registry? Give --registry, or set SERFER_REGISTRY")
    return open_registry(chosen, create=False)


def _network_versions(texts: Sequence[str] | None) -> dict[str, int]:
    versions: dict[str, int] = {}
    for text in texts or ():
        match = _VERSION.fullmatch(text)
        if not match:
            raise UsageError(f"{text!r:.100} is not a network version: give NETWORK@VERSION, such as resnet18@2")
        if match[1] in versions:
            raise UsageError("two versions of one network: a release has one of each")
        versions[match[1]] = int(match[2])
    return versions


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _change(url: str | None, name: str, step: Callable[[Application], Application]) -> None:
    _print_line(_open(url).update(name, lambda found: step(found) if found else None))


def _print_line(application: Application, *parts: str) -> None:
    live, tried = application.live_release, application.canary
    said = [*parts, f"release {live.number}: {_name_versions(live.networks)}" if live else "no release is live"]
    if tried:
        said.append(f"canary at {tried.share:.3g}{' in the shadow' * tried.shadow}: {_name_versions(tried.networks)}")
    out.print(plain(f"{application.name}: {'; '.join(said)}"), soft_wrap=True)


def _name_versions(networks: dict[str, int]) -> str:
    return ", ".join(f"{network}@{number}" for network, number in networks.items())


def _state_of(application: Application, version: NetworkVersion) -> str:
    if version.retired:
        return "retired"
    live, canary = application.live_release, application.canary
    if live and live.networks.get(version.network) == version.version:
        return "live"
    if canary and canary.networks.get(version.network) == version.version:
        return "shadow" if canary.shadow else "canary"
    return "other"


def _application_object(application: Application) -> dict[str, Any]:
    return {
        "application": application.name,
        "classes": application.classes,
        "live": unstructure(application.live_release),
        "canary": unstructure(application.canary),
        "networks": [
            {
                "network": version.network,
                "version": version.version,
                "state": _state_of(application, version),
                "created": version.created,
                "by": version.by,
                "remarks": [*version.remarks],
                "variants": [_variant_object(variant) for variant in version.variants],
            }
            for version in application.networks
        ],
    }


def _variant_object(variant: Variant) -> dict[str, Any]:
    fields: dict[str, Any] = unstructure(variant)
    if variant.accuracy:
        low, high = variant.accuracy.interval
        fields["accuracy"] |= {"share": variant.accuracy.share, "low": low, "high": high}
    return fields


def print_variants(versions: Iterable[tuple[NetworkVersion, str]]) -> None:
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
