"""Predicted against measured time of whole networks by batch and threads: `serfer study paper infless --figure 8`.

A prediction is that of a cluster's scenario: the network's profile (study/policies/infless/measured.py), for so many
cores, without the 10% that are added to it there. Networks run in a session as instances have them, until some runs
were undisturbed; the shortest counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Annotated, Final

import onnxruntime as ort
import typer

from serfer.cli.shared.options import JsonOption, status_line
from serfer.core.costs.operator_costs import Profiles
from serfer.core.errors import UnavailableError
from serfer.core.units import MS_PER_S
from serfer.settings import load_settings
from serfer.splitter.network.source import load
from serfer.splitter.network.zoo import find
from serfer.splitter.plan_dir.emit import in_one_piece
from serfer.splitter.tiling.from_onnx import from_onnx
from serfer_bench.core.options import ProfilesOption
from serfer_bench.core.tables import Results, Table, publish
from serfer_bench.study.planner.prediction import ErrorOption, check_error
from serfer_bench.study.policies.infless.measured import measured_profile
from serfer_bench.study.policies.infless.profiles import Configuration
from serfer_bench.study.profiling.profile import NETWORKS, given_to, timed, worker_session
from serfer_bench.study.profiling.whole_network import whole_works

WHOLE: Final = ("alexnet", "efficientnet-lite0", "mobilenet-v2", "resnet18", "squeezenet")
BATCHES: Final = (1, 2, 4, 8)
THREADS: Final = (1, 2)
PUBLISHED: Final = "8.6% ResNet-50, 7.8% MobileNet, 9.74% LSTM-2365, below 10% on average"
"""Mean errors of figure 8 and section 3.3."""
_LEAST_RUNS, _QUIET_RUNS = 8, 6
_WAITED: Final = 0.03
"""A run counts as undisturbed where all of its threads together waited for processors for less of its time."""


@dataclass(frozen=True)
class BatchPrediction:
    """A batch of a whole network on some threads: predicted, and measured as the best of `runs`, in milliseconds.

    `quiet` counts the runs whose threads hardly waited for a processor; without one, the time says little.
    """

    model: str
    batch: int
    threads: int
    predicted_ms: float
    measured_ms: float
    runs: int
    quiet: int

    @property
    def error(self) -> float:
        return self.predicted_ms / self.measured_ms - 1


def measure_whole(
    profiles: Profiles,
    networks: Sequence[str] = WHOLE,
    progress: Callable[[str], None] = lambda _: None,
    batches: Sequence[int] = BATCHES,
    threads: Sequence[int] = THREADS,
    max_s: float = 10.0,
) -> list[BatchPrediction]:
    rows = []
    for name in networks:
        progress(f"reading {name}")
        size = find(name).size
        model = in_one_piece(from_onnx(load(name, None)[0].onnx, size, size)).model({})  # as plan directories have it
        network = measured_profile(name, whole_works(from_onnx(model, size, size)), profiles).network
        for count in threads:
            session = worker_session(model, count)
            for batch in batches:
                progress(f"running {name}, {batch} images on {count} threads")
                predicted_ms = network.ms(Configuration(batch, count, 0))
                best_s, runs, quiet = _run(session, batch, max_s)
                rows.append(BatchPrediction(name, batch, count, predicted_ms, best_s * MS_PER_S, runs, quiet))
    return rows


def _run(session: ort.InferenceSession, batch: int, max_s: float) -> tuple[float, int, int]:
    given, times, quiet = given_to(session, batch), list[float](), 0
    ended = time.monotonic() + max_s
    while len(times) < _LEAST_RUNS or (quiet < _QUIET_RUNS and time.monotonic() < ended):
        before = _waited_s()
        times.append(timed(session, given))
        quiet += _waited_s() - before < _WAITED * times[-1]
    return min(times), len(times), quiet


def _waited_s() -> float:
    """Return the seconds that this process' threads together have waited for a processor, by the kernel's count."""
    total = 0
    for file in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError):  # a thread that has ended
            total += int(file.read_text(encoding="ascii").split()[1])
    return total / 1e9


def mean_error(rows: Sequence[BatchPrediction]) -> float:
    return _mean(_counted(rows))


def _counted(rows: Sequence[BatchPrediction]) -> list[BatchPrediction]:
    counted = [one for one in rows if one.quiet]
    if not counted:
        raise UnavailableError("other programs disturbed every measurement; measure again on a quiet machine")
    return counted


def whole_results(rows: Sequence[BatchPrediction], profiles: Profiles) -> Results:
    counted = _counted(rows)
    disturbed = len(rows) - len(counted)
    head = ("network", "batch", "threads", "predicted ms", "measured ms", "error", "quiet/runs")
    body = [
        (
            *(one.model, str(one.batch), str(one.threads), f"{one.predicted_ms:.2f}", f"{one.measured_ms:.2f}"),
            *(f"{one.error:+.1%}", f"{one.quiet}/{one.runs}"),
        )
        for one in rows
    ]
    source = f"{profiles.machine}; {profiles.runtime}; {profiles.date}"
    return Results(
        ({**asdict(one), "error": one.error, "profiles": source} for one in rows),
        [_by_network(rows), Table(head, body)],
        [
            f"mean error {_mean(counted):.1%} of {len(counted)} batches; {disturbed} disturbed, not counted",
            f"published by INFless: {PUBLISHED}",
            f"profiles: {source}",
        ],
    )


def _by_network(rows: Sequence[BatchPrediction]) -> Table:
    profiled = {name for name, _ in NETWORKS}
    batches = sorted({one.batch for one in rows})
    body = []
    for name, threads in dict.fromkeys((one.model, one.threads) for one in rows):
        own = {one.batch: one for one in rows if (one.model, one.threads) == (name, threads)}
        cells = [_error(own[batch]) if batch in own else "" for batch in batches]
        body.append((name, "yes" if name in profiled else "no", str(threads), *cells, _mean_text([*own.values()])))
    for threads in dict.fromkeys(one.threads for one in rows):
        own_rows = [one for one in rows if one.threads == threads]
        body.append(("all", "", str(threads), *("" for _ in batches), _mean_text(own_rows)))
    return Table(("network", "profiled", "threads", *map(_images, batches), "mean error"), body)


def _images(batch: int) -> str:
    return "1 image" if batch == 1 else f"{batch} images"


def _error(one: BatchPrediction) -> str:
    return f"{one.error:+.1%}" if one.quiet else "disturbed"


def _mean_text(rows: Sequence[BatchPrediction]) -> str:
    counted = [one for one in rows if one.quiet]
    return f"{_mean(counted):.1%}" if counted else "-"


def _mean(rows: Sequence[BatchPrediction]) -> float:
    return mean(abs(one.error) for one in rows)


def command(
    model: Annotated[
        list[str] | None, typer.Option(help=f"A model of the zoo; may be repeated. By default {', '.join(WHOLE)}.")
    ] = None,
    profiles: ProfilesOption = None,
    at_most: ErrorOption = None,
    as_json: JsonOption = False,
) -> None:
    """Redo figure 8: the times of whole networks by batch and threads, predicted and measured on this machine."""
    predicted_by = load_settings().profiles(profiles)
    with status_line() as progress:
        rows = measure_whole(predicted_by, model or WHOLE, progress)
    publish(whole_results(rows, predicted_by), as_json=as_json)
    check_error(mean_error(rows), at_most)
