"""Lines of PCIe error reporting: AER and downstream port containment (drivers/pci/pcie/aer.c, dpc.c).

One error is several lines: the port tells who sent it (the head), the device tells what it was (the
body), and details follow. Kernels limit the rate of any of them, so each may be missing.
"""

from __future__ import annotations

from .notice import BDF, Part, rule

AER = "pcie.aer"

#: Of the severities' names, old and new.
_CODES = {
    "corrected": 0,
    "correctable": 0,
    "uncorrected (non-fatal)": 1,
    "uncorrectable (non-fatal)": 1,
    "uncorrected (fatal)": 2,
    "uncorrectable (fatal)": 2,
}
_SEVERITY = r"(?P<severity>(?:Unc|C)orrect(?:ed|able)(?: \((?:Non-)?Fatal\))?)"
#: `aer_printk` and `pci_info` begin so; kernels before 4.15 without `AER: `.
_WHO = rf"\S+ (?P<pci>{BDF}): (?:AER: )?"

RULES = (
    rule(
        AER,
        "rror",
        rf"\S+ (?P<port>{BDF}): (?:AER: )?(?:Multiple )?{_SEVERITY} error (?:message )?received"
        rf"(?: from)?:? (?P<pci>{BDF})",
        codes=("severity", _CODES),
        part=Part.HEAD,
        group="aer",
    ),
    rule(
        AER,
        "PCIe Bus Error",
        rf"{_WHO}PCIe Bus Error: severity={_SEVERITY}, type=(?P<layer>[^,\n]{{1,40}})"
        r"(?:, (?:id=\w+)?\((?P<agent>[^)]{1,40})\))?",
        codes=("severity", _CODES),
        part=Part.BODY,
        group="aer",
    ),
    rule(
        AER,
        "error status/mask",
        rf"{_WHO} +device \[[^]]*\] error status/mask=(?P<status>\w+)/(?P<mask>\w+)",
        part=Part.DETAIL,
        group="aer",
    ),
    rule(
        AER,
        "AER:",
        rf"{_WHO}(?:  +TLP Header: (?P<tlp_header>[0-9a-f ]+)"
        r"|device recovery (?P<recovery>\w+)|can't recover(?P<cannot_recover>[^\n]*))",
        part=Part.DETAIL,
        group="aer",
    ),
    rule(
        AER,
        "   [",
        rf"{_WHO} +\[ ?\d+\] (?P<error>\S+)",
        part=Part.DETAIL,
        group="aer",
    ),
    rule(
        AER,
        "DPC:",
        rf"\S+ (?P<pci>{BDF}): DPC: containment event, status:(?P<dpc_status>\w+)"
        r"(?: source:(?P<source>\w+))?",
        code=2,
        attributes={"severity": "downstream port contained"},
    ),
)
