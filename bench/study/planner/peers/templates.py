"""MPHB's templates: Wide-ResNets in fixed stages of two workers each, whose vCPUs its provisioner chooses.

Coefficients are those of AlirezaAbedinii/MPHB-serverless-inference at 37fed57 (`provisioning/conf/config3.json` and
`config2.json`, batches of one; prices of Alibaba from `harmony/core/cost.py`); the code is ours. A worker takes
a * exp(b * vCPUs) + c milliseconds, a stage as long as its slowest worker and 190 ms to call them, a query 8 ms more.
Its program goes from stage to stage with a ternary search; here the search over all vCPUs in steps of 0.05 is exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

import numpy as np

from serfer.core.costs.cost_model import Floats
from serfer.core.units import MS_PER_S
from serfer.splitter.planning.search import COST, Edge, Search

_VCPU_USD, _GB_USD, _REQUEST_USD = 0.000016, 0.000016 * 0.15, 0.00000012  # of a second, of a request
_CALL_MS, _QUERY_MS = 190.0, 8.0
_STEP, _MOST_VCPUS = 0.05, 3.5
_GB_PER_VCPU = 4


@dataclass(frozen=True)
class Worker:
    """A worker's least memory in GB, and its curve (a, b, c)."""

    least_gb: float
    curve: tuple[float, float, float]

    def ms(self, vcpus: Floats) -> Floats:
        scale, rate, rest = self.curve
        return np.asarray(scale * np.exp(rate * vcpus) + rest, dtype=np.float64)


@dataclass(frozen=True)
class Template:
    """Stages of workers with as many vCPUs each, the least of those by stage, and the memory of a 0.5 vCPU master."""

    stages: tuple[tuple[Worker, ...], ...]
    least_vcpus: tuple[float, ...]
    master_gb: float

    def best(self, most_ms: float) -> Provision | None:
        search = Search([*self._edges()], (0, 0), [(0, len(self.stages))], 1, 1)
        chain = search.best(replace(COST, most_seconds=most_ms))
        if chain is None:
            return None
        chosen = tuple(float(self._choices(at)[row]) for at, (_, row) in enumerate(chain.steps))
        return Provision(chosen, chain.seconds, chain.usd)

    def price(self, vcpus: Sequence[float]) -> Provision:
        rows = [int(np.abs(self._choices(at) - chosen).argmin()) for at, chosen in enumerate(vcpus)]
        picked = [(edge.seconds[row, 0], edge.usd[row, 0]) for edge, row in zip(self._edges(), rows, strict=True)]
        return Provision(tuple(vcpus), float(sum(ms for ms, _ in picked)), float(sum(usd for _, usd in picked)))

    def _choices(self, stage: int) -> Floats:
        """Return the vCPUs of a stage, whose memory is at most four times as many GB."""
        need = max(worker.least_gb for worker in self.stages[stage]) / _GB_PER_VCPU
        first = ceil(max(self.least_vcpus[stage], need) / _STEP - 1e-9)
        return np.asarray(np.arange(first, round(_MOST_VCPUS / _STEP) + 1) * _STEP, dtype=np.float64)

    def _edges(self) -> Iterator[Edge]:
        """Yield the stages, in milliseconds in place of seconds; the first has what a query takes besides."""
        master = 0.5 * _VCPU_USD + self.master_gb * _GB_USD
        for at, workers in enumerate(self.stages):
            vcpus = self._choices(at)
            memory = np.maximum(vcpus, max(worker.least_gb for worker in workers))
            times = np.array([worker.ms(vcpus) for worker in workers])
            ms = times.max(axis=0) + _CALL_MS + (0 if at else _QUERY_MS)
            rate = (vcpus * _VCPU_USD + memory * _GB_USD) / MS_PER_S
            usd = rate * times.sum(axis=0) + len(workers) * _REQUEST_USD + master / MS_PER_S * ms
            usd += 0 if at else _REQUEST_USD
            yield Edge((0, at), (0, at + 1), 0, 0, 0, ms[:, None], usd[:, None], None)


@dataclass(frozen=True)
class Provision:
    """The vCPUs of each stage's workers, and the predicted milliseconds and dollars of a query."""

    vcpus: tuple[float, ...]
    ms: float
    usd: float

    @property
    def cells(self) -> tuple[str, str, str]:
        return ", ".join(f"{vcpus:.2f}" for vcpus in self.vcpus), f"{self.ms:.0f}", f"{1e6 * self.usd:.2f}"


TEMPLATES: Final[Mapping[str, Template]] = {
    "wrn50-4": Template(
        (
            (
                Worker(2, (12478.422207777212, -5.390206726546401, 501.74822222900667)),
                Worker(2, (12710.121830643531, -5.363073327414448, 519.4987366332335)),
            ),
            (
                Worker(3, (408284.4615246758, -10.121801042553008, 463.5016752183184)),
                Worker(3, (63649.20798780844, -7.315140391903497, 444.8752437448646)),
            ),
        ),
        (0.5, 0.75),
        2.0,
    ),
    "wrn50-5": Template(
        (
            (
                Worker(2, (8710.7085856847, -4.965280876555562, 828.7367627225481)),
                Worker(2, (160829.14103409534, -8.214296178500673, 792.2012988657068)),
            ),
            (
                Worker(4, (3.6638574314280714e19, -52.712686783211076, 757.875626639285)),
                Worker(4, (1.1200159234706186e20, -53.76979225043386, 769.6089448310819)),
            ),
            (
                Worker(3, (1.327435210162073e18, -49.90572133413484, 341.46355679897647)),
                Worker(3, (2.2837813784918252e18, -50.14604029992699, 339.46352127295177)),
            ),
        ),
        (0.5, 0.75, 0.75),
        1.0,
    ),
}
THEIR_VCPUS: Final[Mapping[str, Mapping[float, tuple[float, ...]]]] = {
    "wrn50-4": {1.5: (1.0, 1.0), 2.0: (1.0, 1.0), 3.3: (1.0, 1.0)},
    "wrn50-5": {3.3: (0.9, 1.0, 0.8)},
}
"""What MPHB's provisioner chose for a query a second by objective in seconds, run on 2026-11-28; others kept none."""
SLOS_S: Final = (0.6, 0.8, 1.5, 2.0, 3.3)
"""The objectives of `config2.json`, and the middle one of `config.json`."""


def rows(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    none = "none", "-", "-"
    for name in names:
        if name not in TEMPLATES:
            continue
        template = TEMPLATES[name]
        for slo in SLOS_S:
            chosen = THEIR_VCPUS[name].get(slo)
            theirs, ours = template.price(chosen) if chosen else None, template.best(MS_PER_S * slo)
            saving = f"{1 - ours.usd / theirs.usd:.1%}" if theirs and ours else "-"
            yield name, f"{slo:g}", *(theirs.cells if theirs else none), *(ours.cells if ours else none), saving


HEAD: Final = (
    *("network", "within s", "MPHB's vCPUs by stage", "its ms", "its $/M"),
    *("ours: vCPUs by stage", "ms", "$/M", "cheaper"),
)
