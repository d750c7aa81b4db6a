"""`serfer app register`: variants of a network are made, measured and put into a registry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

from serfer.cli.registry.applications import print_variants
from serfer.cli.registry.options import RegisterCommand, who
from serfer.cli.shared.display import plain
from serfer.cli.shared.network_options import example_of
from serfer.cli.shared.options import print_json, status_line
from serfer.cli.shared.terminal import complain, err, out
from serfer.core.dataclass_codec import unstructure
from serfer.splitter.network.description import read_labels, read_preprocess
from serfer.variants.register import Registered
from serfer.variants.register import register as register_network


def register(options: RegisterCommand, _context: typer.Context) -> None:
    with _progress() as progress:
        registered = register_network(
            options.model_with_weights(options.network),
            options.app,
            options.validation,
            name=options.name,
            registry=options.registry,
            by=who(options.by),
            example=example_of(options.size, options.channels, options.network),
            preprocess=read_preprocess(options.preprocess) if options.preprocess else None,
            labels=read_labels(options.labels) if options.labels else (),
            activation=options.output,
            progress=progress,
            options=options,
        )
    if options.as_json:
        print_json(as_dict(registered))
    else:
        _print(registered)


def as_dict(registered: Registered) -> dict[str, Any]:
    where = {"registry": registered.registry, "application": registered.application}
    done = {"registration": registered.registration, "made": registered.made}
    return {**where, **done, **unstructure(registered.version)}


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    if err.is_terminal:
        with status_line() as progress:
            yield progress
    else:
        yield lambda text: complain(text) if text.startswith("step ") else None


def _print(registered: Registered) -> None:
    version = registered.version
    out.print(
        plain(f"{registered.application}: {version.network}@{version.version}")
        + f", {len(version.variants)} variants"
        + ("" if registered.made else " (registered before)"),
        soft_wrap=True,
    )
    print_variants([(version, "live" if registered.live else "other")])
    for remark in version.remarks:
        out.print(plain(remark), soft_wrap=True)
    if registered.live:
        out.print(plain(f"it answers queries of application {registered.application} from now on"), soft_wrap=True)
    else:
        out.print(
            plain(f"it answers no queries yet: promote {version.network}@{version.version}, or try it as a canary"),
            soft_wrap=True,
        )
