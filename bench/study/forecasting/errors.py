"""How well forecasters forecast a load: MArk's peaks of it, and by how much forecasts miss them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from serfer.core.errors import InputError
from serfer.cost.loads.steps import steps_of
from serfer.cost.loads.trace import Floats, Trace
from serfer_bench.study.policies.mark.forecaster import Forecaster, checked
from serfer_bench.study.policies.mark.options import MarkOptions
from serfer_bench.study.policies.mark.peaks import PeakSampler


def peaks_of(trace: Trace, options: MarkOptions | None = None) -> Floats:
    chosen = options or MarkOptions()
    sampler, steps = PeakSampler(chosen.unit_s, chosen.sample_s), steps_of(trace, chosen.sample_s)
    peaks: list[float] = []
    for seconds, rate in zip(steps.durations_s.tolist(), steps.rates.tolist(), strict=True):
        peaks += sampler.add(seconds, rate)
    return np.array(peaks)


@dataclass(frozen=True)
class ForecastErrors:
    """Mean absolute errors of forecasts, as shares of the mean peak: of the next unit, the 5th, and of all units."""

    next_unit: float
    fifth_unit: float
    all_units: float


def errors_of(forecaster: Forecaster, seen: Floats, judged: Floats, units: int) -> ForecastErrors:
    """Return the errors of forecasts of `units` units, made in each unit of `judged` after having observed `seen`."""
    count = len(judged) - units
    if count < units:
        raise InputError(f"the part of the load that is judged has {len(judged)} minutes: it should have {2 * units}")
    for peak in seen.tolist():
        forecaster.observe(peak)
    missed = np.zeros(units)
    for at in range(count):
        forecaster.observe(float(judged[at]))
        missed += np.abs(checked(forecaster.forecast(units), units) - judged[at + 1 : at + 1 + units])
    shares = missed / count / max(float(judged.mean()), 1e-9)
    return ForecastErrors(float(shares[0]), float(shares[min(4, units - 1)]), float(shares.mean()))
