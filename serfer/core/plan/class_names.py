"""The class that a folder, or a line of a file, means: by its label, or by its index."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from serfer.core.errors import InputError

_NAMED: Final = 3  # of several classes, a message names so many
_DIGITS: Final = 9  # of an index, zeros in front of it included


class ClassNames:
    """Finds a class by its name: the label itself, else one of other case and spacing, else the index."""

    def __init__(self, labels: Sequence[str]) -> None:
        self._count = len(labels)
        self._exact: dict[str, list[int]] = defaultdict(list)
        self._folded: dict[str, list[int]] = defaultdict(list)
        for index, label in enumerate(labels):
            self._exact[label].append(index)
            self._folded[_fold(label)].append(index)

    def index(self, name: str, where: str) -> int | None:
        """Return the index of the class with a name or None; raises InputError, with `where`, for an ambiguous name."""
        indices = self._exact.get(name) or self._folded.get(_fold(name))
        if indices is None:
            number = int(name) if name.isascii() and name.isdecimal() and len(name) <= _DIGITS else -1
            return number if 0 <= number < self._count else None
        if len(indices) > 1:
            raise InputError(
                f"{where} is the name of {len(indices)} of the network's classes: name it by the index of the one that "
                f"is meant ({', '.join(map(str, indices[:_NAMED]))})"
            )
        return indices[0]


def _fold(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold().replace("_", " ").replace("-", " ")
