"""Regression forests, read from LightGBM's text and evaluated with numpy.

All trees are evaluated at once, by the bit vectors of QuickScorer (Lucchese et al., SIGIR 2015): a tree's leaves are
the bits of a word, from left to right. Each node whose test is false removes the leaves of its left branch; what is
left lowest is the leaf.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import InputError

Floats = NDArray[np.float64]
MAX_TEXT: Final = 4 * 1024 * 1024  # characters
MAX_TREES: Final = 1000
MAX_LEAVES: Final = 64
_MAX_FEATURES: Final = 1000
_CATEGORICAL, _ZERO_IS_MISSING = 1, 4  # bits of a node's decision_type
_MISSING: Final = 12  # the bits of what is missing: NaN would be both
_NUMBER: Final = re.compile(r"[-+0-9.eE]{1,40}")
_WHOLE: Final = re.compile(r"-?[0-9]{1,9}")


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees over so many `features`. Arrays by node (nodes,) or (nodes, 1), by tree (trees,), leaves (trees, most)."""

    features: int
    _feature: NDArray[np.intp]
    _threshold: Floats
    _kept: NDArray[np.uint64]  # by node: the leaves that are left where its test is false
    _begin: NDArray[np.intp]  # by tree: its first node
    _leaves: Floats
    _constant: float  # of trees with one leaf

    @classmethod
    def parse(cls, text: str) -> Forest:
        """Return the forest of a model's text.

        Raises InputError for what is damaged, too large, or has more than numerical splits of one regression.
        """
        if len(text) > MAX_TEXT:
            raise InputError(f"a forest of {len(text):,} characters is larger than {MAX_TEXT:,}")
        head, *parts = re.split(r"^Tree=\d{1,6}$", text, flags=re.MULTILINE)
        header = _fields(head)
        if not head.startswith("tree\n") or header.get("version") not in {"v3", "v4"}:
            raise InputError("it is not a LightGBM model's text of version v3 or v4")
        if header.get("num_class") != "1" or header.get("num_tree_per_iteration") != "1":
            raise InputError("it is not a forest of one number")
        if not header.get("objective", "").startswith("regression") or "average_output" in head.split("\n"):
            raise InputError("it is not a boosted regression")
        if not 1 <= len(parts) <= MAX_TREES:
            raise InputError(f"a forest has 1 to {MAX_TREES} trees, not {len(parts)}")
        if "\nend of trees" not in parts[-1]:
            raise InputError("it is torn: the end of the trees is missing")
        features = _wholes(header, "max_feature_idx", 1)[0] + 1
        if not 1 <= features <= _MAX_FEATURES:
            raise InputError(f"a forest has 1 to {_MAX_FEATURES} features, not {features}")
        return cls._of([_Tree.parse(part, features, number) for number, part in enumerate(parts)], features)

    @classmethod
    def _of(cls, trees: Sequence[_Tree], features: int) -> Forest:
        grown = [tree for tree in trees if tree.feature]
        constant = math.fsum(tree.leaves[0] for tree in trees if not tree.feature)
        leaves = np.zeros((len(grown), max((len(tree.leaves) for tree in grown), default=0)))
        for row, tree in zip(leaves, grown, strict=True):
            row[: len(tree.leaves)] = tree.leaves
        sizes = [len(tree.feature) for tree in grown]
        return cls(
            features,
            np.array([one for tree in grown for one in tree.feature], np.intp),
            np.array([one for tree in grown for one in tree.threshold], np.float64)[:, None],
            np.array([one for tree in grown for one in tree.kept], np.uint64)[:, None],
            np.cumsum([0, *sizes])[:-1].astype(np.intp),
            leaves,
            constant,
        )

    def predict(self, rows: Floats) -> Floats:
        """Return the sum of the trees' leaves for each of `rows` (rows, features), finite numbers: (rows,)."""
        if not len(self._begin):
            return np.full(len(rows), self._constant)
        columns = np.ascontiguousarray(rows.T)  # nodes by rows: what a node reads lies together
        kept = np.where(columns[self._feature] > self._threshold, self._kept, ~np.uint64(0))
        left = np.bitwise_and.reduceat(kept, self._begin, axis=0)
        lowest = left & (~left + np.uint64(1))
        leaf = np.frexp(lowest.astype(np.float64))[1] - 1  # powers of two are exact
        values: Floats = self._leaves[np.arange(len(self._begin))[:, None], leaf].sum(axis=0) + self._constant
        return values


@dataclass(frozen=True)
class _Tree:
    """A tree's nodes, and its leaves from left to right."""

    feature: list[int]
    threshold: list[float]
    kept: list[int]
    leaves: list[float]

    @classmethod
    def parse(cls, text: str, features: int, number: int) -> _Tree:
        """Return a tree of its text; raises InputError with its number."""
        try:
            return cls._read(_fields(text), features)
        except InputError as error:
            raise InputError(f"tree {number}: {error}") from error

    @classmethod
    def _read(cls, fields: Mapping[str, str], features: int) -> _Tree:
        count = _wholes(fields, "num_leaves", 1)[0]
        if not 1 <= count <= MAX_LEAVES:
            raise InputError(f"it has {count} leaves: 1 to {MAX_LEAVES} are possible")
        if fields.get("num_cat") != "0" or fields.get("is_linear", "0") != "0":
            raise InputError("it has categories or linear leaves, which are not supported")
        values = _numbers(fields, "leaf_value", count)
        if count == 1:
            return cls([], [], [], values)
        nodes = count - 1
        feature = _wholes(fields, "split_feature", nodes)
        if not all(0 <= one < features for one in feature):
            raise InputError("it splits by a feature that is not there")
        kinds = _wholes(fields, "decision_type", nodes)
        if any(kind & _CATEGORICAL or kind & _MISSING == _ZERO_IS_MISSING for kind in kinds):
            raise InputError("it has splits by category, or takes zero for missing, which is not supported")
        children = [*zip(*(_wholes(fields, side, nodes) for side in ("left_child", "right_child")), strict=True)]
        order, kept = _branches(children, count)
        return cls(feature, _numbers(fields, "threshold", nodes), kept, [values[leaf] for leaf in order])


def _branches(children: Sequence[tuple[int, int]], leaves: int) -> tuple[list[int], list[int]]:
    """Return the leaves from left to right, and for each node the bits of those outside its left branch.

    Raises InputError where children are not those of one tree.
    """
    order: list[int] = []
    begins, kept = [-1] * len(children), [0] * len(children)
    everything = 2**MAX_LEAVES - 1
    waiting = [(0, False)]  # a node, and whether its left branch is done; leaves are negative
    while waiting:
        node, done = waiting.pop()
        if node < 0:
            order.append(~node)
        elif done:
            left = 2 ** len(order) - 2 ** begins[node]
            kept[node] = everything ^ left
            waiting.append((children[node][1], False))
        elif not node < len(children) or begins[node] >= 0:
            break
        else:
            begins[node] = len(order)
            waiting += [(node, True), (children[node][0], False)]
    if sorted(order) != [*range(leaves)]:
        raise InputError("its nodes are not those of a tree")
    return order, kept


def _fields(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.split("\n"))
    return {key: value for key, equals, value in pairs if equals}


def _wholes(fields: Mapping[str, str], key: str, count: int) -> list[int]:
    return [int(one) for one in _split(fields, key, count, _WHOLE)]


def _numbers(fields: Mapping[str, str], key: str, count: int) -> list[float]:
    try:
        numbers = [float(one) for one in _split(fields, key, count, _NUMBER)]
    except ValueError:
        numbers = [math.nan]
    if not all(map(math.isfinite, numbers)):
        raise InputError(f"{key} should be finite numbers")
    return numbers


def _split(fields: Mapping[str, str], key: str, count: int, form: re.Pattern[str]) -> list[str]:
    words = fields.get(key, "").split(" ")
    if len(words) != count or not all(map(form.fullmatch, words)):
        raise InputError(f"{key} should be {count} numbers")
    return words
