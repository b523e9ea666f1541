"""Rules for lines about the machine: firmware reports (GHES, BERT), machine checks, memory errors (EDAC).

Formats: drivers/firmware/efi/cper.c, drivers/acpi/apei/ghes.c and bert.c, arch/x86/kernel/cpu/mce/core.c,
drivers/edac/mce_amd.c, drivers/edac/edac_mc.c, mm/memory-failure.c.
"""

from __future__ import annotations

from .record import LinePart, ParsedLine, rule

FIRMWARE, CHECK, MEMORY_ERROR = "host.hardware_error", "host.machine_check", "host.memory_error"

_SEVERITIES = {"recoverable": 0, "fatal": 1, "corrected": 2, "info": 3}
_ERROR = r"\[Hardware Error\]:"
#: Bit 61 of IA32_MCi_STATUS (Intel SDM volume 3, machine-check architecture; AMD's is the same):
#: not corrected.
_UNCORRECTED = 1 << 61
#: Bit 44 of AMD's MCA_STATUS (AMD64 APM volume 2): lost data that has not been read yet.
_DEFERRED = 1 << 44


def _machine_check(parsed: ParsedLine) -> ParsedLine:
    """Set the code from the bank's status: 1 if data was lost."""
    uncorrected = int(parsed.attributes["status"], 16) & _UNCORRECTED
    return parsed._replace(code=1 if uncorrected else 0)


def _machine_check_of_amd(parsed: ParsedLine) -> ParsedLine:
    lost = int(parsed.attributes["status"], 16) & (_UNCORRECTED | _DEFERRED)
    return parsed._replace(code=1 if lost else 0)


def _firmware(parsed: ParsedLine) -> ParsedLine:
    """Mark a record without a number, which the firmware kept from the previous boot (BERT)."""
    if "record" in parsed.attributes:
        return parsed
    attributes = {**parsed.attributes, "previous_boot": "yes"}
    return parsed._replace(scope="previous boot", attributes=attributes)


MACHINE_RULES = (
    rule(
        FIRMWARE,
        "event severity",
        rf"(?:\{{(?P<record>\d+)\}})?{_ERROR} event severity: (?P<severity>\w+)",
        codes=("severity", _SEVERITIES),
        group="ghes",
        finish=_firmware,
    ),
    rule(
        FIRMWARE,
        "[Hardware Error]",
        rf"(?:\{{\d+\}})?{_ERROR} +(?:section[_ ]type: (?P<section>[^\n]+)|section length: |fru_text: "
        r"(?P<fru>[^\n]+)|error_type: (?P<error>[^\n]+)|physical_address: (?P<physical_address>\w+)"
        r"|device_id: (?P<pci_address>[0-9a-f:.]+)|DIMM location: (?P<dimm>[^\n]+)"
        r"|node: ?(?P<memory_node>\d+))",
        part=LinePart.DETAIL,
        group="ghes",
    ),
    rule(
        CHECK,
        "Machine check events",
        rf"mce: {_ERROR} Machine check events logged",
        part=LinePart.HEAD,
        group="mce",
    ),
    rule(
        CHECK,
        "Machine Check",
        rf"mce: {_ERROR} CPU (?P<cpu>\d+): Machine Check(?: Exception)?: (?P<mcg_status>[0-9a-f]+) "
        r"Bank (?P<bank>\d+): (?P<status>[0-9a-f]{1,16})\b",
        part=LinePart.BODY,
        group="mce",
        finish=_machine_check,
    ),
    rule(
        CHECK,
        "_STATUS[",
        rf"(?:.{{0,40}}?){_ERROR} CPU:(?P<cpu>\d+) \([^)]*\) MC(?P<bank>\d+)_STATUS"
        r"\[(?P<flags>[^]]*)\]: 0x(?P<status>[0-9a-f]{1,16})\b",
        part=LinePart.BODY,
        group="mce",
        finish=_machine_check_of_amd,
    ),
    rule(
        CHECK,
        "Machine check: ",
        rf"mce: {_ERROR} Machine check: (?P<reason>[^\n]+)",
        code=1,
        group="mce",
    ),
    rule(
        CHECK,
        "[Hardware Error]",
        rf"mce: {_ERROR} (?:TSC \w+ (?:ADDR (?P<address>[0-9a-f]+))?(?: ?MISC (?P<misc>[0-9a-f]+))?"
        r"|PROCESSOR \S+ TIME \d+ SOCKET (?P<socket>\d+))",
        part=LinePart.DETAIL,
        group="mce",
    ),
    rule(
        MEMORY_ERROR,
        "EDAC ",
        r"EDAC (?P<controller>\w+): (?P<count>\d+) (?P<kind>CE|UE) (?P<error>[^\n]{0,200}?) ?\bon "
        r"(?P<device>[^\n]{1,160}?) \(",
        codes=("kind", {"ce": 0, "ue": 1}),
    ),
    rule(
        MEMORY_ERROR,
        "Memory failure: ",
        r"(?:MCE|Memory failure): 0x(?P<page>[0-9a-f]+): (?:(?:Sending SIGBUS to|Killing) "
        r"(?P<comm>[^\n]{1,64}?):(?P<pid>\d+) due|recovery action for (?P<recovery>[^\n]+))",
        code=1,
        attributes={"kind": "UE"},
    ),
)
