"""What import-linter's layers do not see: circles between modules of one folder."""

from graphlib import TopologicalSorter

import grimp
import pytest

PACKAGES = ("bench", "drivers", "lambdas", "sam", "serfer", "splitter", "storage")


@pytest.fixture(scope="module")
def imports():
    """Return what each module imports, imports inside functions and for type checkers included."""
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=False, cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def test_no_modules_import_each_other_in_a_circle(imports):
    TopologicalSorter(imports).prepare()  # CycleError names the circle
    assert len(imports) > 400
