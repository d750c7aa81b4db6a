"""The command line. It parses, calls and prints; what it prints comes from `serfer.display`."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from typer.exceptions import TyperException

from serfer import __version__, display
from serfer.core.errors import SerferError, UnavailableError, UsageError, WrongAnswerError
from serfer.core.structure import unstructure
from serfer.settings import load_settings
from splitter.exactness import TOLERANCE, difference

if TYPE_CHECKING:
    from serfer.core.plan import Plan
    from serfer.pipeline import Pipeline

_TERMINATED = 128 + signal.SIGTERM
_INTERRUPTED = 128 + signal.SIGINT

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Split convolutional networks into layers and tiles, and run them on AWS Lambda workers.",
    epilog="Exit codes: 1 a wrong or failed answer, 2 usage, 3 bad input, 4 something unavailable, 130 interrupted.",
)
bench_app = typer.Typer(no_args_is_help=True, help="Measure, on this machine, side by side in one run.")
app.add_typer(bench_app, name="bench")


class _Output(Console):
    """A console that leaves a closed pipe to `main`."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class _Terminated(BaseException):
    """SIGTERM, as an exception, so that workers, store and keys are cleaned up on the way out."""


_FILE_WIDTH = 160  # columns for tables that go to a file or a pipe

out = _Output(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else _FILE_WIDTH)
err = Console(stderr=True, highlight=False)

PlanOption = Annotated[Path | None, typer.Option("--plan", help="A plan directory, from serfer split.")]
ModelOption = Annotated[str | None, typer.Option("--model", help="A model of the zoo: efficientnet-lite0 or alexnet.")]
WorkersOption = Annotated[
    str, typer.Option(help="local: the local Lambda service, a process for each environment; inprocess: threads here.")
]
StoreOption = Annotated[
    str | None, typer.Option(help="A store's URL (redis://, file:///, memory://); by default one is started.")
]
DriverOption = Annotated[str, typer.Option(help="push: an invoke's own return says that a tile is done.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
PlanArgument = Annotated[Path, typer.Argument(metavar="DIR", help="A plan directory, from serfer split.")]

_DEFAULT_MODEL = "efficientnet-lite0"


def _version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it with the flag
    if wanted:
        out.print(f"serfer {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@contextmanager
def _progress() -> Iterator[Any]:
    """Show the current step on a terminal; say nothing where nobody watches."""
    with err.status("") as status:
        yield lambda text: status.update(display.plain(text))


def _plan_directory(plan: Path | None, model: str | None) -> Path:
    from serfer.wiring import zoo_plan  # noqa: PLC0415 - the command line starts fast

    if plan is not None and model is not None:
        raise UsageError("give --plan or --model, not both")
    if plan is not None:
        return plan
    with _progress() as progress:
        return zoo_plan(model or _DEFAULT_MODEL, load_settings(), progress)


@app.command()
def classify(
    images: Annotated[
        list[str], typer.Argument(metavar="IMAGE...", help="Image files; - reads one from standard input.")
    ],
    model: ModelOption = None,
    plan: PlanOption = None,
    store: StoreOption = None,
    workers: WorkersOption = "local",
    driver: DriverOption = "push",
    deadline_ms: Annotated[int, typer.Option(min=1, max=86_340_000, help="Give up on an image then.")] = 120_000,
    top_k: Annotated[int, typer.Option(min=1, help="How many classes to print.")] = 5,
    compare: Annotated[
        bool, typer.Option("--compare", help="Also run the unsplit model here and print the difference.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Classify images, each as one query through a split network."""
    if images.count("-") > 1:
        raise UsageError("standard input can be read only once")
    directory = _plan_directory(plan, model)
    failures = []
    with _opened(directory, store, workers, driver) as pipeline:
        whole = _unsplit(pipeline.plan, directory) if compare else None
        for name in images:
            try:
                data = _standard_input() if name == "-" else Path(name)
                pipeline.classify([data], names=[name], top_k=top_k, deadline_s=deadline_ms / 1000)
                delta = difference(pipeline.last.logits, whole(pipeline.pixels([data]))) if whole else None
            except SerferError as error:
                _complain(error)
                failures.append(error)
                continue
            if as_json:
                _print_json(pipeline.last_report.as_dict())
            else:
                display.print_answer(out, pipeline.plan, pipeline.last_report, delta)
    if failures:
        raise typer.Exit(failures[0].exit_code)


@app.command()
def split(
    model: Annotated[str, typer.Argument(help="A zoo name, an .onnx file, or module.py:factory.")],
    directory: Annotated[Path, typer.Option("--out", help="The plan directory to write; a plan there is replaced.")],
    stages: Annotated[str, typer.Option(help="How many stages, or auto.")] = "auto",
    grids: Annotated[
        str, typer.Option(help="auto; one grid for every stage that can be tiled; or 2x2,2x2,1.")
    ] = "auto",
    size: Annotated[
        str | None, typer.Option(help="The input's HEIGHTxWIDTH; a zoo model or ONNX file may fix its own.")
    ] = None,
    memory: Annotated[
        int | None, typer.Option(help="MB of memory of each function; by default one vCPU's share.")
    ] = None,
    limit_mb: Annotated[int | None, typer.Option(help="MB that a function's package may have; AWS allows 250.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Split a model into stages and tiles, prove the parts equal to the whole, and write a plan directory."""
    from splitter.split import split as split_model  # noqa: PLC0415 - imports onnx

    with _progress() as progress:
        plan = split_model(
            model,
            _example(size),
            directory,
            grids=grids,
            stages=stages,
            memory_mb=memory,
            limit_mb=limit_mb,
            facts=load_settings().facts(),
            progress=progress,
        )
    _print_plan(plan, as_json)


@app.command()
def explain(directory: PlanArgument, as_json: JsonOption = False) -> None:
    """Show a plan: its stages, grids, halos, sizes, and what each costs."""
    from serfer.core.plan import load_plan  # noqa: PLC0415 - the command line starts fast

    _print_plan(load_plan(directory), as_json)


@app.command()
def verify(
    directory: PlanArgument,
    images: Annotated[
        list[Path] | None, typer.Option("--images", help="An image to compare on; may be repeated.")
    ] = None,
    random: Annotated[int, typer.Option(min=0, help="How many random inputs to compare on.")] = 2,
    workers: WorkersOption = "inprocess",
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare a plan with its unsplit model; exit code 1 if an answer differs."""
    if not images and not random:
        raise UsageError("nothing to compare on: give --images or --random")
    with _opened(directory, store, workers) as pipeline:
        whole = _unsplit(pipeline.plan, directory)
        found = []
        for name, batch in _inputs(pipeline, images or [], random):
            pipeline.run(batch)
            found.append((name, difference(pipeline.last.logits, whole(batch))))
    if as_json:
        for name, delta in found:
            _print_json({"input": name, "error": delta.error, "same_top": delta.same_top, "exact": delta.exact})
    else:
        display.print_differences(out, found)
    if not all(delta.exact for _, delta in found):
        raise WrongAnswerError(
            f"the plan's answers differ from the unsplit model's by more than {TOLERANCE:g} of their range"
        )


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Say what this machine has, what is missing, and how to get it; exit code 4 if something is."""
    from serfer.doctor import examine  # noqa: PLC0415 - looks at packages that other commands do not need

    checks = examine(load_settings())
    if as_json:
        for check in checks:
            _print_json(asdict(check))
    else:
        display.print_checks(out, checks)
    if not all(check.ok for check in checks):
        raise UnavailableError("something is missing: see the lines above")


@bench_app.command()
def overhead(
    model: ModelOption = None,
    plan: PlanOption = None,
    rounds: Annotated[int, typer.Option(min=1, help="Pairs of measurements.")] = 7,
    queries: Annotated[int, typer.Option(min=1, help="Queries in each measurement.")] = 20,
    at_most: Annotated[float | None, typer.Option(help="Exit with 1 if the ratio is higher than this.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Processor time of the warm pipeline (driver, Lambda service, Redis, workers) against the unsplit forward pass."""
    from bench.overhead import measure  # noqa: PLC0415 - only this command needs it

    directory = _plan_directory(plan, model or (None if plan else "alexnet"))
    with _opened(directory, None, "local") as pipeline, _progress() as progress:
        result = measure(pipeline, _unsplit(pipeline.plan, directory), rounds, queries, progress)
    if as_json:
        _print_json(asdict(result))
    else:
        display.print_overhead(out, result)
    if at_most is not None and result.ratio > at_most:
        raise SerferError(f"the pipeline takes {result.ratio:.2f} times the unsplit pass, more than {at_most:g}")


@contextmanager
def _opened(directory: Path, store: str | None, workers: str, driver: str = "push") -> Iterator[Pipeline]:
    from serfer.wiring import open_pipeline  # noqa: PLC0415 - the command line starts fast

    with _progress() as progress:
        progress("starting workers and store")
        pipeline = open_pipeline(directory, store=store, workers=workers, driver=driver)
    try:
        yield pipeline
    finally:
        _ignore_signals()  # cleaning up takes no time; a second Ctrl-C must not leave it half done
        pipeline.close()


def _unsplit(plan: Plan, directory: Path) -> Callable[[NDArray[Any]], NDArray[Any]]:
    from serfer.unsplit import unsplit  # noqa: PLC0415 - imports ONNX Runtime

    return unsplit(plan, directory)


def _inputs(pipeline: Pipeline, images: Sequence[Path], count: int) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield what to compare on: images, then seeded random inputs."""
    for path in images:
        yield str(path), pipeline.pixels([path])
    for seed in range(count):
        shape = pipeline.plan.input
        size = (1, shape.channels, shape.height, shape.width)
        yield f"random, seed {seed}", np.random.default_rng(seed).standard_normal(size, dtype=np.float32)


def _standard_input() -> bytes:
    return sys.stdin.buffer.read(load_settings().max_image_bytes + 1)


def _example(size: str | None) -> NDArray[np.float32] | None:
    if size is None:
        return None
    match = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", size)
    if match is None:
        raise UsageError(f"{size!r} is no size: write HEIGHTxWIDTH such as 224x224")
    return np.random.default_rng(0).standard_normal((1, 3, int(match[1]), int(match[2])), dtype=np.float32)


def _print_plan(plan: Plan, as_json: bool) -> None:  # noqa: FBT001 - a command's flag, passed on
    if as_json:
        _print_json(unstructure(plan))
    else:
        display.print_plan(out, plan, load_settings().facts())


def _print_json(value: Any) -> None:  # noqa: ANN401 - any JSON value
    print(json.dumps(value))  # noqa: T201 - JSON lines go out as they are, not wrapped for a terminal


def _complain(problem: object) -> None:
    """Say what is wrong in one line, whatever file names and functions put into the message."""
    line = re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+", " ", str(problem).strip())
    err.print(f"serfer: {line}", soft_wrap=True, markup=False)


def _ignore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise _Terminated


def main() -> None:
    """Run the command line and exit with a code that says how it went."""
    signal.signal(signal.SIGTERM, _terminate)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # file names need not be text
    code = _exit_code(sys.argv[1:])
    _ignore_signals()
    sys.exit(code)


def _exit_code(arguments: list[str]) -> int:
    """Run a command; every way in which it can end without a bug becomes an exit code and at most one line."""
    command = typer.main.get_command(app)
    try:
        # Not its main(): that one has exit codes of its own for interrupts and closed pipes.
        with command.make_context("serfer", arguments) as context:
            command.invoke(context)
        sys.stdout.flush()
    except SerferError as error:
        _complain(error)
        return error.exit_code
    except typer.Exit as end:
        return end.exit_code
    except TyperException as error:
        return _misused(error)
    except (KeyboardInterrupt, typer.Abort, _Terminated) as end:
        word, code = ("terminated", _TERMINATED) if isinstance(end, _Terminated) else ("interrupted", _INTERRUPTED)
        _complain(word)
        return code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read our output has enough of it
    except OSError as error:  # a full disk, say
        _complain(error)
        return UnavailableError.exit_code
    return 0


def _misused(error: TyperException) -> int:
    """Say what is wrong with the arguments; where there were none at all, the message is the whole help."""
    message, context = error.format_message(), getattr(error, "ctx", None)
    if "\n" in message:
        err.print(message, soft_wrap=True, markup=False)
    else:
        _complain(f"{message.rstrip('.')} (see {context.command_path if context else 'serfer'} --help)")
    return UsageError.exit_code
