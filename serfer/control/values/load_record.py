"""What a model of values is learnt from, as it goes to the process that learns: a line of JSON, then float32 rates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from serfer.control.snapshots import SavedFields, read_json, write_json
from serfer.control.values.features import LevelFacts
from serfer.control.values.load_history import MAX_SLOTS
from serfer.core.errors import InputError

MAX_RECORD_BYTES: Final = 4 * MAX_SLOTS + 4096


@dataclass(frozen=True, eq=False)
class LoadRecord:
    """The rates (queries/s) of slots, the last of which ended at `end_s` on the policy's clock, and the level."""

    rates: NDArray[np.float32]
    end_s: float
    facts: LevelFacts

    def encode(self) -> bytes:
        """Return the record as bytes."""
        facts = [self.facts.qps, self.facts.price_ratio, self.facts.boot_s]
        header = {"version": 1, "slots": len(self.rates), "end_s": self.end_s, "facts": facts}
        return write_json(header) + b"\n" + self.rates.astype("<f4").tobytes()

    @classmethod
    def decode(cls, data: bytes) -> LoadRecord:
        """Return the record of such bytes; raises InputError."""
        first, _, rest = data[:MAX_RECORD_BYTES].partition(b"\n")
        saved = SavedFields.of(read_json(first, "the record's first line"), "record")
        saved.check_version(1)
        slots = saved.whole("slots", 1, MAX_SLOTS)
        if len(rest) != 4 * slots:
            raise InputError(f"the record is torn: {len(rest):,} bytes of {4 * slots:,}")
        rates = np.frombuffer(rest, "<f4").astype(np.float32)
        if not bool(np.all((rates >= 0) & np.isfinite(rates))):
            raise InputError("the record's rates should be finite, and not negative")
        facts = LevelFacts(*saved.numbers("facts", (3,), 0.0, 1e12).tolist())
        return cls(rates, saved.number("end_s"), facts)
