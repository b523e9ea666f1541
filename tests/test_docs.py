"""The documentation as a reader finds it: each page in the index, no dead link, pictures as they are drawn."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
#: `](target)` of a link, `src="target"` or `srcset="target"` of a picture; an anchor is left out.
TARGET = re.compile(r"(?:\]\(|src=\"|srcset=\")(?!https?:|mailto:|#)([^)#\"\s]+)")


def test_each_page_is_in_the_index() -> None:
    """A page without a link is not read."""
    index = (DOCS / "README.md").read_text()
    missing = [p.name for p in DOCS.glob("*.md") if p.name != "README.md" and p.name not in index]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_to_files(page: Path) -> None:
    """A file was renamed, and the README led nowhere."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    assert not [target for target in TARGET.findall(text) if not (page.parent / target).exists()]


def test_the_pictures_are_those_that_are_drawn() -> None:
    """The script was changed and `make docs` forgotten, or a picture was edited by hand."""
    drawing = runpy.run_path(str(DOCS / "parts.py"))
    for name, theme in drawing["THEMES"].items():
        assert drawing["drawn"](theme) == (DOCS / name).read_text()
