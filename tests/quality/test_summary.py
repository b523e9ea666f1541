"""The first section of the page agrees with the sections below."""

from __future__ import annotations

from bench.quality.__main__ import PAGE
from bench.quality.summary import TITLE, with_summary


def test_the_page_begins_with_what_its_sections_say() -> None:
    """A handwritten summary repeats the page of a month ago."""
    page = PAGE.read_text()
    assert with_summary(page) == page, "run: python -m bench.quality --summary"
    assert page.count(TITLE) == 1 and "not on this page" not in page


def test_a_section_that_was_left_out_is_named_so() -> None:
    """Without the recordings the table must not show old figures."""
    page = with_summary("# How good it is\n\n## Injected\n\nnothing\n")
    assert page.startswith(f"# How good it is\n\n{TITLE}\n")
    assert page.count("| not on this page |") == 9
