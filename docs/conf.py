"""Sphinx's configuration: `make docs` builds these pages with warnings as errors; a Git host shows them as they are."""

import re
from pathlib import Path

from sphinx.application import Sphinx

project = "SerFer"
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "SerFer"
html_show_copyright = False
html_copy_source = False
nitpicky = True
myst_heading_anchors = 4  # as a Git host has them

_OUTSIDE = re.compile(r"\[([^\]]+)\]\([./]*(?:README|CONTRIBUTING|CHANGELOG)\.md[^)]*\)")
_SECTION = re.compile(r"^## ", re.MULTILINE)
_BUILT = Path(__file__).parent / "_build"  # where docs/generate.py has put what two pages get added
_PAGE = re.compile(r"\]\((?!\.\.)([^)#\s:]+)\.md[)#]")


def _prepare(_app: Sphinx, page: str, source: list[str]) -> None:
    """Turn links to files outside docs/ into text, add built parts, make the side bar of what an index links to."""
    if page in ("reference/python", "reference/commands"):
        source[0] += "\n" + (_BUILT / f"{Path(page).name}.txt").read_text(encoding="utf-8")
    source[0] = _OUTSIDE.sub(r"\1", source[0])
    if Path(page).name != "index":
        return
    for section in _SECTION.split(source[0])[1:] or source:
        pages = "\n".join(dict.fromkeys(_PAGE.findall(section)))
        caption = section.splitlines()[0].lstrip("# ")
        source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{pages}\n```\n"


def setup(app: Sphinx) -> None:
    """Have each page prepared."""
    app.connect("source-read", _prepare)
