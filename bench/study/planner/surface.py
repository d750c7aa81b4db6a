"""Who answers cheapest within an objective, by network, size of the image, burst and share of cold queries.

The question is an engineer's: this network, images of this size, so many queries at once, so many that find nothing
warm, and milliseconds to keep: what costs least? The ways that compete are those of `ways_to_answer.py`. Nothing runs.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from itertools import groupby, product
from pathlib import Path
from typing import Annotated, Final

import typer

from serfer.cli.shared.options import JsonOption, status_line
from serfer.core.costs.aws import AwsFacts
from serfer.core.costs.cost_model import MEASURED_MEMBERS
from serfer.core.costs.operator_costs import Profiles
from serfer.core.dataclass_codec import structure
from serfer.core.errors import InputError, UsageError
from serfer.core.units import MS_PER_S
from serfer.files import read_text
from serfer.pictures import check_suffix
from serfer.settings import load_settings
from serfer.splitter.planning.split_options import memory_sizes
from serfer_bench.core.options import MarkdownOption, StoreKindOption
from serfer_bench.core.tables import Results, Table, publish
from serfer_bench.study.planner.planner import Progress, read_network, scaled
from serfer_bench.study.planner.ways_to_answer import (
    GPU,
    INSTANCE,
    SPLIT,
    WAYS,
    Answer,
    Contest,
    Question,
    ServerlessGpu,
)

NETWORKS: Final = ("squeezenet", "resnet50", "alexnet", "vgg16")
SIZES: Final = (224, 448, 896)
BURSTS: Final = (1, 10, 100, 1000)
SHARES: Final = (0.0, 0.02, 1.0)
OBJECTIVES_MS: Final = (300.0, 1000.0, 3000.0, 10_000.0)
PER_HOUR: Final = 1000.0
NONE: Final = "none"
_MILLION = 1_000_000
_MAX_BYTES = 1 << 16


@dataclass(frozen=True)
class _Gpus:
    gpu: tuple[ServerlessGpu, ...]


@dataclass(frozen=True)
class Cell:
    """A question about a network at one size of image, and the ways that answer it, by name."""

    model: str
    size: int
    question: Question
    answers: Mapping[str, Answer]

    @property
    def ranking(self) -> list[Answer]:
        """The ways that meet the objective, the cheapest first; of those alike, the simplest."""
        return sorted((self.answers[way] for way in WAYS if way in self.answers), key=lambda one: one.usd)

    @property
    def winner(self) -> str:
        return self.ranking[0].way if self.answers else NONE

    @property
    def instances_win_from(self) -> float | None:
        """From how many queries an hour on the instances cost less than the functions that win.

        None where functions do not win, or no instances meet the objective.
        """
        if self.winner in (NONE, INSTANCE, GPU) or INSTANCE not in self.answers:
            return None
        return self.question.per_hour * self.answers[INSTANCE].usd / self.ranking[0].usd

    def as_dict(self) -> dict[str, object]:
        ways = {way: asdict(one) for way, one in self.answers.items()}
        return {"model": self.model, "size": self.size, **asdict(self.question), "winner": self.winner, "ways": ways}


def measure(
    facts: AwsFacts,
    profiles: Profiles,
    networks: Sequence[str],
    sizes: Sequence[int],
    questions: Sequence[Question],
    gpus: Sequence[ServerlessGpu],
    store: str = "valkey",
    gang_width: int = MEASURED_MEMBERS,
    progress: Progress = lambda _: None,
) -> list[Cell]:
    cells = list[Cell]()
    for name, size in product(networks, sizes):
        progress(f"reading {name} at {size} px")
        network = read_network(name, size, facts, store, memory_sizes(facts.functions))
        budget = replace(network.budget, gang_width=gang_width, profiles=profiles)
        contest = Contest(replace(network, budget=budget), gpus)
        for question in questions:
            progress(f"{name} at {size} px: bursts of {question.burst}, {question.cold_share:.0%} cold")
            cells.append(Cell(network.name, size, question, contest.answers(question)))
    return cells


def read_gpus(path: Path | None) -> tuple[ServerlessGpu, ...]:
    shipped = files("serfer_bench.study.planner").joinpath("serverless_gpus.toml")
    text = shipped.read_text(encoding="utf-8") if path is None else read_text(path, _MAX_BYTES)
    name = "serverless_gpus.toml" if path is None else str(path)
    try:
        return structure(_Gpus, tomllib.loads(text), name, error=InputError).gpu
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{name} is not TOML: {error}") from error


def winners(cells: Sequence[Cell]) -> Table:
    shares = [*dict.fromkeys(cell.question.cold_share for cell in cells)]
    rows = dict[tuple[str, str, str], dict[float, list[Cell]]]()
    for cell in cells:
        key = cell.model, str(cell.size), f"{cell.question.slo_s * MS_PER_S:,.0f}"
        rows.setdefault(key, {}).setdefault(cell.question.cold_share, []).append(cell)
    head = ("network", "px", "within ms", *(f"{share:.3g}% cold" for share in (100 * one for one in shares)))
    return Table(head, [(*key, *(_by_burst(row.get(share, ())) for share in shares)) for key, row in rows.items()])


def _by_burst(cells: Sequence[Cell]) -> str:
    ordered = sorted(cells, key=lambda cell: cell.question.burst)
    runs = [(way, [*run][-1].question.burst) for way, run in groupby(ordered, key=lambda cell: cell.winner)]
    parts = [f"{way} to {most:,}" for way, most in runs[:-1]] + [way for way, _ in runs[-1:]]
    return ", then ".join(parts)


def varied(cells: Sequence[Cell], others: Sequence[Sequence[Cell]], changes: Sequence[tuple[str, float]]) -> Table:
    """Count who is cheapest, with constants as they are and changed, and the splits that are that in both."""
    rows, whats = [], ("as they are", *(f"{name} x {times:g}" for name, times in changes))
    for what, found in zip(whats, (cells, *others), strict=True):
        won = Counter(cell.winner for cell in found)
        stay = sum(one.winner == now.winner == SPLIT for one, now in zip(cells, found, strict=True))
        rows.append((what, *(str(won[way]) for way in (*WAYS, NONE)), str(stay)))
    return Table(("constants", *WAYS, NONE, "splits that stay"), rows)


def details(cells: Sequence[Cell]) -> Table:
    head = ("network", "px", "within ms", "cold", "burst", *(f"{way}, $/M" for way in WAYS))
    return Table((*head, "cheapest", "warm ms", "cold ms", "instances from, queries/h"), [_row(cell) for cell in cells])


def _row(cell: Cell) -> tuple[str, ...]:
    asked, best = cell.question, cell.ranking[0] if cell.answers else None
    since = cell.instances_win_from
    return (
        *(cell.model, str(cell.size), f"{asked.slo_s * MS_PER_S:,.0f}", f"{asked.cold_share:.3g}", f"{asked.burst:,}"),
        *(f"{cell.answers[way].usd * _MILLION:,.2f}" if way in cell.answers else "-" for way in WAYS),
        best.what if best else NONE,
        *(f"{seconds * MS_PER_S:,.0f}" for seconds in ((best.warm_s, best.cold_s) if best else ())),
        *([] if best else ["-", "-"]),
        "-" if since is None else f"{since:,.0f}",
    )


def notes(cells: Sequence[Cell], gang_width: int, profiled_on: str) -> Iterator[str]:
    won = Counter(cell.winner for cell in cells)
    yield f"cheapest of {len(cells)}: " + ", ".join(f"{way} {won[way]}" for way in (*WAYS, NONE) if won[way])
    per_hour = cells[0].question.per_hour
    yield (
        f"{per_hour:,.0f} queries an hour; in time is a warm query and, where more than 1% are cold, a cold one, too; "
        f"of a burst on instances or GPUs the last one"
    )
    yield f"gangs of at most {gang_width} members; an account of 1,000 environments; no minutes of GPUs are free"
    yield f"all modelled, nothing ran: prices and GPUs' speeds assumed; profiles: {profiled_on}"


def command(
    model: Annotated[
        list[str] | None,
        typer.Option(help="A model of the zoo, an ONNX file or module.py:factory; may be repeated. By default four."),
    ] = None,
    size: Annotated[list[int] | None, typer.Option(min=32, help="Height and width; may be repeated.")] = None,
    burst: Annotated[list[int] | None, typer.Option(min=1, help="Queries at once; may be repeated.")] = None,
    cold_share: Annotated[
        list[float] | None,
        typer.Option(min=0, max=1, help="Share of the queries that find nothing warm; may be repeated."),
    ] = None,
    slo_ms: Annotated[
        list[float] | None, typer.Option(min=1, help="Milliseconds for a query; may be repeated.")
    ] = None,
    per_hour: Annotated[float, typer.Option(min=0.01, help="Queries an hour that share what stands.")] = PER_HOUR,
    gang_width: Annotated[
        int, typer.Option(min=MEASURED_MEMBERS, help="Members of a gang at most.")
    ] = MEASURED_MEMBERS,
    gpus: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="Serverless GPUs, as examples/serverless-gpus.toml has them."),
    ] = None,
    picture: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw who wins (.png, .svg or .pdf).")] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Halve and double a constant of Lambda (package_rate); may be repeated."),
    ] = None,
    store: StoreKindOption = "valkey",
    as_markdown: MarkdownOption = False,
    as_json: JsonOption = False,
) -> None:
    """Predict the cheapest way that meets an objective: one function, SnapStart, split, gang, instance, GPU.

    By network, image, queries at once and share of cold queries; nothing runs.
    """
    if picture is not None:
        check_suffix(picture)
    questions = [
        Question(many, share, ms / MS_PER_S, per_hour)
        for ms, share, many in product(slo_ms or OBJECTIVES_MS, cold_share or SHARES, burst or BURSTS)
    ]
    settings, known = load_settings(), read_gpus(gpus)
    facts, profiles = settings.facts(), settings.profiles()
    if unknown := {*(vary or ())} - {*vars(facts.functions)}:
        raise UsageError(f"--vary {min(unknown)}: Lambda has no such constant in aws.toml")
    changes = [*product(vary or (), (0.5, 2))]
    with status_line() as progress:
        asked = model or NETWORKS, size or SIZES, questions, known, store, gang_width, progress
        made = [facts, *(scaled(facts, name, times) for name, times in changes)]
        cells, *others = [measure(one, profiles, *asked) for one in made]
    said = [*notes(cells, gang_width, f"{profiles.machine}; {profiles.date}")]
    records = [cell.as_dict() for cell in cells]
    tables = [winners(cells), details(cells), *([varied(cells, others, changes)] if changes else [])]
    publish(Results(records, tables, said), as_json=as_json, as_markdown=as_markdown)
    if picture is not None:
        from serfer_bench.study.planner.surface_picture import draw  # noqa: PLC0415 - matplotlib is slow to import

        draw(cells, said, picture)
