"""`serfer app fetch`, `gc`, `history`, `delete`, `restore` and `import`: looking after a registry of applications."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from serfer.cli.registry.options import ApplicationArgument, RegistryOption, opened
from serfer.cli.registry.variants import networks_in_words
from serfer.cli.shared.display import byte_size, plain, print_table
from serfer.cli.shared.options import JsonOption, print_json
from serfer.cli.shared.terminal import out
from serfer.core.errors import UsageError

_DAY_H = 24.0
_HOUR_S = 3600.0


def fetch(
    application: ApplicationArgument,
    variant: Annotated[str, typer.Argument(metavar="VARIANT", help="A variant's name, from serfer app list APP.")],
    directory: Annotated[Path, typer.Option("--out", help="The directory to write, which must not be there.")],
    registry: RegistryOption = None,
) -> None:
    """Write a variant's plan directory, to be packaged, explained or verified."""
    found = opened(registry)
    known = {each.name: each for version in found.known(application).networks for each in version.variants}
    if variant not in known:
        raise UsageError(f"no variant {variant!r:.100} of {application}: it has {', '.join(known) or 'none'}")
    found.copy_directory(known[variant].artefact, directory)
    out.print(f"{plain(variant)} is in {plain(str(directory))}", soft_wrap=True)


def gc(
    registry: RegistryOption = None,
    older_than_h: Annotated[
        float, typer.Option(min=1.0, help="Hours for which what was put lately stays: a registration may be at it.")
    ] = _DAY_H,
    as_json: JsonOption = False,
) -> None:
    """Delete the files that no application and no registration refers to, and registrations that have ended."""
    from serfer.core.dataclass_codec import unstructure  # noqa: PLC0415 - the command line starts fast
    from serfer.registry import collect_garbage  # noqa: PLC0415 - same

    collected = collect_garbage(opened(registry), older_than_h * _HOUR_S)
    if as_json:
        print_json(unstructure(collected))
        return
    out.print(
        f"deleted {collected.artefacts:,} files of {byte_size(collected.bytes)} and {collected.registrations:,} "
        f"registrations; {collected.kept_artefacts:,} files of {byte_size(collected.kept_bytes)} are kept",
        soft_wrap=True,
    )


def history(application: ApplicationArgument, registry: RegistryOption = None, as_json: JsonOption = False) -> None:
    """Print the versions of an application's record that are kept, the newest first."""
    from serfer.core.dataclass_codec import unstructure  # noqa: PLC0415 - the command line starts fast

    rows: list[tuple[str, ...]] = []
    kept = opened(registry)
    versions = list(kept.history(application))
    if not versions:
        kept.known(application)  # raises, and says which there are
    for each in versions:
        live = each.application.live_release if each.application else None
        when = datetime.fromtimestamp(each.written, UTC).isoformat(timespec="seconds")
        if as_json:
            print_json({"version": each.version, "written": when, "application": unstructure(each.application)})
        elif live:
            tried = each.application.canary if each.application else None
            canary = networks_in_words(tried.networks) if tried else ""
            rows.append((when, each.version, f"{live.number}", canary, live.why, live.by))
        else:
            rows.append((when, each.version, "none" if each.application else "cannot be read"))
    if not as_json:
        print_table(["written", "version", "release", "canary", "why", "by"], rows)


def delete(
    application: ApplicationArgument,
    registry: RegistryOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete an application: drivers answer its queries no more. `serfer app restore` brings it back."""
    found = opened(registry)
    versions = len(found.known(application).networks)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(f"deleting {application} ends all answers of its {versions} network versions: give --yes")
        typer.confirm(f"Delete {application} and its {versions} network versions from {found}?", abort=True)
    found.delete(application)
    out.print(plain(f"{application} is deleted; serfer app history {application} lists what can be restored"))


def restore(
    application: ApplicationArgument,
    version: Annotated[str, typer.Argument(metavar="VERSION", help="One of serfer app history.")],
    registry: RegistryOption = None,
) -> None:
    """Put an earlier version of an application's record in place of the last one, a damaged or deleted one too."""
    record = opened(registry).restore(application, version)
    live = record.live_release
    out.print(f"{record.name}: release {live.number} is live" if live else f"{record.name}: no release is live")


def import_old(
    old: Annotated[str, typer.Argument(metavar="OLD", help="A registry that SerFer wrote before 0.2.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Where to copy it: a directory, or s3://BUCKET/PREFIX.")],
) -> None:
    """Copy a registry of the format before 0.2 to a new place; interrupted, it goes on when it is run again."""
    from serfer.registry.importing import import_registry  # noqa: PLC0415 - the command line starts fast

    copied = import_registry(old, new)
    out.print(plain(f"copied {copied.documents:,} records and {copied.artefacts:,} files to {new}"), soft_wrap=True)
