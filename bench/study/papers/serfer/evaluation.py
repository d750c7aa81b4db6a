"""SerFer's Table 1 and figures 5 to 8, 10 and 12 to 14, redone on this machine.

    Table 1                    figures                        command
    bursts                     10 and 12, of parts 5 to 8     --figure 10, --figure 12; --figure 5 to --figure 8
    one every 1 to 0.02 s      13                             --figure 13
    Step Functions             14                             --figure 14
    all of them                                               --table 1

Figures 9 and 11, of a GPU, are `bench instance` (bench/serving/instance.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Final

import typer

from serfer.cli.shared.options import JsonOption, status_line
from serfer.core.errors import QueryError, UsageError
from serfer.settings import load_settings
from serfer_bench.core.options import NetworkOption, PlanOption, network
from serfer_bench.core.part_times import LAYER, MERGE, MISS, POLL, READ, SPLIT, WRITE
from serfer_bench.core.quantiles import percentiles
from serfer_bench.core.results import stamp_now
from serfer_bench.core.tables import Results, Row, publish, table_of
from serfer_bench.load.systems import SYSTEMS
from serfer_bench.study.papers.serfer.loads import (
    BURST,
    BURSTS,
    ONE_BURST,
    SHARES,
    STEP_FUNCTIONS,
    UNIFORM,
    Load,
    Measured,
    limited,
    load_rows,
    measure,
)

_PARTS: Final = {
    READ: (5, "95%: less than 1,000"),
    MISS: (5, "counts as a read"),
    WRITE: (5, "negligible"),
    LAYER.format(1): (6, "mean 124 (Table 2)"),
    LAYER.format(2): (6, "mean 116 (Table 2)"),
    LAYER.format(3): (6, "95%: about 2,500; mean 3,881 (Table 2)"),
    LAYER.format(4): (6, "within layer 3"),
    POLL: (7, "95%: about 1,000"),
    SPLIT: (8, "negligible, more than merge"),
    MERGE: (8, "negligible"),
}
"""The figure of each part, and what the paper's text says of it (section 6.2), in ms: it prints no other number."""


@dataclass(frozen=True)
class PartRow:
    """What a part of a query took in a burst, in ms: quantiles of all that were timed, and what the paper says."""

    figure: int
    part: str
    system: str
    images: int
    timed: int
    ms: tuple[float, ...]
    published: str

    @property
    def shown(self) -> dict[str, str]:
        return {
            "figure": f"{self.figure}",
            "part": self.part,
            "system": self.system,
            "burst": f"{self.images:,}",
            "timed": f"{self.timed:,}",
            **{
                f"{share}% ms": f"{ms:,.3f}" if ms < 1 else f"{ms:,.1f}"
                for share, ms in zip(SHARES, self.ms, strict=True)
            },
            "published, ms": self.published,
        }


def part_rows(measured: Sequence[Measured]) -> Iterator[PartRow]:
    times: dict[str, dict[int, Measured]] = {}
    for one in measured:
        if one.load.traffic == BURST and any(log.times for log in one.logs):
            times.setdefault(one.system, {})[one.load.images] = one
    shared = [images for images in next(iter(times.values()), ()) if all(images in bursts for bursts in times.values())]
    images = max(shared, default=0)
    for part, (figure, published) in _PARTS.items():
        for system, bursts in times.items():
            values = [ms for log in bursts[images].logs for ms in log.times.get(part, ())] if shared else []
            if values:
                yield PartRow(figure, part, system, images, len(values), tuple(percentiles(values, *SHARES)), published)


def _command(summary: str, loads: Sequence[Sequence[Load]], *, rows: bool, parts: bool) -> Callable[..., None]:
    def command(
        model: NetworkOption = None,
        plan: PlanOption = None,
        system: Annotated[
            list[str] | None, typer.Option(help="Of the systems that are compared, these alone; may be repeated.")
        ] = None,
        most: Annotated[int, typer.Option(min=1, help="Leave out what is beyond so many images of a load.")] = 1000,
        concurrency: Annotated[int, typer.Option(min=1, max=1000, help="Invocations at once.")] = 4,
        as_json: JsonOption = False,
    ) -> None:
        if unknown := {*(system or ())} - {*SYSTEMS}:
            raise UsageError(f"systems are {', '.join(SYSTEMS)}, not {', '.join(sorted(unknown))!r:.80}")
        groups = [group for one in loads if (group := limited(one, most, system or ()))]
        if not groups:
            raise UsageError(f"{', '.join(system or ())} is not a system of this figure")
        with status_line() as progress:
            settings = load_settings()
            directory = network(model, plan, settings, progress)
            measured = [one for group in groups for one in measure(directory, group, concurrency, settings, progress)]
        found = load_rows(measured)
        tables: list[Sequence[Row]] = [found] if rows else []
        tables += [list(part_rows(measured))] if parts else []
        records = [asdict(row) for table in tables for row in table]
        publish(Results(records, [table_of(table) for table in tables if table], stamp_now().lines), as_json=as_json)
        if failed := sum(row.failed for row in found):
            raise QueryError(f"{failed:,} queries had no right answer")

    command.__doc__ = summary
    return command


table_1 = _command(
    "Redo Table 1: bursts, uniform traffic and Step Functions, and what parts of the bursts' queries take.",
    ((*BURSTS, *UNIFORM), STEP_FUNCTIONS),
    rows=True,
    parts=True,
)
parts = _command("Time the parts of queries in a burst (figures 5 to 8).", (ONE_BURST,), rows=False, parts=True)
bursts = _command(
    "Measure throughput and latency by burst size (figures 10 and 12).", (BURSTS,), rows=True, parts=False
)
uniform = _command("Measure latencies of uniform traffic (figure 13).", (UNIFORM,), rows=True, parts=False)
step_functions = _command("Measure latencies of Step Functions (figure 14).", (STEP_FUNCTIONS,), rows=True, parts=False)
