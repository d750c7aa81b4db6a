"""`serfer app register`: variants of a network are made, measured and put into a registry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from serfer.cli.registry.options import ByOption, RegistryOption, who
from serfer.cli.shared.display import columns, plain
from serfer.cli.shared.named_model import DownloadOption, RandomOption, WeightsFileOption
from serfer.cli.shared.network_options import example_of
from serfer.cli.shared.option_groups import WeightsOptions
from serfer.cli.shared.options import JsonOption, print_json, share, status_line
from serfer.cli.shared.terminal import complain, err, out
from serfer.core.dataclass_codec import unstructure
from serfer.core.variants import Figure, Source, Variant
from serfer.variants.register import DEFAULT_MAX_LOSS, DEFAULT_MOST, Registered
from serfer.variants.register import register as register_network

_MILLION = 1_000_000


def register(
    network: Annotated[
        str,
        typer.Argument(
            metavar="NETWORK",
            help="As serfer split takes it (zoo name, timm:NAME, torchvision:NAME, .onnx, module.py:factory), or a "
            "plan directory.",
        ),
    ],
    app: Annotated[str, typer.Option("--app", help="The application whose queries it shall answer.")],
    validation: Annotated[
        Path | None,
        typer.Option(
            help="Labelled images: a folder for each class, or a labels.csv (file,label) next to the images. Without "
            "them, as for a detector, accuracy is not known, and variants are those that answer as the network does."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The network's name in the application; by default its file's.")
    ] = None,
    weights_file: WeightsFileOption = None,
    random: RandomOption = False,
    download: DownloadOption = False,
    registry: RegistryOption = None,
    by: ByOption = None,
    most: Annotated[int, typer.Option(help="How many variants to register at most.")] = DEFAULT_MOST,
    max_loss: Annotated[
        float, typer.Option(help="The share of the images that a variant may get wrong in addition.")
    ] = DEFAULT_MAX_LOSS,
    latency_ms: Annotated[
        float | None, typer.Option(help="A latency that queries will ask for: the cheapest plan within it is made too.")
    ] = None,
    device: Annotated[str, typer.Option(help="Of instances: cuda, cpu, or auto.")] = "auto",
    instance: Annotated[
        str | None,
        typer.Option(metavar="TYPE", help="What this machine is as an instance, for its price; else a like one's."),
    ] = None,
    usd_per_hour: Annotated[
        float | None, typer.Option(min=0, help="An instance's price, in place of the data's.")
    ] = None,
    size: Annotated[str | None, typer.Option(help="The input's HEIGHTxWIDTH, as for serfer split.")] = None,
    channels: Annotated[int | None, typer.Option(min=1, max=4096, help="The input's channels, with --size.")] = None,
    preprocess: Annotated[Path | None, typer.Option(help="A TOML file: how an image becomes the input.")] = None,
    labels: Annotated[Path | None, typer.Option(help="A text file with a class's name in each line.")] = None,
    output: Annotated[
        str | None,
        typer.Option(
            help="What turns the network's output into scores, softmax, sigmoid or none; boxes for a detector."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make variants of a network, measure them, and register them under an application.

    Interrupted or killed, it goes on where it was when it is run again; run twice at once, one does the work and both
    end with the same result. Nothing of it answers queries before all is done.
    """
    from serfer.splitter.network.description import read_labels, read_preprocess  # noqa: PLC0415 - the command line starts fast

    with _progress() as progress:
        registered = register_network(
            WeightsOptions(weights_file=weights_file, random=random, download=download).model_with_weights(network),
            app,
            validation,
            name=name,
            registry=registry,
            by=who(by),
            most=most,
            max_loss=share("--max-loss", max_loss, 1.0),
            latency_ms=latency_ms,
            device=device,
            instance=instance,
            usd_per_hour=usd_per_hour,
            example=example_of(size, channels, network),
            preprocess=read_preprocess(preprocess) if preprocess else None,
            labels=read_labels(labels) if labels else (),
            activation=output,
            progress=progress,
        )
    if as_json:
        print_json(as_dict(registered))
    else:
        _print(registered)


def as_dict(registered: Registered) -> dict[str, Any]:
    """Return what was registered as plain values, one object."""
    where = {"registry": registered.registry, "application": registered.application}
    done = {"registration": registered.registration, "made": registered.made}
    return {**where, **done, **unstructure(registered.version)}


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Show what is running; where no terminal is watched, the steps alone, as lines."""
    if err.is_terminal:
        with status_line() as progress:
            yield progress
    else:
        yield lambda text: complain(text) if text.startswith("step ") else None


def _print(registered: Registered) -> None:
    """Print the variants, what was left out, and what comes next."""
    version = registered.version
    out.print(
        plain(f"{registered.application}: {version.network}@{version.version}")
        + f", {len(version.variants)} variants"
        + ("" if registered.made else " (registered before)"),
        soft_wrap=True,
    )
    table = columns("variant", "accuracy", "95% from", "p95 ms", "load ms", "MB", "images/s", "$/million")
    for each in version.variants:
        table.add_row(plain(each.name), *_cells(each))
    out.print(table)
    out.print("~ predicted by the cost model; all else was measured here")
    for remark in version.remarks:
        out.print(plain(remark), soft_wrap=True)
    if registered.live:
        out.print(plain(f"it answers queries of application {registered.application} from now on"), soft_wrap=True)
    else:
        out.print(
            plain(f"it answers no queries yet: promote {version.network}@{version.version}, or try it as a canary"),
            soft_wrap=True,
        )


def _cells(variant: Variant) -> list[str]:
    accuracy = variant.accuracy
    correct = [f"{accuracy.share:.2%}", f"{accuracy.low:.2%}"] if accuracy else ["-", "-"]
    figures = (variant.latency_ms, variant.load_ms, variant.peak_mb, variant.qps)
    return [*correct, *map(_figure, figures), _figure(variant.usd, _MILLION)]


def _figure(figure: Figure, times: int = 1) -> str:
    value = figure.value * times
    mark = "~" if figure.source is Source.PREDICTED else ""
    return f"{mark}{value:,.1f}" if value >= 1 else f"{mark}{value:.2g}"
