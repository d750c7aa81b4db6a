"""`serfer study train-forecaster`: MArk's LSTM, trained on the past of a load."""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from serfer.cli.shared.display import print_table
from serfer.cli.shared.options import JsonOption, print_json, status_line
from serfer.cli.shared.terminal import err, out
from serfer.core.errors import UsageError


def train_forecaster(
    load: Annotated[str, typer.Argument(help="A file of a load, or a generator, as serfer study simulate takes it.")],
    out_file: Annotated[Path, typer.Option("--out", help="The file to write; its name ends in .npz.")],
    share: Annotated[
        float, typer.Option(min=0.05, max=1, help="The first part of the load to train on; the rest judges.")
    ] = 0.5,
    skip_zeros_over: Annotated[
        float, typer.Option(help="Cut out times without queries of at least so many seconds.")
    ] = math.inf,
    epochs: Annotated[int, typer.Option(min=1, max=1000, help="Times that the windows are gone through.")] = 12,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of a generator, and of the first weights.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Train MArk's LSTM on the minutes of a load, and compare its forecasts of the rest with the seasonal ones.

    serfer study simulate --policy mark:forecaster=FILE.npz forecasts with it. Needs torch (extra split).
    """
    from serfer.files import check_place, write_whole  # noqa: PLC0415 - same
    from serfer_bench.study.forecasting.errors import errors_of, peaks_of  # noqa: PLC0415 - same
    from serfer_bench.study.forecasting.lstm_training import LstmOptions, train_lstm  # noqa: PLC0415 - same
    from serfer_bench.study.policies.mark.forecaster import TRAINED, Forecaster  # noqa: PLC0415 - the command line starts fast
    from serfer_bench.study.policies.mark.lstm import LstmForecaster  # noqa: PLC0415 - same
    from serfer_bench.study.policies.mark.seasonal import SeasonalSmoothing  # noqa: PLC0415 - same
    from serfer_bench.study.sim.simulate import LoadSpec  # noqa: PLC0415 - same

    if not out_file.name.endswith(TRAINED):
        raise UsageError(f"--out is a file whose name ends in {TRAINED}, not {str(out_file)[:80]!r}")
    check_place(out_file)
    with status_line() as progress:
        peaks = peaks_of(LoadSpec(load, skip_zeros_over_s=skip_zeros_over).read(seed))
        seen, judged = peaks[: int(len(peaks) * share)], peaks[int(len(peaks) * share) :]
        options, began = LstmOptions(epochs=epochs, seed=seed), time.perf_counter()
        weights = train_lstm(seen, options, progress)
        took_s = time.perf_counter() - began
        write_whole(out_file, weights.to_bytes())
        progress("judging")
        forecasters: dict[str, Forecaster] = {"seasonal": SeasonalSmoothing(), "lstm": LstmForecaster(weights)}
        enough = len(judged) >= 2 * options.horizon
        found = {name: errors_of(one, seen, judged, options.horizon) for name, one in forecasters.items() if enough}
    if as_json:
        errors = {name: asdict(one) for name, one in found.items()}
        print_json(
            {"file": str(out_file), "minutes": len(seen), "judged": len(judged), "train_s": took_s, "errors": errors}
        )
        return
    err.print(f"trained on {len(seen):,} minutes in {took_s:.1f} s: {out_file}", soft_wrap=True)
    if found:
        out.print("mean absolute error over the mean peak:")
        rows = (
            (name, *(f"{value:.1%}" for value in (error.next_unit, error.fifth_unit, error.all_units)))
            for name, error in found.items()
        )
        print_table(["forecast", "next minute", "5th minute", "next hour"], rows)
