"""Trains MArk's LSTM offline, with torch (extra `split`): `serfer study train-forecaster`, a process of its own.

peaks ──> windows, each with the hour that follows ──> Adam on the squared error of logarithms ──> the epoch that
forecasts the last tenth of the peaks best ──> plain arrays
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from serfer.core.errors import InputError
from serfer.cost.loads.steps import Progress, silent
from serfer.cost.loads.trace import Floats
from serfer.extras import named_extras
from serfer_bench.study.policies.mark.lstm import LstmWeights, mean_of, relative

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class LstmOptions:
    """The network's sizes, and how it is trained; `window` and `horizon` are an hour of minutes."""

    window: int = 60
    horizon: int = 60
    hidden: int = 32
    epochs: int = 12
    batch: int = 256
    windows_an_epoch: int = 8192
    rate: float = 3e-3
    seed: int = 0


@named_extras()
def train_lstm(peaks: Floats, options: LstmOptions | None = None, progress: Progress = silent) -> LstmWeights:
    """Train a network on peaks (units,), on one core; the same peaks and options give the same network."""
    import torch  # noqa: PLC0415 - an extra

    chosen = options or LstmOptions()
    inputs, outputs = _examples(peaks, chosen)
    x, y = (torch.from_numpy(one.astype(np.float32)) for one in (inputs, outputs))
    judged = max(1, len(x) // 10)
    learnt = len(x) - judged - chosen.horizon  # windows between the two share minutes with what is judged
    if learnt < chosen.batch:
        least = int((chosen.batch + 2 * chosen.horizon + chosen.window) / 0.9) + 1
        raise InputError(f"a load of {len(peaks):,} minutes is too short to train on: give {least:,} at least")
    torch.set_num_threads(1)
    torch.manual_seed(chosen.seed)
    model = torch.nn.ModuleDict(
        {
            "lstm": torch.nn.LSTM(1, chosen.hidden, batch_first=True),
            "head": torch.nn.Linear(chosen.hidden, chosen.horizon),
        }
    )
    best, weights = np.inf, _weights(model, chosen)
    adam = torch.optim.Adam(model.parameters(), lr=chosen.rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, chosen.epochs)
    for epoch in range(chosen.epochs):
        order = torch.randperm(learnt)[: chosen.windows_an_epoch]
        for chunk in torch.split(order, chosen.batch):
            adam.zero_grad()
            loss = (_forecast(model, x[chunk]) - y[chunk]).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adam.step()
        schedule.step()
        with torch.no_grad():
            missed = float((_forecast(model, x[-judged:]) - y[-judged:]).square().mean())
        progress(f"epoch {epoch + 1} of {chosen.epochs}: {missed:.4f}")
        if missed < best:
            best, weights = missed, _weights(model, chosen)
    return weights


def _examples(peaks: Floats, chosen: LstmOptions) -> tuple[Floats, Floats]:
    span = chosen.window + chosen.horizon
    if len(peaks) < span:
        return np.zeros((0, chosen.window)), np.zeros((0, chosen.horizon))
    spans = np.lib.stride_tricks.sliding_window_view(peaks, span)
    before, after = spans[:, : chosen.window], spans[:, chosen.window :]
    mean = mean_of(before)
    x = relative(before, mean)
    return x, relative(after, mean) - x[:, -1:]


def _forecast(model: torch.nn.ModuleDict, x: torch.Tensor) -> torch.Tensor:
    hidden, _ = model["lstm"](x.unsqueeze(-1))
    made: torch.Tensor = model["head"](hidden[:, -1])
    return made


def _weights(model: torch.nn.ModuleDict, chosen: LstmOptions) -> LstmWeights:
    arrays = {name: one.detach().double().numpy().copy() for name, one in model.named_parameters()}
    return LstmWeights(
        window=chosen.window,
        taken=arrays["lstm.weight_ih_l0"][:, 0],
        recurrent=arrays["lstm.weight_hh_l0"],
        bias=arrays["lstm.bias_ih_l0"] + arrays["lstm.bias_hh_l0"],
        head=arrays["head.weight"],
        head_bias=arrays["head.bias"],
    )
