"""Rules for lines of PCIe error reporting: AER, downstream port containment, hotplug.

Formats: drivers/pci/pcie/aer.c, dpc.c, drivers/pci/hotplug/pciehp_ctrl.c. An error has several lines: the port names the
sender (head), the device the error (body), and details follow. Kernels limit the rate of each, so any may be missing.
"""

from __future__ import annotations

from .record import BDF, LinePart, rule

AER = "pcie.aer"
#: Names of severities, old and new.
_CODES = {
    "corrected": 0,
    "correctable": 0,
    "uncorrected (non-fatal)": 1,
    "uncorrectable (non-fatal)": 1,
    "uncorrected (fatal)": 2,
    "uncorrectable (fatal)": 2,
}
_SEVERITY = r"(?P<severity>(?:Unc|C)orrect(?:ed|able)(?: \((?:Non-)?Fatal\))?)"
#: Prefix of aer_printk and pci_info; kernels before 4.15 omit `AER: `.
_DEVICE_PREFIX = rf"\S+ (?P<pci>{BDF}): (?:AER: )?"
PCIE_RULES = (
    rule(
        AER,
        "rror",
        rf"\S+ (?P<port>{BDF}): (?:AER: )?(?:Multiple )?{_SEVERITY} error (?:message )?received"
        rf"(?: from)?:? (?P<pci>{BDF})",
        codes=("severity", _CODES),
        part=LinePart.HEAD,
        group="aer",
    ),
    rule(
        AER,
        "PCIe Bus Error",
        rf"{_DEVICE_PREFIX}PCIe Bus Error: severity={_SEVERITY}, type=(?P<layer>[^,\n]{{1,40}})"
        r"(?:, (?:id=\w+)?\((?P<agent>[^)]{1,40})\))?",
        codes=("severity", _CODES),
        part=LinePart.BODY,
        group="aer",
    ),
    rule(
        AER,
        "error status/mask",
        rf"{_DEVICE_PREFIX} +device \[[^]]*\] error status/mask=(?P<status>\w+)/(?P<mask>\w+)",
        part=LinePart.DETAIL,
        group="aer",
    ),
    rule(
        AER,
        "AER:",
        rf"{_DEVICE_PREFIX}(?:  +TLP Header: (?P<tlp_header>[0-9a-f ]+)"
        r"|device recovery (?P<recovery>(?!failed)\w+))",
        part=LinePart.DETAIL,
        group="aer",
    ),
    rule(
        AER,
        "AER:",
        rf"{_DEVICE_PREFIX}(?:device recovery (?P<recovery>failed)|can't recover(?P<cannot_recover>[^\n]*))",
        code=2,
        part=LinePart.OUTCOME,
        group="aer",
    ),
    rule(
        AER,
        "   [",
        rf"{_DEVICE_PREFIX} +\[ ?\d+\] (?P<error>\S+)",
        part=LinePart.DETAIL,
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
    # A card that was switched off first, and a link that recovers by itself, have other messages.
    rule(
        AER,
        "Slot(",
        rf"(?:pcieport|pciehp) (?P<pci>{BDF})(?::pcie\w{{1,8}})?: (?:pciehp: )?Slot\((?P<slot>[^)\n]{{1,32}})\): "
        r"(?P<severity>Link Down|Card not present)$",
        code=2,
    ),
)
