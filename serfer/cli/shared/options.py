"""Shared by the commands of `serfer` and `serfer bench`: their options, the plan they mean, how they print."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from serfer.cli.shared.display import styled
from serfer.cli.shared.network_options import NO_OPTIONS, check_described, plan_of
from serfer.cli.shared.option_groups import NetworkFileOptions
from serfer.cli.shared.plan_summary import in_cache
from serfer.cli.shared.terminal import complain, err, uninterrupted
from serfer.core.errors import UnavailableError, UsageError
from serfer.plan_directory import is_code, is_network, is_plan_directory
from serfer.settings import Settings, load_settings

if TYPE_CHECKING:
    from serfer.pipeline.blocking import Pipeline
    from serfer.wiring.pipeline_options import PipelineOptions

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]

_PRIVATE = 0o700
_DEMO_MODEL = "efficientnet-lite0"
BY_OPTION = "--plan DIR, from serfer split, or --model NAME of the zoo"
"""The ways to name a network of a command that takes it by options alone."""
BY_ARGUMENT = (
    "an .onnx file, timm:NAME or torchvision:NAME, as argument or --network, --plan DIR, or --model NAME of the zoo"
)
"""Those of a command that also takes it among its arguments."""


@contextmanager
def status_line() -> Iterator[Any]:
    with err.status("") as status:
        yield lambda text: status.update(styled(text, ""))


@contextmanager
def status_lines() -> Iterator[Any]:
    if err.is_terminal:
        with status_line() as progress:
            yield progress
    else:
        yield complain


def check_named(stack: str | None, *named: object) -> None:
    """Refuse a stack without a plan or a model: it serves one, but has not its directory; raises UsageError."""
    if stack is not None and not any(named):
        raise UsageError(f"--stack {stack}: say which plan it serves: --plan DIR, as it was packaged, or --model")


def demo_model(demo: bool, *named: object) -> str | None:  # noqa: FBT001 - a flag of commands
    """Return the zoo's name of the demo's network, None without --demo; raises UsageError for another network, too."""
    if demo and any(named):
        raise UsageError("--demo names a network itself: leave it out, or the other one")
    return _DEMO_MODEL if demo else None


def nothing_named(choices: str) -> UsageError:
    return UsageError(f"which network? Name {choices}")


def plan_directory(
    plan: Path | None,
    model: str | None,
    stack: str | None = None,
    file: NetworkFileOptions = NO_OPTIONS,
    workers: str | None = None,
    *,
    choices: str = BY_OPTION,
    again: bool = False,
) -> Path:
    """Return the directory of --plan, or of --model in the cache; an .onnx file's as its options say.

    Raises UsageError where both are given, or neither, with the `choices`, or a file for workers in AWS.
    """
    check_named(stack, plan, model)
    if plan is None and model is None:
        raise nothing_named(choices)
    if plan is not None and model is not None:
        raise UsageError("give --plan or --model, not both")
    made = plan is not None and is_network(plan)
    check_described(file, [plan] if plan is not None and made else [])
    if plan is not None and not made:
        return plan
    with status_lines() as progress:
        if model is None:
            return plan_of(str(plan), file, progress, deployed=stack is not None or workers == "aws")
        from serfer.wiring.local import zoo_plan  # noqa: PLC0415 - the command line starts fast

        return in_cache(partial(zoo_plan, model, load_settings()), progress, again=again)


def network_among(
    images: Sequence[str], plan: Path | None, network: str | None = None
) -> tuple[list[str], Path | None]:
    """Return images without the network among them, and that, or --network, in place of --plan; raises UsageError.

    It is an .onnx file, timm:NAME, torchvision:NAME or a plan directory.
    """
    networks = [name for name in images if is_network(name) or is_plan_directory(name) or is_code(name)]
    others = [name for name in images if name not in networks]
    networks += [network] if network else []
    if not networks:
        return others, plan
    if plan is not None or len(networks) > 1:
        raise UsageError(f"{' and '.join([*networks, *([str(plan)] if plan else [])])} are several networks: give one")
    if not others:
        raise UsageError(f"{networks[0]} is a network: name images, too")
    return others, Path(networks[0])


@contextmanager
def opened(
    directory: Path, options: PipelineOptions, workers: str | None, cache_s: float = 0.0, results: str | None = None
) -> Iterator[Pipeline]:
    """Open a plan directory for a command, and close it however the command ends; workers of None are the stack's."""
    from serfer.wiring.open_pipeline import open_pipeline  # noqa: PLC0415 - the command line starts fast

    with status_line() as progress:
        progress("opening the plan")
        pipeline = open_pipeline(
            directory,
            store=options.store,
            workers=workers,
            driver=options.engine,
            object_store=options.object_store,
            cache_s=cache_s,
            stack=options.stack,
            results=results,
        )
    try:
        yield pipeline
    finally:
        with uninterrupted():  # cleaning up takes no time; a second Ctrl-C must not leave it half done
            pipeline.close()


def kept_url(url: str | None, settings: Settings) -> str:
    """Return the URL of the store of results: the one that was given, or of the settings, or this user's own."""
    return url or settings.results or own_results(settings)


def own_results(settings: Settings) -> str:
    """Return the URL of this user's results; what has expired there is removed as others come."""
    directory = settings.cache_dir / "results"
    try:
        directory.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
    except OSError as error:
        raise UnavailableError(f"{directory} cannot be made: {error.strerror}: give --results") from error
    return directory.as_uri()


def print_json(value: Any) -> None:  # noqa: ANN401 - any JSON value
    """Print a value as one line, at once: a server's reader waits for it, and the server does not end."""
    print(json.dumps(value, allow_nan=False), flush=True)  # noqa: T201 - JSON lines go out as they are, not wrapped for a terminal
