"""The XID policy: every row means something, and a wrong one is named."""

from __future__ import annotations

import pytest

from gangline.aggregator.verdicts import Reason
from gangline.fingerprints.xid import Clears, Severity, lookup, parse, policy

ROW = """
[[xid]]
code = 1
name = "x"
action = "y"
scope = "gpu"
"""


def test_the_table_holds_what_matters_now() -> None:
    """The codes of the design's table, and every reason is one that the wire knows."""
    wanted = {13, 31, 43, 45, 48, 63, 64, 74, 79, 92, 94, 95, 109, 119, 120, 137, 140, 154}
    assert wanted | set(range(144, 151)) <= policy().keys()
    for row in policy().values():
        fatal = row.severity in (Severity.FATAL, Severity.HAZARD)
        assert (Reason[row.reason] is not Reason.NONE) == fatal, row
        assert row.name and row.action and row.catalogue


def test_fatal_is_what_the_catalogue_would_reset_or_worse() -> None:
    """A drain for XID 43 or 63 costs a healthy host; none for 79 costs the job."""
    for row in policy().values():
        if row.severity is Severity.FATAL and row.code != 48:
            assert row.catalogue.startswith(("reset", "restart bare metal")), row
    assert {c for c, r in policy().items() if r.clears is Clears.REBOOT} == {79}


def test_an_unknown_code_is_shown_and_never_fatal() -> None:
    """NVIDIA adds codes with every driver."""
    row = lookup(4711)
    assert row.code == 4711 and row.severity is Severity.UNKNOWN and row.hazard_factor == 1.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ROW + 'severity = "deadly"\nclears = "reset"', "xid 1: 'deadly' is not a valid Severity"),
        (ROW + 'severity = "fatal"', "xid 1: 'clears'"),
        (ROW + 'severity = "fatal"\nclears = "time"', "clear_seconds goes with"),
        (ROW + 'severity = "hazard"\nclears = "reset"', "hazard_factor above 1 goes with"),
        (ROW + 'severity = "fatal"\nclears = "reset"\ncolour = "red"', "unknown key 'colour'"),
        (2 * (ROW + 'severity = "fatal"\nclears = "reset"\n'), "stands in the table twice"),
    ],
)
def test_a_wrong_row_is_named(text: str, words: str) -> None:
    """An operator's edit must not be half believed."""
    with pytest.raises(ValueError, match=words):
        parse(text)
