"""`serfer study planner peers`: plans of Gillis's planner and of MPHB's beside ours, under both cost models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

from serfer.cli.shared.options import JsonOption, status_line
from serfer.core.errors import UsageError
from serfer.settings import load_settings
from serfer.splitter.network.graph import Graph
from serfer_bench.core.options import MarkdownOption
from serfer_bench.core.plans import Progress
from serfer_bench.core.tables import Results, Table, publish
from serfer_bench.study.baselines.published_costs import GILLIS
from serfer_bench.study.planner.peers.comparison import PROGRAMS, SLO_AWARE_HEAD, Compared, measure
from serfer_bench.study.planner.peers.networks import NETWORKS, read
from serfer_bench.study.planner.peers.programs import program_of, python_with_mxnet, run_program
from serfer_bench.study.planner.peers.questions import FASTEST, OBJECTIVES_S, questions
from serfer_bench.study.planner.peers.recorded_plans import Answer, keep, recorded
from serfer_bench.study.planner.peers.templates import HEAD, rows

SLOS_S: Final = (0.6, 0.8, 1.5, 2.0)
"""MPHB's objectives (`provisioning/conf/config2.json`)."""


def results(there: Compared, here: Compared, slos: Sequence[float]) -> Results:
    head = ["network", "planner", "its plan, by layers", "its ms", "its $/M", "ours in its ms: $/M", "cheaper"]
    head += [f"in {slo:g} s: ours (its) $/M" for slo in slos]
    models = ("their", there), ("our", here)
    notes = [
        f"under {model} cost model ours is dearer in {sum(pair.loses for pair in found.pairs)} of {len(found.pairs)} "
        "comparisons"
        for model, found in models
    ]
    records = [{"model": f"{model}s", **asdict(row)} for model, found in models for row in found.rows]
    tables = [Table(head, [row.cells for row in found.fastest]) for _, found in models]
    if templates := [*rows(list(dict.fromkeys(row.network for row in there.fastest)))]:
        tables.append(Table(HEAD, templates))
    tables += [Table(SLO_AWARE_HEAD, [row.cells for row in found.slo_aware]) for _, found in models if found.slo_aware]
    return Results(records, tables, notes)


def answers_of(
    graphs: Mapping[str, Graph],
    checkouts: Mapping[str, Path],
    slos: Sequence[float] | None,
    seconds: float,
    progress: Progress,
) -> Iterator[Answer]:
    """Yield the plans for each network: by the program of a checkout where there is one, else as recorded.

    Gillis's SLO-aware policies have the objectives `slos`, or the network's own.
    """
    known = recorded()
    for name, graph in graphs.items():
        objectives = OBJECTIVES_S.get(name, ()) if slos is None else slos
        for program in PROGRAMS:
            asked = [FASTEST, *(questions(name, objectives) if program == GILLIS.name else ())]
            if program not in checkouts:
                those = {each.question: each for each in known if (each.program, each.network) == (program, name)}
                yield from (those[question] for question in asked if question in those)
                continue
            progress(f"{name}: {program}'s program")
            python = python_with_mxnet(load_settings().cache_dir, progress) if len(asked) > 1 else None
            plans = run_program(graph, checkouts[program], asked, seconds, python)
            yield from (Answer(program, name, *each) for each in zip(asked, plans, strict=True))


def command(
    model: Annotated[
        list[str] | None, typer.Option(help=f"A network, of {', '.join(NETWORKS)}; may be repeated. All by default.")
    ] = None,
    checkout: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="A checkout of Gillis's or MPHB's program, which is run in a process of its own; may be repeated. "
            "Without it, its plans of 2026-11-28. Gillis's takes 15 processor minutes for all networks, and "
            "Python 3.11, for MXNet in an environment of its own.",
        ),
    ] = None,
    slo: Annotated[
        list[float] | None,
        typer.Option(
            min=0.001,
            help="Seconds; may be repeated. By default MPHB's 0.6, 0.8, 1.5, 2, and for Gillis's SLO-aware policies "
            "those of the tables.",
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="How long a program may plan a network at most.")] = 3600,
    keep_in: Annotated[
        Path | None, typer.Option("--keep", metavar="FILE", help="Write the programs' plans there, as JSON.")
    ] = None,
    as_markdown: MarkdownOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare plans of Gillis's own planner and of MPHB's with ours: dollars within a time, under both cost models."""
    checkouts = {program_of(path): path for path in checkout or ()}
    if len(checkouts) < len(checkout or ()):
        raise UsageError("--checkout is given twice for one program")
    with status_line() as progress:
        graphs = {}
        for name in model or NETWORKS:
            progress(f"reading {name}")
            graphs[name] = read(name)
        answers = list(answers_of(graphs, checkouts, slo or None, seconds, progress))
        if keep_in:
            keep(answers, keep_in)
        slos = slo or SLOS_S
        there, here = measure(load_settings().facts(), answers, graphs, slos, progress)
    publish(results(there, here, slos), as_json=as_json, as_markdown=as_markdown)
