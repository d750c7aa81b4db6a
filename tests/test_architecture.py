"""What import-linter's layers do not see: circles between modules of one folder, and folders' other import paths."""

import re
from graphlib import TopologicalSorter
from itertools import chain
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("serfer", "serfer_bench")


@pytest.fixture(scope="module")
def imports():
    """Return what each module imports, imports inside functions and for type checkers included."""
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=False, cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def test_no_modules_import_each_other_in_a_circle(imports):
    TopologicalSorter(imports).prepare()  # CycleError names the circle
    assert len(imports) > 400


LINKS = {
    **{f"serfer/{name}": f"../{name}" for name in ("drivers", "lambdas", "sam", "splitter", "storage")},
    "serfer_bench": "bench",
}
FOLDERS = [Path(target).name for target in LINKS.values()]


def test_folders_next_to_serfer_are_packages_by_relative_links():
    assert {link: str((ROOT / link).readlink()) for link in LINKS} == LINKS
    assert {file.parent.name for file in ROOT.glob("*/__init__.py")} == {*FOLDERS, *PACKAGES}


def test_nothing_imports_a_folder_by_its_own_name():
    """A checkout is on the import path, so that would import, and work with another copy of each class and variable."""
    names = "|".join(FOLDERS)
    places = chain.from_iterable((*(ROOT / name).glob("*.py"), *(ROOT / name).glob("*/")) for name in FOLDERS)
    modules = "|".join(sorted({place.stem for place in places}))
    forms = (
        rf"\bfrom (?:{names})(?:\.\w+)* import\b",
        rf"(?<![\w.] )\bimport (?:[\w.]+, )*(?:{names})\b",
        rf"(?:-m |[\"']-m[\"'], [\"'])(?:{names})\b(?!/)",
        rf"[\"'`](?:{names})\.(?:{modules})[\"'`.:]",
    )
    wrong = re.compile("|".join(forms))
    folders = [ROOT / name for name in ("serfer", "docs", "tests", *FOLDERS)]
    pages = (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "Makefile")
    files = chain(pages, chain.from_iterable(folder.rglob("*.py") for folder in folders))
    texts = {file: file.read_text(encoding="utf-8") for file in files}
    assert [f"{file}: {found[0]}" for file, text in texts.items() for found in wrong.finditer(text)] == []
    assert len(texts) > 1200
