"""What MArk asks of a forecast of the load, and forecasters by name.

They are built in, trained (a file), plugged in, or MODULE:Class.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from serfer.control.plug_ins import load, unchecked
from serfer.core.errors import InputError, UsageError
from serfer_bench.study.policies.mark.lstm import LstmForecaster, read_lstm
from serfer_bench.study.policies.mark.seasonal import SeasonalSmoothing

Floats = NDArray[np.float64]
GROUP: Final = "serfer.forecasters"
TRAINED: Final = ".npz"


class Forecaster(Protocol):
    """Forecasts the highest rates of the next units of time from those of the past; pure and deterministic.

    It is asked once a unit, where queries are routed: an answer that takes longer than milliseconds is late.
    """

    def observe(self, peak: float) -> None:
        """Take in the highest rate, in queries/s, of the unit of time that is over."""
        ...

    def forecast(self, units: int) -> Floats:
        """Return the highest rates expected in each of the next units: an array (units,) in queries/s."""
        ...


FORECASTERS: Final[dict[str, Callable[[float], Forecaster]]] = {"seasonal": SeasonalSmoothing.of_units}
MINUTE_S: Final = 60.0


def make_forecaster(name: str, unit_s: float = MINUTE_S) -> Forecaster:
    """Return a forecaster: built in, plugged in by the entry point group `serfer.forecasters`, or MODULE:Class.

    Its units last `unit_s` seconds, which one of the user's own is not told.

    A name that ends in .npz is a file of `serfer study train-forecaster`: MArk's LSTM, for units of a minute. Raises
    UsageError: none has that name or forecasts such units, or what the user named is none; InputError for a file that
    is not a trained LSTM.
    """
    if (make := FORECASTERS.get(name)) is not None:
        return make(unit_s)
    if name.endswith(TRAINED):
        if unit_s != MINUTE_S:
            raise UsageError(f"{name:.80}: a trained LSTM forecasts minutes: p_u is {MINUTE_S:g} with it")
        return LstmForecaster(read_lstm(Path(name)))
    methods = ("observe", "forecast")
    plug_in = load("forecaster", GROUP, name, methods, {"seasonal": SeasonalSmoothing}, f"FILE{TRAINED}, ")
    forecaster: Forecaster = plug_in.make(checks=dict.fromkeys(methods, unchecked))
    return forecaster


def checked(forecast: Any, units: int) -> Floats:  # noqa: ANN401 - that is what is checked
    """Return a forecast as an array (units,) of rates that are not negative; raises InputError for what is none."""
    try:
        rates = np.asarray(forecast, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"a forecast of {type(forecast).__name__} is not an array of rates") from error
    if rates.shape != (units,) or not np.isfinite(rates).all():
        raise InputError(f"a forecast has the shape {rates.shape} or infinite rates: it should be {units} finite ones")
    return np.maximum(rates, 0.0)
