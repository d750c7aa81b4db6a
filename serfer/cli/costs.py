"""`serfer cost` and `serfer profile`: what plans and deployments cost, and what operators take here."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from serfer.cli import display
from serfer.cli.options import JsonOption, print_json, share, status_line
from serfer.cli.terminal import err, out
from serfer.core.errors import UsageError
from serfer.settings import load_settings

_QUICK_NETWORKS, _QUICK_ROUNDS = (("squeezenet", 224), ("mobilenet-v2", 224)), 2


def cost(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A plan directory, or a BUILD directory of serfer package.")
    ],
    burst: Annotated[int, typer.Option(min=1, max=10**12, help="How many queries come at once.")] = 1000,
    store: Annotated[
        str | None, typer.Option(help="redis, s3, valkey, redis+s3 or valkey+s3; by default the plan's own.")
    ] = None,
    cold_share: Annotated[
        float | None, typer.Option(help="The share of invocations that find no warm environment, 0 to 1.")
    ] = None,
    memory: Annotated[int | None, typer.Option(help="MB of every function; by default each stage's own.")] = None,
    queries_a_month: Annotated[
        list[int] | None, typer.Option(help="With BUILD: the load of a month; may be given several times.")
    ] = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="With BUILD: a parameter of its template, such as AlarmEmail=x."),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="With BUILD: a table of all drivers, stores and engines, in Markdown.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Price a plan or a whole deployment on AWS, as predicted: queries, a burst, months (docs/explanation/cost.md)."""
    from sam.options import is_build  # noqa: PLC0415 - the command line starts fast

    cold = None if cold_share is None else share("--cold-share", cold_share, 1)
    if is_build(directory):
        if store is not None or memory is not None:
            raise UsageError(f"{directory} has its store and memory: package it with others, or give a plan directory")
        if compare:
            _compare_costs(directory, queries_a_month, as_json)
        else:
            _cost_of_build(directory, burst, cold, queries_a_month, parameter, as_json)
        return
    if compare or queries_a_month or parameter:
        raise UsageError(f"--compare, --queries-a-month and --parameter want a BUILD directory, not {directory}")
    from serfer.core.costs.pricing import Circumstances, price  # noqa: PLC0415 - same
    from serfer.plan_directory import load_plan  # noqa: PLC0415 - same

    found = price(load_plan(directory), load_settings().facts(), Circumstances(store, memory, cold or 0.0, burst))
    if as_json:
        print_json(found.as_dict())
    else:
        display.print_prices(out, found)


def _cost_of_build(
    build: Path,
    burst: int,
    cold_share: float | None,
    loads: list[int] | None,
    parameters: list[str] | None,
    as_json: bool,  # noqa: FBT001 - a command's flag, passed on
) -> None:
    from sam.cost.build_cost import price_build  # noqa: PLC0415 - the command line starts fast

    pairs = [text.partition("=") for text in parameters or ()]
    if (wrong := next((name for name, sign, _ in pairs if not (name and sign)), None)) is not None:
        raise UsageError(f"--parameter is NAME=VALUE, not {wrong!r}")
    given = {name: value for name, _, value in pairs}
    facts = load_settings().facts()
    found = price_build(build, facts, burst=burst, loads=loads, cold_share=cold_share, parameters=given)
    if as_json:
        print_json(found.as_dict())
    else:
        display.print_bill(out, found)


def _compare_costs(build: Path, loads: list[int] | None, as_json: bool) -> None:  # noqa: FBT001 - same
    from sam.cost.bill import LOADS, markdown  # noqa: PLC0415 - same
    from sam.cost.build_cost import compare_build  # noqa: PLC0415 - the command line starts fast

    rows = compare_build(build, load_settings().facts(), loads)
    if as_json:
        for row in rows:
            print_json(asdict(row))
    else:
        print(markdown(rows, loads or LOADS))  # noqa: T201 - Markdown goes out as it is


def profile(
    file: Annotated[Path, typer.Option("--out", help="The JSON file to write.")] = Path("profiles.json"),
    quick: Annotated[bool, typer.Option("--quick", help="Measure less: one to three minutes, less exact.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure on this machine what operators cost, for split --profiles: three to five minutes on a quiet machine."""
    from serfer.core.costs.operator_costs import dump_profiles  # noqa: PLC0415 - the command line starts fast
    from serfer.files import check_place, write_whole  # noqa: PLC0415 - same

    check_place(file)
    from splitter.profiling.profile import measure  # noqa: PLC0415 - imports onnx and scikit-learn

    with status_line() as progress:
        found = measure(progress, _QUICK_NETWORKS, _QUICK_ROUNDS) if quick else measure(progress)
    write_whole(file, dump_profiles(found).encode())
    if as_json:
        print_json(json.loads(dump_profiles(found)))
    else:
        display.print_profiles(out, found)
    err.print(
        f"wrote {display.plain(str(file))}: give it to split --profiles, or set SERFER_PROFILES_FILE to it",
        soft_wrap=True,
    )
