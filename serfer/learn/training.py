"""Learns a model of values from the past of a load: fitted policy iteration.

What decisions save follows from later decisions, so these are improved in rounds. The first round's are the plain
rule's. Of each round's savings two models learn, each from every other quarter of a day, and decide for the quarters
that they have not seen: decisions of a model on what it was trained with would know the future. The last round's
model is the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from serfer.control.values.features import (
    NAMES,
    Bools,
    Floats,
    burst_features,
    level_features,
    load_features,
)
from serfer.control.values.load_history import DAY, SLOT_S
from serfer.control.values.load_record import LoadRecord
from serfer.control.values.value_model import model_bytes
from serfer.extras import named_extras
from serfer.learn.cost_to_go import plain_decisions, savings

BACKGROUND: Final = "background"
"""The argument of a process that learns at a low priority."""
RECIPE: Final = 2
"""Another number for another result from the same load: models are kept by it."""
_ROUNDS: Final = 2
_ROWS: Final = 400_000
_AT_ONCE: Final = 4 * DAY  # slots whose features are calculated at once: in float64 all would take twice the memory
_UNSETTLED: Final = DAY // 4  # slots before the end, whose savings are not over
_BLOCK: Final = DAY // 4
_HELD: Final = 5  # slots for which a decision holds, in what later decisions cost
_MOST_LEVELS: Final = 32
_SEED: Final = 1
_TREES: Final = 120
_PARAMETERS: Final[dict[str, Any]] = {
    "objective": "regression",
    "learning_rate": 0.06,
    "num_leaves": 31,
    "min_data_in_leaf": 200,
    "feature_fraction": 1.0,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
    "lambda_l2": 10.0,
    "max_bin": 255,
    "use_missing": False,
    "num_threads": 1,
    "seed": _SEED,
    "deterministic": True,
    "force_row_wise": True,
    "verbosity": -1,
}


_Float32s = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class _Level:
    """A level's units, the features of its bursts at every slot, and the decisions before each slot."""

    number: int
    units: Floats
    bursts: _Float32s
    keep: Bools
    start: Bools


def train(record: LoadRecord) -> bytes:
    """Return the file of a model that was learnt from a load; the same load gives the same bytes.

    Raises MissingExtraError without LightGBM.
    """
    facts = record.facts
    shares = facts.shares(record.rates)
    slots = np.arange(len(shares))
    now_s: Floats = np.asarray(record.end_s - (len(shares) - 1 - slots) * SLOT_S, np.float64)
    load = np.concatenate(
        [
            load_features(facts, shares, part, now_s[part]).astype(np.float32)
            for part in np.array_split(slots, len(slots) // _AT_ONCE + 1)
        ]
    )
    count = min(max(math.ceil(float(shares.max(initial=0.0))), 1), _MOST_LEVELS)
    levels = [_plain_level(record, shares, number, slots) for number in range(count)]
    draw = np.random.default_rng(_SEED)
    for _ in range(_ROUNDS - 1):
        _improve(load, levels, facts.boot_slots, draw)
    chosen, *savings_of = _sample(levels, facts.boot_slots, draw)
    rows = _all_rows(load, levels, chosen)
    return model_bytes(facts, len(shares), *(_fitted(rows, each).model_to_string() for each in savings_of))


def _improve(load: _Float32s, levels: Sequence[_Level], boot_slots: int, draw: np.random.Generator) -> None:
    """Replace all levels' decisions by those of models, each of which decides for the blocks that it has not seen."""
    chosen, *savings_of = _sample(levels, boot_slots, draw)
    rows, slots = _all_rows(load, levels, chosen), np.arange(len(load))
    block = np.concatenate(chosen) // _BLOCK % 2
    for half in (0, 1):
        seen = block != half
        models = [_fitted(rows[seen], each[seen]) for each in savings_of]
        for level in levels:
            _redecide(load, level, models, slots[(slots // _BLOCK % 2 == half) & (slots % _HELD == 0)])


def _plain_level(record: LoadRecord, shares: Floats, number: int, slots: NDArray[np.int64]) -> _Level:
    facts = record.facts
    units = np.clip(shares - number, 0.0, 1.0) * facts.price_ratio
    plain = plain_decisions(units, facts.boot_slots)
    bursts = burst_features(facts, shares, number, slots).astype(np.float32)
    return _Level(number, units, bursts, plain, plain.copy())


def _sample(
    levels: Sequence[_Level], boot_slots: int, draw: np.random.Generator
) -> tuple[list[NDArray[np.int64]], Floats, Floats]:
    """Return slots of each level to learn from, and what keeping and starting right after each of them saves."""
    chosen, keeping, starting = [], [], []
    for level in levels:
        keep, start = savings(level.units, level.keep, level.start, boot_slots)
        known = max(len(level.units) - _UNSETTLED - 1, 1)
        some = np.sort(draw.choice(known, min(known, _ROWS // len(levels)), replace=False))
        chosen.append(some)
        keeping.append(keep[some + 1])
        starting.append(start[some + 1])
    return chosen, np.concatenate(keeping), np.concatenate(starting)


def _rows(load: _Float32s, level: _Level, slots: NDArray[np.int64]) -> _Float32s:
    return level_features(load[slots], level.bursts[slots], np.array([level.number], np.float32))


def _all_rows(load: _Float32s, levels: Sequence[_Level], chosen: Sequence[NDArray[np.int64]]) -> _Float32s:
    rows, begin = np.empty((sum(map(len, chosen)), len(NAMES)), np.float32), 0  # stacked, they would be there twice
    for level, slots in zip(levels, chosen, strict=True):
        rows[begin : begin + len(slots)] = _rows(load, level, slots)
        begin += len(slots)
    return rows


def _redecide(load: _Float32s, level: _Level, models: Sequence[Any], slots: NDArray[np.int64]) -> None:
    """Replace the decisions that follow some slots by those of models; what would be started again is kept."""
    rows = _rows(load, level, slots)
    keep, start = (model.predict(rows) > 0.0 for model in models)
    for decided, saves in ((level.keep, keep | start), (level.start, start)):
        for later in range(1, _HELD + 1):
            inside = slots + later < len(decided)
            decided[slots[inside] + later] = saves[inside]


@named_extras()
def _fitted(rows: _Float32s, saved: Floats) -> Any:  # noqa: ANN401 - LightGBM's own type
    import lightgbm  # noqa: PLC0415 - an extra, and slow to import

    data = lightgbm.Dataset(rows, saved, feature_name=[f"f{at}" for at in range(len(NAMES))], params=_PARAMETERS)
    return lightgbm.train(_PARAMETERS, data, _TREES)
