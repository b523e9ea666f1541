"""Rules for log lines of NVIDIA's drivers (XIDs and other faults), and the GPU of a line without an address.

Formats: kernel_rc.c (`NVRM: Xid (PCI:domain:bus:device[ GPU-I:n][ GPU-CI:n]): code, pid=, name=,
message`), osinit.c, nv.c and the nvswitch error reporting of NVIDIA's open-gpu-kernel-modules; older
forms from logs of drivers 3xx and 4xx.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ...contract.xid.decode import VARYING, decode
from . import record

XID, SXID, LOST, MESSAGE = "gpu.xid", "nvswitch.sxid", "gpu.lost", "gpu.driver_message"
NEEDS_RESET, NEEDS_REBOOT = "gpu.needs_reset", "gpu.needs_reboot"
#: Codes of MESSAGE: firmware or engines do not respond; the driver cannot start a GPU.
NO_RESPONSE, NOT_STARTED = 1, 2

#: A status in a comparison ("status == NV_ERR_GPU_IS_LOST") does not mean that it occurred.
_NOT_COMPARED = r"(?<![=] )"
#: Module -> prefix of its lines. Drivers before 530 print no colon.
_MODULES = {
    "NVRM": r"NVRM:?(?= )",
    "nvidia-uvm": r"nvidia-uvm:",
    "nvidia-modeset": r"nvidia-modeset:",
}
#: The GPU named in a line, by address or by the driver's number.
_NAMED_GPU = (
    rf"(?=(?:.{{0,160}}?\b(?P<pci>{record.PCI_WITH_DOMAIN}))?)"
    r"(?=(?:.{0,160}?\bGPU:?(?P<gpu_number>\d{1,3})\b)?)"
)
#: Attributes, besides the severity, that separate incidents of a code in `VARYING`. Every line of
#: such an incident is decoded.
_SCOPE_ATTRIBUTES = ("recovery", "unit", "link")
#: XIDs of the GSP contain address and number: `Xid (PCI:0000:9b:00): 119, ... response from GPU4
#: GSP`.
_NUMBERED = re.compile(r"\bfrom GPU(\d{1,3}) GSP\b")


def _status(hex_digits: str) -> str:
    """Return the pattern of an NV_STATUS (nvstatuscodes.h): after its key, or of a failed start."""
    return (
        rf"(?i:\b\w{{0,12}}status)[ =:]{{1,3}}0x0{{0,7}}{hex_digits}\b"
        rf"|RmInitAdapter failed! \(0x\w{{1,8}}:0x0{{0,7}}{hex_digits}:"
    )


#: Meanings of lines of NVIDIA's modules, most serious first, by their words alone: any function may
#: print them.
_MEANINGS: dict[tuple[str, int], tuple[str, ...]] = {
    (NEEDS_REBOOT, 0): (
        r"requir\w{1,4} (?:an? )?(?:OS|os|system|node|host|full|cold)[ -]reboot",
        r"global fatal error",
        r"[Rr]eboot (?:is )?required",
        r"must be rebooted",
    ),
    (LOST, 0): (
        r"fallen off the bus",
        r"lost from the bus",
        rf"{_NOT_COMPARED}NV_ERR_GPU_IS_LOST",
        _status("[fF]"),
    ),
    (NEEDS_RESET, 0): (
        r"[Rr]eset (?:is )?required",
        r"needs? to be reset",
        r"requires? (?:a )?reset\b",
        r"WPR2 already up",
        rf"{_NOT_COMPARED}NV_ERR_RESET_REQUIRED",
        _status("62"),
    ),
    (MESSAGE, NO_RESPONSE): (
        r"[Hh]eartbeat[^\n]{0,40}(?:time ?out|timed out|lost)",
        r"is probably locked",
        r"Timeout waiting for RISC-V to halt",
        r"GSP(?: RM)?(?: has)? (?:halt|panic|crash|time ?out|timed out)",
        r"waiting for RPC response from GPU\d{1,3} GSP",
    ),
    (MESSAGE, NOT_STARTED): (
        r"RmInitAdapter failed",
        r"rm_init_adapter failed",
        r"Cannot initialize GSP firmware",
        r"BAR\d+ is 0M",
        r"This PCI I/O region assigned to your NVIDIA device is invalid",
    ),
    (MESSAGE, 0): (
        r"crash dump",
        r"non-zero usage count",
        r"API mismatch",
        r"GPU recovery",
        r"GSP[^\n]{0,80}(?:fail|time ?out|timed out|halt|panic|crash)",
        r"Xid \(",  # a line with an XID that the rules above could not parse
    ),
}

NVIDIA_RULES = (
    record.rule(XID, "NVRM")(
        rf"NVRM:? Xid \((?:PCI:)?(?P<pci>{record.PCI})(?: GPU-I:(?P<gpu_instance>\d+))?"
        r"(?: GPU-CI:(?P<compute_instance>\d+))?[^)]{0,64}\): (?P<code>\d{1,9})\b"
        r"(?:, pid='?(?:(?P<pid>\d+)|<[^>]*>)'?)?(?:, name=(?:<[^>]*>|(?P<comm>[^,\n]+)))?"
    ),
    *(
        record.rule(name, module, code=code)(
            rf"{prefix}{_NAMED_GPU}.{{0,400}}?(?:{'|'.join(patterns)})"
        )
        for module, prefix in _MODULES.items()
        for (name, code), patterns in _MEANINGS.items()
    ),
    record.rule(MESSAGE, "nvidia", code=NOT_STARTED)(
        rf"nvidia(?:: probe of)? (?P<pci>{record.PCI})(?:: probe with driver nvidia)? failed with error"
    ),
    record.rule(SXID, "SXid", part=record.LinePart.DETAIL, group="sxid")(
        rf"nvidia-nvswitch\d+: SXid \(PCI:(?P<pci>{record.PCI})\): (?P<code>\d{{1,9}}), "
        r"(?:Severity (?P<severity_number>\d+)|Data \{(?P<data>[^}]*)|Engine)"
    ),
    record.rule(SXID, "SXid", group="sxid")(
        rf"(?P<switch>nvidia-nvswitch\d+): SXid \(PCI:(?P<pci>{record.PCI})\): (?P<code>\d{{1,9}})\b"
        r"(?:, [A-Za-z-]+)?(?:, Link (?P<link>\d+))?"
    ),
)


class XidDecoder:
    """Adds the meaning of an XID or SXID under the loaded driver."""

    def __init__(self, driver_version: Callable[[], str]) -> None:
        """*driver_version*: returns `575.57.08`, or "" if unknown; called for each decoded line."""
        self._driver_version = driver_version
        # Load the tables now, not during a fault
        for code, table in ((145, "xid"), (0, "sxid")):
            decode(code, "", table=table)

    def decode(self, parsed: record.ParsedLine, text: str) -> record.ParsedLine:
        """Return an XID or SXID with decoded attributes, other lines unchanged. Never raises."""
        if parsed.name not in (XID, SXID):
            return parsed
        table = "xid" if parsed.name == XID else "sxid"
        decoded = decode(parsed.code, text, self._driver_version(), table)
        attributes = {
            name: record.printable(value, record.VALUE_CHARACTERS_MAX)
            for name, value in {**parsed.attributes, **decoded.attributes}.items()
        }
        scope = ""
        if parsed.name == SXID or parsed.code in VARYING:
            scope_parts = (decoded.attributes.get(name, "") for name in _SCOPE_ATTRIBUTES)
            scope = " ".join((decoded.severity.value, *scope_parts))[: record.VALUE_CHARACTERS_MAX]
        limited = dict(list(attributes.items())[: record.ATTRIBUTES_MAX])
        return parsed._replace(attributes=limited, scope=scope)


class GpuFinder:
    """Adds an unambiguous GPU address to lines without an address."""

    def __init__(
        self, nvidia: Callable[[], Sequence[str]], amd: Callable[[], Sequence[str]]
    ) -> None:
        """*nvidia*, *amd*: return the PCI addresses of a driver's GPUs."""
        self._nvidia, self._amd = nvidia, amd
        self._numbers: dict[str, str] = {}  # the driver's number -> address

    def complete(self, parsed: record.ParsedLine, text: str) -> record.ParsedLine:
        """Return *parsed* with the GPU's address if its number is known or the host has one GPU.

        Never raises.
        """
        if parsed.name == XID and (match := _NUMBERED.search(text)):
            self._numbers[match[1]] = parsed.device
        if parsed.device != "host" or not parsed.name.startswith("gpu."):
            return parsed
        address = self._numbers.get(parsed.attributes.get("gpu_number", ""), "")
        if not address:
            gpus = self._nvidia() if text.startswith(("NVRM", "nvidia")) else self._amd()
            address = gpus[0] if len(gpus) == 1 else ""
        return parsed._replace(device=address) if address else parsed
