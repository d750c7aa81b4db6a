"""The options of what goes beside a pool's policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class BesideOptions:
    """`record` is the file of a recording.

    `state` is the directory or the `s3://` prefix where what the policy has learnt is kept, `history` the file of a
    load that it begins with where nothing is kept.
    """

    record: Path | None = None
    state: str | None = None
    history: Path | None = None

    def given(self) -> Iterator[str]:
        """Yield the options that were given, as the command line calls them."""
        if self.record is not None:
            yield "--record"
        if self.state is not None:
            yield "--policy-state"
        if self.history is not None:
            yield "--history"


NOTHING = BesideOptions()
