"""Content of the driver's lines beyond their code, over real forms of lines and over garbage."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gangline.contract.xid.decode import (
    NAME_CHARACTERS_MAX,
    PROCESS_ID_MAX,
    VALUE_CHARACTERS_MAX,
    DecodedLine,
    XidLine,
    decode,
    parse_line,
)
from gangline.contract.xid.line_reading import driver_major
from gangline.contract.xid.nvlink import NEWER_BITS, OLDER_BITS, NvLinkUnit, nvlink_facts
from gangline.contract.xid.policy import XidSeverity, lookup

OLD, NEW = "570.86.15", "575.57.08"

PIECES = st.sampled_from(
    [
        "NVRM: Xid (PCI:0000:9b:00): 149, ", "SXid (PCI:0000:8b:00.0): 20034, ", "pid=", "name=", "'",
        "1" * 30, "0x", "ffffffffffffffff", "(", ")", "[", ", ", " ", "Fatal", "Nonfatal", " XC0 i0 Link ",
        "-1", "NETIR_LINK_EVT", "SAW_MVB", "from 0x0 (None) to 0x", "link 3(", "0x0, ", "physAddr ",
        "\x00", "\ud800", "é", "\n", "RST: Yes", "caused by previous Xid ", "٣",
    ]
)  # fmt: skip
CODES = st.sampled_from([13, 31, 45, 48, 74, 95, 119, 144, 145, 149, 150, 154, 171, 0, -1, 10**12])


class TestSplit:
    """A line's code, device and message, in every form that drivers have written."""

    @pytest.mark.parametrize(
        ("line", "device", "message"),
        [
            (
                "NVRM: Xid (PCI:0000:9b:00): 119, pid=1, name=x, y",
                "0000:9b:00.0",
                "pid=1, name=x, y",
            ),
            ("[12.3] NVRM: Xid (0000:03:00): 119, Channel 1", "0000:03:00.0", "Channel 1"),
            ("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 119, pid=7", "0000:01:00.0", "pid=7"),
            ("NVRM: Xid (PCI:00000000:9B:00.0): 119", "0000:9b:00.0", ""),
            ("NVRM: Xid (PCI:0009:01:00): 119, a", "0009:01:00.0", "a"),
            ("NVRM: Xid (PCI:00010000:01:00): 119, a", "00010000:01:00.0", "a"),
        ],
    )
    def test_forms(self, line: str, device: str, message: str) -> None:
        """MIG adds the instance, old drivers have no PCI:, NVL72 counts domains."""
        assert parse_line(line) == XidLine("xid", 119, device, message)

    @pytest.mark.parametrize(
        "line",
        [
            "",
            "NVRM: Xid (PCI:0000:9b:00): abc, pid=1",
            "NVRM: Xid: 31",
            "NVRM: loading NVIDIA UNIX x86_64 Kernel Module",
            "xid 94",
            "NVRM: Xid (PCI:0000:9b:00): 99999999999, x",
        ],
    )
    def test_no_code(self, line: str) -> None:
        """A code is never invented."""
        assert parse_line(line) is None

    def test_a_switch(self) -> None:
        """NVSwitches write SXid, with the function in their address."""
        line = "nvidia-nvswitch0: SXid (PCI:0000:8b:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
        assert parse_line(line) == XidLine(
            "sxid", 20034, "0000:8b:00.0", "Fatal, Link 30 LTSSM Fault Up"
        )


class TestProcess:
    """The process in the line: it met the fault, and need not be its cause."""

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("pid=2024380, name=nvidia-smi, Timeout", (2024380, "nvidia-smi")),
            ("pid='<unknown>', name=<unknown>, GPU has fallen", (0, "")),
            ("pid=7194, Contained: CE User Channel (0x9)", (7194, "")),
            ("pid=1, name=ray::Worker.run, Ch 1", (1, "ray::Worker.run")),
            ("pid=1, name=VLLM::Eng ineCor, x", (1, "VLLM::Eng ineCor")),
            (f"pid={PROCESS_ID_MAX + 1}, name=x", (0, "x")),
            ("pid=99999999999999999999, name=x", (0, "x")),
            ("pid=-3, name=x", (0, "x")),
            ("name=\x1b[31mred\x07\ud800, y", (0, "?[31mred??")),
            ("no process", (0, "")),
        ],
    )
    def test_forms(self, text: str, expected: tuple[int, str]) -> None:
        """A terminal's escapes in a process' name must not reach a terminal, nor a protobuf."""
        decoded = decode(119, text)
        assert (decoded.process_id, decoded.process_name) == expected

    def test_a_name_is_not_the_drivers_words(self) -> None:
        """A user may name a program like a driver's message."""
        decoded = decode(45, "pid=5, name=caused by previous Xid 79 Ch 00000099, Ch 00000001")
        assert decoded.attributes == {"channel": "00000001"}


class TestRecovery:
    """XID 154: its text is the recovery action."""

    @pytest.mark.parametrize(
        ("number", "text", "recovery", "severity"),
        [
            (0, "None", "none", "ignore"),
            (1, "GPU Reset Required", "reset", "fatal"),
            (1, "PF FLR", "reset", "fatal"),
            (2, "Node Reboot Required", "reboot", "fatal"),
            (2, "OS Reboot", "reboot", "fatal"),
            (3, "Drain P2P", "drain peer-to-peer", "hazard"),
            (4, "Drain and Reset", "drain and reset", "fatal"),
            (2, "???", "reboot", "fatal"),
            (1, "Drain and Reset", "drain and reset", "fatal"),
            (9, "Dance", "unknown", "hazard"),
        ],
    )
    def test_texts(self, number: int, text: str, recovery: str, severity: str) -> None:
        """If number and text disagree the text is used; with neither known: shown, not fatal."""
        line = f"GPU recovery action changed from 0x0 (None) to 0x{number:x} ({text})"
        decoded = decode(154, line)
        assert decoded.attributes["recovery"] == recovery
        assert decoded.attributes["recovery_number"] == str(number)
        assert decoded.severity == severity == decoded.attributes["severity"]
        assert decoded.cancels == ((154,) if recovery == "none" else ())

    def test_both_are_told_where_they_disagree(self) -> None:
        """Useful for debugging a driver."""
        line = "GPU recovery action changed from 0x0 (None) to 0x1 (Drain and Reset)"
        assert "stands for something else" in decode(154, line).message

    def test_a_text_without_the_form_is_the_row(self) -> None:
        assert decode(154, "GPU recovery action changed").severity is lookup(154).severity


class TestMemory:
    def test_double_bit(self) -> None:
        text = (
            "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at "
            "physAddr 0x18f31d80 partition 16, subpartition 3."
        )
        result = decode(48, text).attributes
        assert result["memory"] == "framebuffer" and result["physical_address"] == "0x18f31d80"
        assert (result["partition"], result["subpartition"]) == ("16", "3")

    def test_row_remap(self) -> None:
        """The row, to recognize it later."""
        text = "Row Remapper: New row (0x0000000018f31d80) marked for remapping, reset gpu to activate."
        assert decode(63, text).attributes["row_address"] == "0x0000000018f31d80"

    def test_containment(self) -> None:
        """RST and D-RST are the driver's requests."""
        contained = decode(94, "pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No")
        assert contained.attributes["location"] == "CE User Channel (0x9)"
        assert contained.attributes["reset_required"] == "No" and contained.process_id == 7194
        assert "reset" not in contained.message
        loose = decode(95, "pid=7062, Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No")
        assert loose.attributes["location"] == "LTC TAG (0x2,0x0)"
        assert "asks for a reset" in loose.message

    def test_where_it_was(self) -> None:
        """171 and 172 distinguish DRAM from SRAM, 160 shows whether a reboot is due."""
        output = decode(171, "HBM, Uncorrectable DRAM error in FBPA 6 subpartition 0 physAddr 0x13")
        assert (output.attributes["memory"], output.attributes["fbpa"]) == ("DRAM", "6")
        output = decode(160, "Marking Channel 3 in FBPA 2 for repair; Node Reboot Required")
        assert output.attributes["memory_channel"] == "3" and "reboot of the host" in output.message


def test_other_codes() -> None:
    """13, 31, 45, 119: multiprocessor, address, root, and the awaited function."""
    text = "Graphics SM Warp Exception on (GPC 1, TPC 0, SM 1): Out Of Range Address"
    assert decode(13, text).attributes["sm"] == "GPC 1, TPC 0, SM 1"
    text = (
        "MMU Fault: ENGINE CE2 HUBCLIENT_CE0 faulted @ 0x792c_58000000. FAULT_PDE ACCESS_TYPE_READ"
    )
    result = decode(31, text).attributes
    assert (result["engine"], result["address"]) == ("CE2", "0x792c_58000000")
    assert (result["fault"], result["access"]) == ("FAULT_PDE", "ACCESS_TYPE_READ")
    decoded = decode(45, "pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149")
    assert decoded.attributes["caused_by"] == "149" and "XID 149" in decoded.message
    text = "Timeout after 6s of waiting for RPC response from GPU4 GSP! Expected function 76 (FREE)"
    result = decode(119, text).attributes
    assert (result["waited_seconds"], result["function"]) == ("6", "FREE")


class TestNvlink4:
    """XID 74: seven registers; Hopper uses some of them."""

    def test_link_and_bits(self) -> None:
        """The line that NVSentinel's documentation quotes."""
        text = "NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"
        decoded = decode(74, text)
        assert decoded.attributes["link"] == "14" and decoded.attributes["weight"] == "hardware"
        assert "register 3 bit 16" in decoded.message
        assert decoded.severity is XidSeverity.HAZARD and "severity" not in decoded.attributes

    def test_bits_that_can_be_ignored(self) -> None:
        """Only bits that the catalogue ignores, and only without other bits."""
        ignorable = "link 3(0x40000001, 0x0, 0x0, 0x0, 0x100000, 0x0, 0x0)"
        assert decode(74, ignorable).severity is XidSeverity.IGNORE
        other = "link 3(0x40000011, 0x0, 0x0, 0x0, 0x100000, 0x0, 0x0)"
        assert decode(74, other).severity is XidSeverity.HAZARD
        assert (
            decode(74, "link 3(0x0, 0x1, 0x0, 0x0, 0x0, 0x0, 0x0)").attributes["weight"]
            == "unknown"
        )

    def test_fewer_registers_are_not_guessed_at(self) -> None:
        """A link number without registers stays a link number."""
        assert decode(74, "fatal error detected on link 6(0x1, 0x2)").attributes == {"link": "6"}


def line5(unit: str, word: str, *numbers: int, link: str = "01") -> str:
    message = " ".join(f"0x{n:08x}" for n in numbers)
    return f"{unit} {word} XC0 i0 Link {link} ({message} 0x00000000)"


class TestNvlink5:
    """XID 144 to 150: the same bits mean another unit before and after driver R575."""

    @pytest.mark.parametrize(
        ("code", "text", "version", "severity", "verified"),
        [
            (144, line5("SAW_MVB", "Fatal", 0x21, 0x2), OLD, "fatal", True),
            (144, line5("SAW_MVB", "Fatal", 0x01, 0x2), NEW, "fatal", True),
            (144, line5("SAW_MVB", "Nonfatal", 0x21, 0x4), OLD, "ignore", True),
            (145, line5("RLW_REMAP", "Nonfatal", 0x04, 0x1), "580.65.06", "application", True),
            (145, line5("RLW_RXPIPE", "Nonfatal", 0x0409A0C2, 0x8), "570.1", "ignore", True),
            (146, line5("TLW_RX", "Fatal", 0x143, 0x4), OLD, "fatal", True),
            (146, line5("TLW_RX_PIPE1", "Fatal", 0x0B, 0x4), NEW, "fatal", True),
            (149, line5("NETIR_LINK_EVT", "Fatal", 0x021425C6, 0), OLD, "fatal", True),
            (149, line5("NETIR_LINK_DOWN", "Fatal", 0x02100011, 0), NEW, "fatal", True),
            (149, line5("NETIR", "Fatal", 0x000FE406, 0, link="-1"), OLD, "fatal", True),
            (149, line5("NETIR_BER_EVENT", "Nonfatal", 0x13, 0x1), NEW, "ignore", True),
            (150, line5("MSE_WATCHDOG", "Fatal", 0, 0), NEW, "fatal", True),
            (150, line5("MSE Degraded", "Fatal", 0, 0xFFFFFFFF), OLD, "fatal", True),
            # unknown driver: the bits' meaning, unverified
            (144, line5("SAW_MVB", "Fatal", 0x21, 0x2), "", "fatal", False),
            (144, line5("SAW_MVB", "Fatal", 0x01, 0x2), "R575", "fatal", False),
            (150, line5("MSE_WATCHDOG", "Fatal", 0, 0), "", "fatal", False),
            # the driver should have used the other layout
            (144, line5("SAW_MVB", "Fatal", 0x21, 0x2), NEW, "fatal", False),
            # the line's own severity wins
            (144, line5("SAW_MVB", "Nonfatal", 0x21, 0x2), OLD, "hazard", True),
            (144, line5("SAW_MVB", "Fatal", 0x21, 0x4), OLD, "hazard", True),
            # promoted by the bit above the unit
            (145, line5("RLW_RXPIPE", "Nonfatal", 0x0C2, 0x1), OLD, "ignore", True),
            (145, line5("RLW_RXPIPE", "Fatal", 0x4C2, 0x1), OLD, "fatal", True),
            (145, line5("RLW_RXPIPE", "Fatal", 0x086, 0x1), NEW, "fatal", True),
            # not in the catalogue
            (144, line5("SAW_MVB", "Fatal", 0x21, 0x4000), OLD, "hazard", True),
            (144, line5("SAW_NEW", "Fatal", 0x3FF, 0x2), NEW, "hazard", False),
            (149, line5("NETIR_LINK_DOWN", "Fatal", 0x02800011, 0), NEW, "hazard", True),
            (144, "SAW_MVB Nonfatal XC1 i1 Link 05", OLD, "hazard", True),
            (144, "something else", OLD, "hazard", True),
        ],
    )
    def test_lines(self, code: int, text: str, version: str, severity: str, verified: bool) -> None:
        """Fatal only if line and catalogue agree."""
        decoded = decode(code, text, version)
        assert (decoded.severity, decoded.verified) == (severity, verified), decoded.message
        if not verified and "SAW_NEW" not in text:
            assert "unverified" in decoded.message

    def test_what_the_line_says(self) -> None:
        """Unit, link, containment, injection, registers; also a pair with brackets and blanks."""
        result = decode(149, "NETIR_LINK_EVT Fatal XC 1 i 2 Link 01 [0x021425c6]", OLD).attributes
        assert result["unit"] == "NETIR_LINK_EVT" and result["link"] == "1"
        assert (result["cross_contained"], result["injected"]) == ("yes", "yes")
        assert (result["intrinfo"], result["reason"]) == ("0x021425c6", "33")
        assert "error_status" not in result

    def test_the_other_end(self) -> None:
        """Replacing the GPU at the other end is the costliest mistake of NVLink."""
        text = line5("NETIR_LINK_EVT", "Fatal", 0x021425C6, 0)
        assert "other end failed first" in decode(149, text, OLD).message

    @pytest.mark.parametrize("unit", nvlink_facts().units, ids=lambda unit: unit.name)
    def test_no_unit_is_taken_for_another(self, unit: NvLinkUnit) -> None:
        """In either layout a unit's bits belong only to it, or to units with the same cost."""
        for other in nvlink_facts().units:
            if other.xid != unit.xid or other is unit:
                continue
            assert other.newer != unit.newer
            if other.older == unit.older:
                assert (other.costs, other.older_name) == (unit.costs, unit.older_name)
        assert unit.older < 1 << OLDER_BITS and unit.newer < 1 << NEWER_BITS


@pytest.mark.parametrize(
    ("version", "major"),
    [("575.57.08", 575), ("580", 580), ("", None), ("v575", None), ("5", None), ("N/A", None)],
)
def test_driver_versions(version: str, major: int | None) -> None:
    """An invalid version is not read as an old one."""
    assert driver_major(version) == major


class TestSwitch:
    """SXID lines contain Fatal or Non-fatal, and the line wins."""

    @pytest.mark.parametrize(
        ("code", "text", "severity", "continuation"),
        [
            (20034, "Fatal, Link 30 LTSSM Fault Up", "fatal", False),
            (20034, "Non-fatal, Link 30 LTSSM Fault Up", "hazard", False),
            (20034, "Severity 1 Engine instance 30 Sub-engine instance 00", "fatal", True),
            (20034, "Severity 0 Engine instance 30 Sub-engine instance 00", "hazard", True),
            (20034, "Data {0x50610002, 0x10100030}", "fatal", True),
            (12028, "Non-fatal, Link 32 egress non-posted PRIV error (First)", "hazard", False),
            (11012, "Non-fatal, Link 2 single bit", "ignore", False),
            (11012, "Fatal, Link 2 single bit", "hazard", False),
            (29999, "Fatal, Link 2 something new", "hazard", False),
            (29999, "Non-fatal, Link 2 something new", "unknown", False),
            (29999, "something new", "unknown", False),
        ],
    )
    def test_lines(self, code: int, text: str, severity: str, continuation: bool) -> None:
        """An unknown code is never fatal; if its line says Fatal it is a hazard."""
        decoded = decode(code, text, table="sxid")
        assert (decoded.severity, decoded.continuation) == (severity, continuation)
        assert decoded.attributes.get("link") == (text.split()[2] if "Link" in text else None)


@given(
    CODES,
    st.one_of(st.text(max_size=300), st.lists(PIECES, max_size=40).map("".join)),
    st.one_of(st.sampled_from(["", OLD, NEW, "N/A", "999.9"]), st.text(max_size=10)),
    st.sampled_from(["xid", "sxid"]),
)
@example(149, "A_" * 32768, NEW, "xid")
@example(74, "link 3(" + "0x0, " * 13000, "", "xid")
@example(13, "name=" + " " * 65536, "", "xid")
@example(31, "faulted @ 0x" + "_" * 65536, "", "xid")
@example(154, "from 0x0 (" * 6500, "", "xid")
@example(20034, "," * 65536, "", "sxid")
def test_garbage_never_raises(code: int, text: str, version: str, table: str) -> None:
    """A kernel line of 64 kB, broken bytes, numbers without end: decoded as far as it goes."""
    decoded = decode(code, text, version, table)
    assert decoded == decode(code, text, version, table)
    assert isinstance(decoded, DecodedLine) and decoded.code == code
    assert 0 <= decoded.process_id <= PROCESS_ID_MAX
    assert len(decoded.process_name) <= NAME_CHARACTERS_MAX and decoded.process_name.isprintable()
    assert len(decoded.attributes) <= 32
    for name, value in decoded.attributes.items():
        assert name.isidentifier() and len(value) <= VALUE_CHARACTERS_MAX
        (name + value).encode()
    decoded.message.encode()
    if code not in (154, *range(144, 151)) and table == "xid":
        assert decoded.severity in (lookup(code).severity, XidSeverity.IGNORE)
    parse_line(text)
