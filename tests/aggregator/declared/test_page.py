"""The operators' page: its example is valid, and it lists every field."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

from gangline.aggregator.declared.expectations import ITEMS
from gangline.aggregator.declared.host_placement import PLACE_FIELDS
from gangline.aggregator.declared.loader import DeclaredFile, parse_files
from gangline.aggregator.rule_catalogue import OVERRIDABLE_RULES

PAGE = (Path(__file__).parents[3] / "docs" / "declared.md").read_text()
NOW_NS = round(datetime(2026, 11, 23, 22, tzinfo=UTC).timestamp()) * 10**9


def test_the_example_is_taken_and_means_what_the_page_says() -> None:
    """Operators start with a copy of it: a slip in it is a slip in every cluster."""
    blocks = re.findall(r"^```(toml|csv)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    files = [DeclaredFile(f"a.{kind}", text.encode()) for kind, text in blocks]
    assert [file.name for file in files] == ["a.toml", "a.csv"]
    declaration = parse_files(files, NOW_NS, rules=OVERRIDABLE_RULES)
    assert declaration.notes == () and len(declaration.places) == 10
    assert declaration.place("gpu-009").rack == "r2" and declaration.place("gpu-008").rack == "r1"
    assert [h for h in declaration.places if declaration.window(h, NOW_NS)] == [
        f"gpu-{number:03}" for number in range(1, 9)
    ]
    assert declaration.override("gpu-009", "gpu.xid.63", NOW_NS, signal="gpu.xid", code=63)
    assert not declaration.override("gpu-010", "gpu.xid.63", NOW_NS, signal="gpu.xid", code=63)
    assert declaration.threshold("host.cpu_steal_ratio") == 0.2
    expected = declaration.expected("NVIDIA H100 80GB HBM3")
    assert expected is not None and expected.items.keys() == ITEMS.keys()


def test_the_page_names_every_field() -> None:
    """At night, a field that is not on the page does not exist."""
    for name in (*PLACE_FIELDS, *ITEMS):
        assert f"`{name}`" in PAGE or f"\n{name} = " in PAGE, name
