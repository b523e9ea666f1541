"""Lines about the machine itself: what firmware reported (GHES, BERT), machine checks, memory (EDAC).

Formats: drivers/firmware/efi/cper.c, drivers/acpi/apei/ghes.c and bert.c, arch/x86/kernel/cpu/mce/core.c,
drivers/edac/mce_amd.c, drivers/edac/edac_mc.c, mm/memory-failure.c.
"""

from __future__ import annotations

from .notice import Notice, Part, rule

FIRMWARE, CHECK, MEMORY = "host.hardware_error", "host.machine_check", "host.memory_error"

_SEVERITIES = {"recoverable": 0, "fatal": 1, "corrected": 2, "info": 3}
_ERROR = r"\[Hardware Error\]:"
#: Bit 61 of IA32_MCi_STATUS (Intel SDM volume 3, machine-check architecture; AMD's the same): not corrected.
_UNCORRECTED = 1 << 61
#: Bit 44 of AMD's MCA_STATUS (AMD64 APM volume 2): data is lost that nobody has read yet.
_DEFERRED = 1 << 44


def _machine_check(notice: Notice) -> Notice:
    """The bank's status says whether data was lost."""
    uncorrected = int(notice.attributes["status"], 16) & _UNCORRECTED
    return notice._replace(code=1 if uncorrected else 0)


def _machine_check_of_amd(notice: Notice) -> Notice:
    lost = int(notice.attributes["status"], 16) & (_UNCORRECTED | _DEFERRED)
    return notice._replace(code=1 if lost else 0)


def _firmware(notice: Notice) -> Notice:
    """A record without a number is not of now: the firmware kept it from the boot before (BERT)."""
    if "record" in notice.attributes:
        return notice
    attributes = {**notice.attributes, "previous_boot": "yes"}
    return notice._replace(scope="previous boot", attributes=attributes)


RULES = (
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
        part=Part.DETAIL,
        group="ghes",
    ),
    rule(
        CHECK,
        "Machine check events",
        rf"mce: {_ERROR} Machine check events logged",
        part=Part.HEAD,
        group="mce",
    ),
    rule(
        CHECK,
        "Machine Check",
        rf"mce: {_ERROR} CPU (?P<cpu>\d+): Machine Check(?: Exception)?: (?P<mcg_status>[0-9a-f]+) "
        r"Bank (?P<bank>\d+): (?P<status>[0-9a-f]{1,16})\b",
        part=Part.BODY,
        group="mce",
        finish=_machine_check,
    ),
    rule(
        CHECK,
        "_STATUS[",
        rf"(?:.{{0,40}}?){_ERROR} CPU:(?P<cpu>\d+) \([^)]*\) MC(?P<bank>\d+)_STATUS"
        r"\[(?P<flags>[^]]*)\]: 0x(?P<status>[0-9a-f]{1,16})\b",
        part=Part.BODY,
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
        part=Part.DETAIL,
        group="mce",
    ),
    rule(
        MEMORY,
        "EDAC ",
        r"EDAC (?P<controller>\w+): (?P<count>\d+) (?P<kind>CE|UE) (?P<error>[^\n]{0,200}?) ?\bon "
        r"(?P<device>[^\n]{1,160}?) \(",
        codes=("kind", {"ce": 0, "ue": 1}),
    ),
    rule(
        MEMORY,
        "Memory failure: ",
        r"(?:MCE|Memory failure): 0x(?P<page>[0-9a-f]+): (?:(?:Sending SIGBUS to|Killing) "
        r"(?P<comm>[^\n]{1,64}?):(?P<pid>\d+) due|recovery action for (?P<recovery>[^\n]+))",
        code=1,
        attributes={"kind": "UE"},
    ),
)
