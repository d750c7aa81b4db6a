"""`serfer study replay`: a load's worst minutes, as they were simulated and as they were measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import typer

from serfer.cli.shared.display import plain, print_table
from serfer.cli.shared.load_costs import plan_directory_of, read_load_of, scenario_of, whole_plan
from serfer.cli.shared.option_groups import JsonOptions
from serfer.cli.shared.options import print_json, status_line
from serfer.cli.shared.plan_commands import LoadOptions
from serfer.cli.shared.terminal import complain, out
from serfer.core.errors import UsageError
from serfer.core.options import REQUIRED, argument, option
from serfer.plan_directory import load_plan
from serfer.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from serfer_bench.study.sim.replay import Replay, ReplayOutcome

_FEW = 300  # queries of which the slowest 1% are three or fewer


@dataclass(frozen=True, kw_only=True)
class ReplayCommand(LoadOptions, JsonOptions):
    """Run a load's busiest minutes for real, through functions and an instance of this machine.

    Shows what is simulated for them, as serfer cost does, beside what is measured.
    """

    command: ClassVar[str] = "study replay"
    line: ClassVar[str] = "log qps path instance slo_ms scenario minutes as_json"

    directory: Path = argument(REQUIRED, "An .onnx file, or a plan directory of one.", metavar="NETWORK_OR_DIR")
    minutes: float = option(10.0, "How many minutes; two ways are run for so long each.", least=0.05, most=10)


def replay(options: ReplayCommand, _context: typer.Context) -> None:
    """Run a load, and print what was simulated and measured."""
    from serfer_bench.study.sim.local_replay import LocalReplay, check_replay  # noqa: PLC0415 - the command starts fast

    if not options.has_load:
        raise UsageError("give the load: --log FILE or --qps NUMBER")
    directory = plan_directory_of(options.directory, None, None)
    settings = load_settings()
    facts = settings.facts()
    with status_line() as progress:
        whole, place = whole_plan(load_plan(directory), directory, progress)
        check_replay(whole, place)
        local = LocalReplay(whole, place, scenario_of(options, whole, facts), facts, settings, progress)
        replayed = local.run(read_load_of(options, progress), options.minutes)
    if options.as_json:
        print_json({"model": whole.model, "plan": whole.digest, **replayed.as_dict()})
    else:
        print_replay(replayed)


def print_replay(replay: Replay) -> None:
    load = replay.load
    what = "the whole load" if load.window.name == "whole" else f"the busiest {load.seconds:,.0f} s of the load"
    since = "" if load.window.name == "whole" else f", from its second {load.window.begin_s:,.0f} on"
    thinned = f", one of {load.thinned:g} of the load's" if load.thinned > 1 else ""
    out.print()
    out.print(plain(f"replayed here: {what}{since}: {len(load.arrivals_s):,} queries{thinned}"))
    for way in replay.ways:
        out.print(plain(f"{way.name}:"))
        rows = (
            ("measured", *_row(way.measured)),
            ("simulated before", *_row(way.simulated)),
            ("  is off by", *_off(way.simulated, way.measured)),
            ("with its own times", *_row(way.explained)),
            ("  is off by", *_off(way.explained, way.measured)),
        )
        print_table(["", "p50 ms", "p99 ms", "cold", "unanswered", "instances", "$"], rows)
    for line in _said(replay):
        out.print(plain(line))
    for remark in replay.remarks:
        complain(remark)


def _row(one: ReplayOutcome) -> list[str]:
    times = ("-" if value is None else f"{value:,.0f}" for value in (one.p50_ms, one.p99_ms))
    return [*times, f"{one.cold_share:.2%}", f"{one.unanswered:.2%}", f"{one.launches:.2g}", f"{one.usd:.6f}"]


def _off(simulated: ReplayOutcome, measured: ReplayOutcome) -> list[str]:
    from serfer_bench.study.sim.replay import off  # noqa: PLC0415 - the command line starts fast

    p50, p99, usd = ("-" if value is None else f"{value:+.1%}" for value in off(simulated, measured).values())
    return [p50, p99, "", "", "", usd]


def _said(replay: Replay) -> Iterator[str]:
    load, kind = replay.load, replay.scenario.instance
    known = replay.speed.as_dict()
    yield (
        f"measured here, on {replay.processors} processors: a query {known['warm_ms']:,.0f} ms warm, "
        f"{known['cold_ms']:,.0f} ms cold; with {known['at_once']} at once, which are the most, "
        f"{known['warm_at_once_ms']:,.0f} and {known['cold_at_once_ms']:,.0f} ms"
    )
    if replay.instance is not None:
        yield (
            f"an instance here stands for {kind.name}: {1000 * replay.instance.image_s:,.0f} ms an image, "
            f"{kind.boot_s:,.0f} s until it serves ({replay.instance.boot_s:,.1f} s of them its process), "
            f"${kind.usd_per_hour:.3g} an hour; within {replay.scenario.slo_ms:,.0f} ms"
        )
    if load.thinned > 1:
        yield (
            f"thinned {load.thinned:g} times, the price of an instance, too: this machine answers {known['qps']:,.1f} "
            "queries/s, and the busiest 10 s are to take half of that"
        )
    yield (
        "simulated before: with the times above; with its own times: with those that functions and instances took in "
        "the replay, so that a machine that was slower meanwhile is not taken for a wrong simulation"
    )
    yield "all begin with nothing warm, no instance, and a policy that has seen nothing"
    if len(load.arrivals_s) < _FEW:
        yield f"p99 of {len(load.arrivals_s):,} queries is that of one to three of them: replay more"
