"""What import-linter's layers do not see: circles between modules of one folder."""

from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("bench", "drivers", "lambdas", "sam", "serfer", "splitter", "storage")
MOST_FILES = 15


@pytest.fixture(scope="module")
def imports():
    """Return what each module imports, imports inside functions and for type checkers included."""
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=False, cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def test_no_modules_import_each_other_in_a_circle(imports):
    TopologicalSorter(imports).prepare()  # CycleError names the circle
    assert len(imports) > 400


def test_a_folder_reads_as_a_table_of_contents():
    folders = {path.parent for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    counts = {str(folder.relative_to(ROOT)): len([*folder.glob("*.py")]) - 1 for folder in folders}
    assert {folder: count for folder, count in counts.items() if count > MOST_FILES} == {}
