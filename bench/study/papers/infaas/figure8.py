"""Online queries and a map beside each other, as INFaaS's figure 8: each alone, both, and both where the map yields.

    bench ── POST /v1/classify, at each arrival ──▶ serfer serve ── slots ──▶ local workers
      │                                                 ▲ GET /v1/load, every 2 s
      └── starts and, at the end, interrupts ──▶ serfer map --yield-to ──▶ local workers of its own

The load alternates between a low and a high rate. Latencies count from scheduled arrivals. All share this machine's
processors. Windows are those in the map's directory of parts when the load ends.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import aiohttp
import numpy as np
import typer

from serfer.cli.shared.options import JsonOption, status_line
from serfer.control.throttle import Thresholds
from serfer.core.errors import UnavailableError
from serfer_bench.core.arrivals import poisson
from serfer_bench.core.options import ModelOption, PlanOption, RowsOption, plan_of
from serfer_bench.core.photographs import photograph
from serfer_bench.core.processes import serving
from serfer_bench.core.quantiles import percentiles
from serfer_bench.core.results import publish_rows
from serfer_bench.core.workload import Sent, run
from serfer_bench.mapping.images import strip, write_image
from serfer_bench.mapping.runs import command as map_command
from serfer_bench.mapping.runs import kept_parts

Progress = Callable[[str], None]
_IMAGE = (640, 480)
_SIDE, _WINDOW, _WIDTH = 8192, 256, 16  # of the mapped image, its windows and the U-Net
_PATIENCE_S, _END_S, _STARTS_S = 120.0, 60.0, 120.0
_WARM_UPS = 4
_MS_PER_S = 1000.0


@dataclass(frozen=True)
class Load:
    """Poisson arrivals of `low` and `high` queries a second in turn, each for `phase_s` seconds, `phases` in all."""

    low: float
    high: float
    phase_s: float
    phases: int
    slo_ms: float

    @property
    def seconds(self) -> float:
        return self.phase_s * self.phases

    def arrivals(self) -> list[float]:
        times: list[float] = []
        for phase in range(self.phases):
            rate = self.high if phase % 2 else self.low
            times += [phase * self.phase_s + at for at in poisson(rate, self.phase_s, phase)]
        return times


@dataclass(frozen=True)
class Together:
    """A run: what became of online queries, latencies in ms, and of the map's windows.

    `late` are answers later than the objective and queries without one, as a share. `above` is the share of the seconds
    in which /v1/load said a utilisation above the threshold, `windows_above` those that ended between two such seconds.
    """

    run: str
    queries: int
    answered: int
    p50_ms: float
    p99_ms: float
    late: float
    above: float
    windows: int
    windows_above: int
    windows_per_s: float

    @property
    def shown(self) -> dict[str, str]:
        online, offline = self.queries > 0, self.windows > 0
        return {
            "run": self.run,
            "queries": f"{self.queries:,}",
            "answered": f"{self.answered:,}",
            "p50 ms": f"{self.p50_ms:,.0f}" if online else "",
            "p99 ms": f"{self.p99_ms:,.0f}" if online else "",
            "late": f"{self.late:.1%}" if online else "",
            "seconds above 40%": f"{self.above:.0%}" if online else "",
            "windows": f"{self.windows:,}",
            "of these above 40%": f"{self.windows_above:,}" if online and offline else "",
            "windows a second": f"{self.windows_per_s:.2f}",
        }


@dataclass
class _Seen:
    """Utilisation and windows done, with the seconds when they were seen."""

    at: list[tuple[float, float, int]] = field(default_factory=list)

    def above(self, threshold: float) -> tuple[float, int]:
        """Return the share of observations above a threshold, and the windows that ended while both ends were."""
        over = [share > threshold for _, share, _ in self.at]
        pairs = pairwise(self.at)
        ended = sum(late[2] - early[2] for early, late in pairs if min(early[1], late[1]) > threshold)
        return sum(over) / max(1, len(over)), ended


@dataclass(frozen=True)
class Testbed:
    """The online plan, and everything that a map needs, in a directory."""

    online: Path
    home: Path
    image: bytes

    def parts(self, name: str) -> Path:
        return self.home / f"{name}.tif.parts"

    @contextmanager
    def mapping(self, name: str, options: Sequence[str]) -> Iterator[None]:
        """Run a map within the block, from its first window on, and interrupt it at its end."""
        more = ["--set", "concurrency=2", *options]
        words = map_command(self.home / "image.tif", self.home / "plan", self.home / f"{name}.tif", more)
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:  # noqa: S603
            try:
                self._wait(process, name)
                yield
                if process.poll() is not None:
                    raise UnavailableError(f"the map ended with exit code {process.returncode} before the load did")
            finally:
                process.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_END_S)
                process.kill()

    def windows(self, name: str) -> int:
        return kept_parts(self.parts(name))

    def _wait(self, process: subprocess.Popen[bytes], name: str) -> None:
        end = time.monotonic() + _STARTS_S
        while not self.windows(name):
            if process.poll() is not None or time.monotonic() > end:
                raise UnavailableError("the map did not start: run serfer map by itself")
            time.sleep(0.1)


_RUNS: Sequence[tuple[str, bool, Sequence[str] | None]] = (
    ("online alone", True, None),
    ("offline alone", False, ()),
    ("both", True, ()),
    ("both, yielding", True, ("--yield-to",)),
)
"""Each run: its name, whether there is online load, and the map's options, None where there is no map."""


def measure(testbed: Testbed, load: Load, rounds: int, progress: Progress) -> list[Together]:
    """Run the load alone, the map alone, and both without and with yielding, each with a driver of its own.

    Every other round has them in the opposite order: what else the machine does changes with time.
    """
    rows: list[Together] = []
    turns = [run for number in range(rounds) for run in (reversed(_RUNS) if number % 2 else _RUNS)]
    for number, (name, online, options) in enumerate(turns):
        progress(f"{name}, {number + 1} of {len(turns)}")
        with serving("serve", testbed.online, ["--workers", "local"]) as report:
            url = str(report["url"])
            asyncio.run(_warm(url, testbed.image))
            given = [*options, url] if options else []
            if options is None:
                rows.append(_one(testbed, load, name, url, f"run-{number}", online=online))
                continue
            with testbed.mapping(f"run-{number}", given):
                rows.append(_one(testbed, load, name, url, f"run-{number}", online=online))
    return rows


def _one(testbed: Testbed, load: Load, name: str, url: str, files: str, *, online: bool) -> Together:
    before = testbed.windows(files)
    seen = _Seen()
    arrivals = load.arrivals() if online else []
    ends = asyncio.run(_run(testbed, load, url, files, arrivals, seen))
    windows = seen.at[-1][2] - before if seen.at else 0
    times = [end.latency * _MS_PER_S for end in ends if end.result == HTTPStatus.OK]
    p50, p99 = percentiles(times, 50, 99)
    in_time = sum(each <= load.slo_ms for each in times)
    above, windows_above = seen.above(Thresholds.utilisation)
    return Together(
        run=name,
        queries=len(ends),
        answered=len(times),
        p50_ms=p50,
        p99_ms=p99,
        late=1 - in_time / len(ends) if ends else 0.0,
        above=above,
        windows=windows,
        windows_above=windows_above,
        windows_per_s=windows / load.seconds,
    )


async def _run(
    testbed: Testbed, load: Load, url: str, files: str, arrivals: Sequence[float], seen: _Seen
) -> list[Sent[int]]:
    async with aiohttp.ClientSession() as http:

        def send(_: int) -> asyncio.Task[int]:
            return asyncio.create_task(_classify(http, url, testbed.image))

        watching = asyncio.create_task(_watch(http, url, load.seconds, lambda: testbed.windows(files), seen))
        ends: list[Sent[int]] = await run(send, arrivals, patience_s=_PATIENCE_S)
        await watching
        return ends


async def _watch(
    http: aiohttp.ClientSession, url: str, seconds: float, windows: Callable[[], int], seen: _Seen
) -> None:
    start = time.perf_counter()
    while (now := time.perf_counter() - start) < seconds:
        async with http.get(f"{url}/v1/load") as reply:
            seen.at.append((now, float((await reply.json())["utilisation"]), windows()))
        await asyncio.sleep(1.0)


async def _classify(http: aiohttp.ClientSession, url: str, image: bytes) -> int:
    async with http.post(f"{url}/v1/classify", data=image, headers={"Content-Type": "image/jpeg"}) as reply:
        await reply.read()
        return reply.status


async def _warm(url: str, image: bytes) -> None:
    async with aiohttp.ClientSession() as http:
        for _ in range(2):
            await asyncio.gather(*(_classify(http, url, image) for _ in range(_WARM_UPS)))


def _prepare(home: Path, online: Path) -> Testbed:
    import torch  # noqa: PLC0415 - slow to import

    import serfer  # noqa: PLC0415 - its public functions import torch
    from serfer_bench.pipeline.unet import Unet  # noqa: PLC0415 - imports torch

    write_image(home / "image.tif", (_SIDE, _SIDE))
    torch.manual_seed(0)
    unet = Unet(_WIDTH).eval()
    unet.centre(torch.from_numpy(strip(0, _WINDOW, _WINDOW)[None].astype(np.float32)))
    serfer.map_plan(unet, [(_SIDE, _SIDE)], home / "plan", window=_WINDOW, reduce="argmax")
    return Testbed(online, home, photograph(_IMAGE))


def command(
    model: ModelOption = None,
    plan: PlanOption = None,
    low: Annotated[float, typer.Option(help="Queries a second in every other phase.")] = 1.0,
    high: Annotated[float, typer.Option(help="Queries a second in the phases between.")] = 8.0,
    phase_s: Annotated[float, typer.Option(min=1, help="Seconds of a phase.")] = 20.0,
    phases: Annotated[int, typer.Option(min=1, help="How many phases there are.")] = 6,
    slo_ms: Annotated[float, typer.Option(min=1, help="The latency objective.")] = 500.0,
    rounds: Annotated[int, typer.Option(min=1, help="How often each is run, in turn.")] = 1,
    out: RowsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Serve online queries and map an image at once: each alone, both, and both with --yield-to (INFaaS, figure 8)."""
    load = Load(low, high, phase_s, phases, slo_ms)
    with status_line() as progress, tempfile.TemporaryDirectory(prefix="serfer-offline-") as home:
        progress("preparing")
        rows = measure(_prepare(Path(home), plan_of(model, plan)), load, rounds, progress)
    notes = [
        f"{low:g} and {high:g} queries a second in turn, each for {phase_s:g} s",
        f"late: after {slo_ms:g} ms, or no answer",
        "above 40%: while /v1/load says that more than INFaaS's threshold of the slots are in use",
    ]
    publish_rows(rows, out, as_json=as_json, notes=notes)
