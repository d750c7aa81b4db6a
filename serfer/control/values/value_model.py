"""A learnt model of values: two forests, as JSON with LightGBM's text in it, and what they were learnt with.

keep    what it saves, in instance-seconds, to keep an instance of a level on rather than stop it now
start   what it saves to start one now rather than some time later
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from serfer.control.snapshots import SavedFields, Snapshot, read_json, write_json
from serfer.control.values.features import NAMES, Bools, Floats, LevelFacts
from serfer.control.values.forest import MAX_TEXT, Forest
from serfer.core.errors import InputError

FORMAT: Final = "serfer value model"
VERSION: Final = 1
MAX_MODEL_BYTES: Final = 4 * MAX_TEXT
_MOST_SLOTS: Final = 2**40


@dataclass(frozen=True, eq=False)
class ValueModel:
    """Both forests, the slots of load that they were learnt from, and the texts that they were read from."""

    keep: Forest
    start: Forest
    slots: int
    text: Snapshot

    @classmethod
    def read(cls, data: bytes, facts: LevelFacts) -> ValueModel:
        """Return the model of a file's bytes; raises InputError that says why it cannot be used."""
        if len(data) > MAX_MODEL_BYTES:
            raise InputError(f"a value model of {len(data):,} bytes is larger than {MAX_MODEL_BYTES:,}")
        return cls.restored(SavedFields.of(read_json(data, "the value model"), "value model"), facts)

    @classmethod
    def restored(cls, saved: SavedFields, facts: LevelFacts) -> ValueModel:
        """Return the model of its fields; raises InputError for another format, or one learnt with other prices."""
        if saved.text("format", 80) != FORMAT:
            raise InputError(f"{saved.where} is not a value model")
        saved.check_version(VERSION)
        names = saved.values.get("features")
        if names != [*NAMES]:
            raise InputError(f"{saved.where} was learnt from other features")
        if saved.numbers("facts", (3,)).tolist() != [facts.qps, facts.price_ratio, facts.boot_s]:
            raise InputError(f"{saved.where} was learnt with other prices or speeds than the scenario has")
        forests = []
        for key in ("keep", "start"):
            try:
                forest = Forest.parse(saved.text(key, MAX_TEXT))
            except InputError as error:
                raise InputError(f"{saved.where}.{key}: {error}") from error
            if forest.features != len(NAMES):
                raise InputError(f"{saved.where}.{key} has {forest.features} features, not {len(NAMES)}")
            forests.append(forest)
        slots = saved.whole("slots", 0, _MOST_SLOTS)
        kept = ("format", "version", "features", "facts", "slots", "keep", "start")
        return cls(forests[0], forests[1], slots, {key: saved.values[key] for key in kept})

    def on(self, rows: Floats, serving: Bools) -> Bools:
        """Return which levels should be on, (rows,), by their features and whether they are `serving` now."""
        kept = np.zeros(len(rows), np.bool_)
        kept[serving] = self.keep.predict(rows[serving]) > 0.0
        on = kept.copy()
        on[~kept] = self.start.predict(rows[~kept]) > 0.0  # what would be started again at once is not stopped
        return on


def model_bytes(facts: LevelFacts, slots: int, keep: str, start: str) -> bytes:
    """Return a model's file, of the texts of its forests."""
    return write_json(
        {
            "format": FORMAT,
            "version": VERSION,
            "features": [*NAMES],
            "facts": [facts.qps, facts.price_ratio, facts.boot_s],
            "slots": slots,
            "keep": keep,
            "start": start,
        }
    )
