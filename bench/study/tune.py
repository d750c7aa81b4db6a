"""The result of `serfer study tune`: a machine's profile, how it should batch, and its table for a scenario."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from serfer.cli.shared.options import JsonOption, plan_directory, print_json, status_line
from serfer.cli.shared.terminal import out
from serfer.control.batching import Profile
from serfer.core.errors import UsageError
from serfer.core.units import MS_PER_S
from serfer.files import check_place, write_whole
from serfer.instance.measuring import compare, expected, profile
from serfer.instance.network import Hardware, load_whole, open_network
from serfer.settings import load_settings
from serfer_bench.core.options import ModelOption, PlanOption
from serfer_bench.study.policies.tuning import Tuning, check_objective, tune

DeviceOption = Annotated[str, typer.Option(help="cuda, cpu, or auto: a GPU where ONNX Runtime can use one.")]
PrecisionOption = Annotated[
    str,
    typer.Option(
        help="fp32; fp16, faster on GPUs, and not quite the same answers; or int8, where the plan has it (register)."
    ),
]
ThreadsOption = Annotated[
    int | None, typer.Option(min=1, max=1024, help="Processors that compute; by default all that there are.")
]

_BUDGET_S = 60.0  # for all batches of one size
_LONGEST_NAME = 64
_MIN_BILLING_S = 60  # EC2's
_LARGEST = 1e9  # of a scenario's numbers


@dataclass(frozen=True)
class Machine:
    """The name and price of a machine; a price of None is not known. Raises UsageError."""

    name: str
    usd_per_hour: float | None
    spot_usd_per_hour: float
    boot_s: float

    def __post_init__(self) -> None:
        if not 1 <= len(self.name) <= _LONGEST_NAME or not self.name.isprintable():
            raise UsageError(f"--name is a text of 1 to {_LONGEST_NAME} characters, not {self.name[:80]!r}")
        if self.usd_per_hour is not None and not 0 < self.usd_per_hour <= _LARGEST:
            raise UsageError(f"--usd-per-hour is more than 0 and at most {_LARGEST:g}, not {self.usd_per_hour:g}")
        for option, value in (("--spot-usd-per-hour", self.spot_usd_per_hour), ("--boot-s", self.boot_s)):
            if not 0 <= value <= _LARGEST:
                raise UsageError(f"{option} is 0 to {_LARGEST:g}, not {value:g}")


@dataclass(frozen=True)
class TunedNetwork:
    """A network's profile on a device, and its tuning for an objective; `loss` is relative to the logits' range."""

    model: str
    device: str
    precision: str
    slo_ms: float
    profile: Profile
    tuning: Tuning
    loss: float

    def table(self) -> list[str]:
        rows = [("images", "ms", "images/s")]
        rows += [(str(size), f"{ms:,.1f}", f"{size / ms * MS_PER_S:,.1f}") for size, ms in self.profile.batches]
        return [f"{size:>6}  {ms:>10}  {rate:>10}" for size, ms, rate in rows]

    def remarks(self) -> list[str]:
        tuning = self.tuning
        largest = "" if tuning.most < self.profile.max_batch else ", the largest measured: --most measures more"
        where = f"{self.model} on {self.device}, {self.precision}"
        objective = f"MArk, section 4.3, for {self.slo_ms:g} ms"
        batching = f"N_batch {tuning.most} images{largest}, W_batch {tuning.window_ms:,.1f} ms"
        sustained = f"{tuning.sustained_qps:,.1f} queries/s, in batches of {tuning.sustained_most}"
        return [
            f"{where}: answers differ from fp32 on a processor by {self.loss:.1e} of the logits' range",
            f"{batching}, then {tuning.rate:,.1f} images/s ({objective})",
            f"sustained within the objective: {sustained}",
            f"serve it so: serfer instance --max-batch {tuning.most}",
        ]

    def as_toml(self, machine: Machine) -> str:
        price = "# usd_per_hour is not known: give --usd-per-hour, or --name a machine of the price data"
        if machine.usd_per_hour is not None:
            price = f"usd_per_hour = {machine.usd_per_hour:g}"
        batches = ", ".join(f"[{size}, {round(ms, 3):g}]" for size, ms in self._used)
        lines = [
            "[[instance]]",
            f"name = {json.dumps(machine.name, ensure_ascii=False)}",
            price,
            f"spot_usd_per_hour = {machine.spot_usd_per_hour:g}",
            f"boot_s = {machine.boot_s:g}",
            f"min_billing_s = {_MIN_BILLING_S}",
            f"qps = {round(self.tuning.sustained_qps, 3):g}",
            f"batches = [{batches}]",
        ]
        return "\n".join(lines) + "\n"

    def as_dict(self, machine: Machine) -> dict[str, Any]:
        known = {"model": self.model, "device": self.device, "precision": self.precision, "slo_ms": self.slo_ms}
        batches = [list(batch) for batch in self.profile.batches]
        return {**known, "batches": batches, **asdict(self.tuning), "loss": self.loss, "machine": asdict(machine)}

    @property
    def _used(self) -> list[tuple[int, float]]:
        most = self.tuning.most
        below = [batch for batch in self.profile.batches if batch[0] < most]
        return [*below, (most, self.tuning.batch_ms)]


def measure(
    directory: Path,
    hardware: Hardware,
    slo_ms: float,
    most: int,
    repeats: int,
    progress: Callable[[str], None] = lambda _: None,
) -> TunedNetwork:
    check_objective(slo_ms)
    plan = load_whole(directory)
    progress(f"loading {plan.model}")
    network = open_network(plan, directory, hardware, most)
    loss = compare(plan, network, expected(plan, directory)).error
    measured = profile(plan, network, repeats, budget_s=_BUDGET_S, progress=progress)
    return TunedNetwork(plan.model, network.device, network.precision, slo_ms, measured, tune(measured, slo_ms), loss)


def command(
    slo_ms: Annotated[float, typer.Option("--slo-ms", help="The service-level objective: milliseconds a query.")],
    model: ModelOption = None,
    plan: PlanOption = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "fp32",
    threads: ThreadsOption = None,
    most: Annotated[int, typer.Option(min=1, max=1024, help="The largest batch to measure.")] = 64,
    repeats: Annotated[int, typer.Option(min=1, max=1000, help="Batches of each size; the median counts.")] = 7,
    name: Annotated[str, typer.Option(help="What the machine is called, as an EC2 instance type: g6.xlarge.")] = "here",
    usd_per_hour: Annotated[
        float | None, typer.Option(help="Its price; by default the price data's (SERFER_AWS_FILE), by --name.")
    ] = None,
    spot_usd_per_hour: Annotated[float, typer.Option(min=0, help="Its price on the spot market; 0: none.")] = 0.0,
    boot_s: Annotated[float, typer.Option(min=0, help="Seconds from its launch until it serves.")] = 180.0,
    where: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.toml", help="Also write the [[instance]] table to a file.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure batches of 1, 2, 4, ... images, and say how an instance should batch for an objective (MArk, 4.3)."""
    hardware = Hardware(device, precision, threads)
    if where is not None:
        check_place(where)
    price = usd_per_hour if usd_per_hour is not None else load_settings().facts().instances.get(name)
    machine = Machine(name, price, spot_usd_per_hour, boot_s)
    directory = plan_directory(plan, model)
    with status_line() as progress:
        tuned = measure(directory, hardware, slo_ms, most, repeats, progress)
    if where is not None:
        write_whole(where, tuned.as_toml(machine).encode())
    _show(tuned, machine, as_json=as_json)


def _show(tuned: TunedNetwork, machine: Machine, *, as_json: bool) -> None:
    if as_json:
        print_json(tuned.as_dict(machine))
        return
    out.print("\n".join([*tuned.table(), "", *tuned.remarks(), "", tuned.as_toml(machine).rstrip()]))
