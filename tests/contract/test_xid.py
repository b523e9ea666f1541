"""The XID and SXID policies: every code has a valid row, and a wrong row is named."""

from __future__ import annotations

import csv
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.model import Reason
from gangline.contract.xid import tools
from gangline.contract.xid.policy import (
    SCOPES,
    SXID_CODE_MIN,
    Clears,
    Companion,
    Xid,
    XidAssessment,
    XidSeverity,
    assess,
    companions,
    lookup,
    lookup_sxid,
    parse,
    policy,
    refine,
    sxid_policy,
)

CATALOGUE = Path(__file__).parents[3] / "shared" / "data" / "xid" / "catalogue.csv"
CODES = 172

ROW = """
[[xid]]
code = 1
name = "x"
action = "y"
scope = "gpu"
"""

#: Terms of the catalogue -> spelling of the project.
SPELLING = {
    "": "none given",
    "CHECK_APP/CUDA": "check application or CUDA",
    "CHECK_MECHANICALS": "check seating and connections",
    "CHECK_UVM": "check whether UVM is used",
    "CONTACT_SUPPORT": "contact support",
    "IGNORE": "ignore",
    "IGNORE (sympathetic)": "ignore, sympathetic",
    "INVESTIGATE_LINK_SI": "investigate signal integrity of the link",
    "INVESTIGATE_SW": "investigate software",
    "INVESTIGATE_SW_USER": "investigate software or user",
    "N/A Informational only regarding another Xid": "none, it informs about another XID",
    "RESET_GPU": "reset GPU",
    "RESTART_APP": "restart application",
    "RESTART_BM": "restart bare metal",
    "RESTART_VM": "restart VM",
    r"Solo: RESTART_FM\nNot Solo: IGNORE (follow other Xid)": "alone: restart the fabric manager; "
    "else follow the other XID",
    "SYMPATHETIC_REPORT_SOLO": "sympathetic, report if alone",
    "UPDATE_SWFW": "update software and firmware",
    "WORKFLOW_NVLINK5_ERR": "workflow for NVLink 5",
    "WORKFLOW_NVLINK_ERR": "workflow for NVLink",
    "WORKFLOW_XID_13": "workflow for XID 13",
    "WORKFLOW_XID_31": "workflow for XID 31",
    "WORKFLOW_XID_45": "workflow for XID 45",
    "WORKFLOW_XID_48": "workflow for XID 48",
    "XID_137_FLOW": "workflow for XID 137",
    "XID_154": "as its text says",
}

HAZARD = 'severity = "hazard"\nclears = "reset"\nhazard_factor = 2.0\n'
FATAL = 'severity = "fatal"\nclears = "reset"\n'


def test_every_code_of_the_catalogue_has_its_row() -> None:
    """Compare with NVIDIA's table if it is available: a missing or misquoted code."""
    if not CATALOGUE.exists():
        pytest.skip(f"{CATALOGUE} is not there: the catalogue is no part of the repository")
    with CATALOGUE.open(encoding="utf-8") as file:
        listed = {int(entry["code"]): entry for entry in csv.DictReader(file)}
    assert listed.keys() == policy().keys()
    for code, entry in listed.items():
        row = policy()[code]
        assert row.catalogue == SPELLING[entry["immediate_action"]], code
        investigate = entry["investigatory_action"]
        assert row.investigate == (SPELLING[investigate] if investigate else ""), code
        assert (row.mnemonic, row.used) == (entry["mnemonic"], entry["used"] == "yes")


def test_the_table_is_whole() -> None:
    """The codes 1 to 172, each with a text in the project's spelling, under a reason of the wire."""
    assert sorted(policy()) == list(range(1, CODES + 1))
    for row in [*policy().values(), *sxid_policy().values()]:
        fatal = row.severity in (XidSeverity.FATAL, XidSeverity.HAZARD)
        assert (Reason[row.reason] is not Reason.NONE) == fatal, row
        assert row.name and row.action and row.catalogue, row
        assert row.scope in SCOPES and (row.scope != "unknown") == row.used, row
        assert (row.severity is not XidSeverity.UNKNOWN) == row.used, row
    assert {row.catalogue for row in policy().values()} <= set(SPELLING.values())


def test_fatal_is_what_the_catalogue_would_reset_or_worse() -> None:
    """A drain for XID 43 or 63 costs a healthy host; a missing drain for 79 costs the job."""
    for row in policy().values():
        if row.severity is XidSeverity.FATAL and row.code != 48:
            assert row.catalogue.startswith(("reset", "restart bare metal", "restart VM")), row
    fatal_until_boot = {
        row.code
        for row in policy().values()
        if row.clears is Clears.REBOOT and row.severity is XidSeverity.FATAL
    }
    assert fatal_until_boot == {79, 151}


def test_where_we_are_milder_than_the_catalogue_we_say_why() -> None:
    """An operator whose other tool resets the GPU must see in the table why Gangline does not."""
    for row in policy().values():
        graver = row.catalogue.startswith(("reset GPU", "restart bare metal", "restart VM"))
        if graver and row.severity is not XidSeverity.FATAL:
            assert row.why, row
        if row.catalogue == "ignore" and row.severity in (XidSeverity.FATAL, XidSeverity.HAZARD):
            assert row.why, row


@pytest.mark.parametrize(
    ("code", "severity", "scope"),
    [
        (13, "application", "process"),
        (31, "application", "process"),
        (43, "application", "process"),
        (45, "ignore", "process"),
        (48, "fatal", "gpu"),
        (63, "hazard", "gpu"),
        (64, "fatal", "gpu"),
        (74, "hazard", "nvlink-domain"),
        (79, "fatal", "host"),
        (92, "hazard", "gpu"),
        (94, "hazard", "gpu"),
        (95, "fatal", "gpu"),
        (109, "fatal", "gpu"),
        (119, "fatal", "gpu"),
        (120, "fatal", "gpu"),
        (137, "application", "process"),
        (149, "hazard", "nvlink-domain"),
        (154, "ignore", "gpu"),
    ],
)
def test_the_policy_of_the_design(code: int, severity: str, scope: str) -> None:
    """The agreed table; a change of it is a decision."""
    row = policy()[code]
    assert (row.severity, row.scope) == (severity, scope)


def test_an_unknown_code_is_shown_and_never_fatal() -> None:
    """NVIDIA adds codes with every driver."""
    for row in (lookup(4711), lookup_sxid(4711)):
        assert row.code == 4711 and row.severity is XidSeverity.UNKNOWN and row.hazard_factor == 1.0
        assert "NVIDIA" in row.action


def test_no_always_fatal_switch_error_waits_for_less_than_a_boot() -> None:
    """The guide's list: the whole fabric of the host has failed, for every GPU."""
    rows = [row for row in sxid_policy().values() if row.catalogue == "always fatal"]
    assert len(rows) == 21
    assert {(r.severity, r.clears, r.scope) for r in rows} == {("fatal", "reboot", "baseboard")}


class TestCompanions:
    """A double bit error followed by 94 differs from one followed by 95."""

    @pytest.mark.parametrize(
        ("beside", "age", "severity", "waiting"),
        [
            ({}, 0.0, XidSeverity.IGNORE, True),
            ({}, 4.9, XidSeverity.IGNORE, True),
            ({}, 5.0, XidSeverity.FATAL, False),
            ({94: 0.4}, 0.5, XidSeverity.IGNORE, False),
            ({94: -5.0}, 60.0, XidSeverity.IGNORE, False),
            ({94: 5.1}, 60.0, XidSeverity.FATAL, False),
            ({95: 1.0}, 1.0, XidSeverity.FATAL, False),
            ({94: 1.0, 64: 2.0}, 2.0, XidSeverity.FATAL, False),
            ({171: 0.0}, 1.0, XidSeverity.IGNORE, True),
            ({171: 0.0}, 9.0, XidSeverity.FATAL, False),
            ({13: 0.0}, 9.0, XidSeverity.FATAL, False),
        ],
    )
    def test_a_double_bit_error(
        self, beside: dict[int, float], age: float, severity: XidSeverity, waiting: bool
    ) -> None:
        """It waits 5 s; 94 removes the drain, 95 and 64 cause it at once, 171 adds a text."""
        result = assess(lookup(48), beside, age)
        assert (result.severity, result.waiting) == (severity, waiting)
        assert bool(result.details) == any(
            c.code in beside and abs(beside[c.code]) <= 5 for c in companions(48)
        )

    def test_a_code_without_companions_means_what_it_says(self) -> None:
        """79 must not wait for anything."""
        assert assess(lookup(79), {94: 0.0}, 0.0) == XidAssessment(XidSeverity.FATAL)

    def test_they_are_named_in_the_table(self) -> None:
        """The codes of the design; each is a row itself."""
        assert {c.code for c in companions(48)} == {94, 95, 63, 64, 171, 172}
        assert companions(94) == () and lookup(48).wait_seconds == 5.0
        for row in policy().values():
            assert {c.code for c in row.companions} | set(row.cancels) <= policy().keys()

    def test_pairs_that_cancel(self) -> None:
        """Restored power smoothing ends the finding of its end; a cooled switch likewise."""
        assert lookup(162).cancels == (163,) and lookup(163).cancels == ()
        assert lookup_sxid(10005).cancels == (10004,)

    @given(
        st.dictionaries(st.integers(0, 200), st.floats(allow_nan=False, width=32)),
        st.floats(0, 1e6),
        st.sampled_from([48, 94, 79, 4711]),
    )
    def test_never_raises(self, beside: dict[int, float], age: float, code: int) -> None:
        assert isinstance(assess(lookup(code), beside, age).severity, XidSeverity)


class TestRefined:
    """The decoded line, applied to the row of its code."""

    def test_graver_and_milder(self) -> None:
        """154 alone is ignored; 154 that requests a reboot is fatal until the reboot."""
        asks = refine(lookup(154), {"severity": "fatal", "recovery": "reboot", "action": "reboot"})
        assert (asks.severity, asks.clears, asks.reason) == ("fatal", "reboot", "XID_FATAL")
        assert (asks.action, asks.clear_seconds, asks.hazard_factor) == ("reboot", 0.0, 1.0)
        switch = refine(lookup_sxid(29999), {"severity": "hazard"})
        assert (switch.severity, switch.clears, switch.reason) == ("hazard", "reset", "FABRIC")
        mild = refine(lookup(149), {"severity": "ignore"})
        assert (mild.severity, mild.hazard_factor, mild.reason) == ("ignore", 1.0, "NONE")

    def test_what_is_not_understood_changes_nothing(self) -> None:
        """Attributes come over the wire, from an agent that may be newer than this aggregator."""
        row = lookup(74)
        assert refine(row, {}) == row
        assert refine(row, {"severity": "apocalyptic", "unit": "?"}) == row

    @given(
        st.sampled_from([48, 63, 74, 79, 94, 149, 154, 4711]),
        st.dictionaries(
            st.sampled_from(["severity", "action", "recovery", "x"]),
            st.sampled_from([*XidSeverity, "", "reboot", "x"]),
        ),
    )
    def test_a_refined_row_is_a_row(self, code: int, attributes: dict[str, str]) -> None:
        """Judging relies on it: a reason and a factor go with the severity, seconds with time."""
        row = refine(lookup(code), attributes)
        grave = row.severity in (XidSeverity.FATAL, XidSeverity.HAZARD)
        assert (row.reason != "NONE") == grave
        assert (row.hazard_factor > 1) == (row.severity is XidSeverity.HAZARD)
        assert (row.clear_seconds > 0) == (row.clears is Clears.TIME)


def test_codes_of_switches_are_apart() -> None:
    assert max(policy()) < SXID_CODE_MIN <= min(sxid_policy())


class TestOthers:
    """Behavior of other tools, to explain why two tools disagree."""

    def test_the_disagreements_of_the_design(self) -> None:
        """The cases that made an explanation necessary."""
        claims = {
            (code, other.tool): other.message
            for code in policy()
            for other in tools.tool_actions(code)
        }
        assert "reboots" in claims[94, "GPUd"] and "fatal" in claims[63, "GPUd"]
        assert "fatal" in claims[63, "EKS node agent"]
        assert claims[109, "k8s-device-plugin"] == "ignores it"
        assert "unhealthy" in claims[94, "k8s-device-plugin"]

    def test_every_claim_has_its_source_and_code(self) -> None:
        """A claim about a code that does not exist was mistyped."""
        table = Path(tools.__file__).with_name("xid_tools.toml").read_text()
        actions = [tool["actions"] for tool in tomllib.loads(table)["tool"]]
        listed = {code for action in actions for codes in action.values() for code in codes}
        assert listed <= policy().keys()
        for code in policy():
            names = [other.tool for other in tools.tool_actions(code)]
            assert len(names) == len(set(names))
            assert all("/" in other.source for other in tools.tool_actions(code))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            ROW + 'severity = "deadly"\nclears = "reset"',
            "xid 1: 'deadly' is not a valid XidSeverity",
        ),
        (ROW + 'severity = "fatal"', "xid 1: 'clears'"),
        (ROW + 'severity = "fatal"\nclears = "time"', "clear_seconds goes with"),
        (ROW + 'severity = "hazard"\nclears = "reset"', "hazard_factor above 1 goes with"),
        (ROW + FATAL + 'colour = "red"', "unknown key 'colour'"),
        (2 * (ROW + FATAL), "is in the table twice"),
        (ROW + FATAL + "wait_seconds = 5", "wait_seconds goes with companions"),
        (ROW.replace('"gpu"', '"rack"') + FATAL, "scope 'rack': expected one of process, gpu"),
        (ROW + FATAL + "wait_seconds = 5\n[[xid.companions]]\nmessage = 'x'", "xid 1: .*'code'"),
        (
            ROW + FATAL + "[[xid.companions]]\ncode = 2\nmessage = 'x'\nseverity = 'so'",
            "'so' is not",
        ),
    ],
)
def test_a_wrong_row_is_named(text: str, message: str) -> None:
    """An operator's edit must not be partly accepted."""
    with pytest.raises(ValueError, match=message):
        parse(text)


def test_an_unused_row_needs_no_more_than_its_name() -> None:
    """55 codes that no driver writes: shown if one occurs, without consequences."""
    (row,) = parse("[[xid]]\ncode = 9\nname = 'x'\nused = false\n")
    assert (row.severity, row.clears, row.used) == (XidSeverity.UNKNOWN, Clears.TIME, False)
    assert isinstance(row, Xid) and row.companions == ()
    assert Companion(1, "x").severity is None


def test_importing_reads_no_table() -> None:
    """The daemon imports the decoder on ten thousand hosts; most never see an XID."""
    code = (
        "import sys; from gangline.contract.xid import decode, nvlink, policy; "
        "print(policy.policy.cache_info().currsize, policy.sxid_policy.cache_info().currsize, "
        "nvlink.nvlink_facts.cache_info().currsize)"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert out.stdout.split() == ["0", "0", "0"]
