"""Systems that take turns under load, and what they and this process hold."""

from concurrent.futures import Future

import numpy as np
import pytest

from serfer.core.errors import UnavailableError
from serfer.core.keys import StoreCounts
from serfer_bench.core.processes import held
from serfer_bench.core.system import System, Totals
from serfer_bench.load.queries import Example
from serfer_bench.load.rounds import Plan, measure_rounds

RIGHT = np.array([[1.0, 2.0, 4.0]], dtype=np.float32)
EXAMPLE = Example(np.zeros((1, 2, 2, 3), dtype=np.uint8), RIGHT)


class Fake(System):
    """Answers at once, and records its turn."""

    def __init__(self, name, turns, logits=RIGHT):
        self.name = name
        self._turns = turns
        self._logits = logits
        self._puts = 0

    def submit(self, _pixels):
        self._turns.append(self.name)
        self._puts += 1
        future = Future()
        future.set_result(self._logits)
        return future

    def counts(self):
        return StoreCounts(bytes_put=10 * self._puts, bytes_get=5 * self._puts, exists=self._puts)

    def close(self):
        pass


def test_systems_take_turns_and_warming_up_counts_nowhere():
    turns = []
    systems = [Fake("a", turns), Fake("b", turns)]
    rounds, logs = measure_rounds(systems, [EXAMPLE], Plan(((0.0,) * 2,) * 3, 4, 60))
    assert "".join(turns) == "aaaabbbb" + "aabb" + "bbaa" + "aabb"
    assert [(one.system, one.round) for one in rounds] == [("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2)]
    assert [(log.system, log.round) for log in logs] == [(one.system, one.round) for one in rounds]
    assert all((one.sent, one.answered, one.bytes_per_query, one.polls_per_query) == (2, 2, 15, 1) for one in rounds)
    assert all((one.usd_per_query, one.cold, one.hedges) == (None, None, None) for one in rounds)


def test_a_system_that_answers_nothing_is_refused_before_it_is_measured():
    with pytest.raises(UnavailableError, match="broken answers no query: WrongAnswerError"):
        measure_rounds([Fake("broken", [], RIGHT * -1)], [EXAMPLE], Plan(((0.0,),), 2, 60))


def test_held_descriptors_and_memory(tmp_path):
    before = held()
    with (tmp_path / "x").open("w"):
        assert held().descriptors == before.descriptors + 1
    assert held().descriptors == before.descriptors
    assert before.driver_bytes > 1 << 20


def test_unreported_counts_stay_unknown():
    assert Totals(5, 6, 7, 0.5, 3, 2, 1) - Totals(1, 1, 1, 0.25, 1, 1, 1) == Totals(4, 5, 6, 0.25, 2, 1, 0)
    assert Totals(5) - Totals(2) == Totals(3)
