"""Loads and trainers for the tests of learnt values."""

import re

from serfer.control.values.features import NAMES
from serfer.control.values.value_model import model_bytes

TREE = """tree
version=v4
num_class=1
num_tree_per_iteration=1
max_feature_idx={last}
objective=regression

Tree=0
num_leaves=2
num_cat=0
split_feature={feature}
threshold={threshold}
decision_type=2
left_child=-1
right_child=-2
leaf_value={below} {above}
is_linear=0

end of trees
"""


def step(feature, threshold, below, above):
    """Return a forest that is one of two numbers, by a feature's name."""
    values = {"feature": NAMES.index(feature), "threshold": threshold, "below": below, "above": above}
    return re.sub(r"\{(\w+)\}", lambda key: str({"last": len(NAMES) - 1, **values}[key[1]]), TREE)


class Told:
    """A trainer whose models start above a load and keep above another; it keeps what it was given."""

    def __init__(self, start_above=0.5, keep_above=0.1):
        self.start_above, self.keep_above = start_above, keep_above
        self.records = []

    def begin(self, record):
        self.records.append(record)
        self._data = model_bytes(
            record.facts,
            len(record.rates),
            step("rate 0 ago", self.keep_above, -1.0, 1.0),
            step("rate 0 ago", self.start_above, -1.0, 1.0),
        )
        return self

    def model(self):
        return self._data

    def __deepcopy__(self, memo):
        return self
