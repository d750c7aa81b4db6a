"""Figures of several seeds in one table."""

from dataclasses import dataclass

from serfer_bench.core.seeds import over_seeds


@dataclass(frozen=True)
class Line:
    name: str
    cells: tuple[str, ...]

    @property
    def shown(self):
        return {"name": self.name} | {f"figure {number}": cell for number, cell in enumerate(self.cells)}


def test_cells_that_differ_are_their_least_to_their_largest_by_number_and_the_others_stay():
    seeds = [
        ("9.5%", "1,200", "1e-06", "none", "1"),
        ("10.0%", "300", "2e-05", "none", ""),
        ("7.0%", "-", "3e-07", "none", "2"),
    ]
    table = over_seeds([[Line("a", cells), Line("b", tuple("12345"))] for cells in seeds])
    assert [*table.body] == [["a", "7.0% to 10.0%", "300 to -", "3e-07 to 2e-05", "none", ""], ["b", *"12345"]]


def test_rows_that_no_seed_changes_stand_first_and_once():
    table = over_seeds([[Line("a", ("1",))], [Line("a", ("2",))]], [Line("fixed", ("5",))])
    assert [*table.body] == [["fixed", "5"], ["a", "1 to 2"]]
