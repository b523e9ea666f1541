"""Decodes the details in an NVIDIA driver's log line. Pure; never raises, for any input.

Forms of the lines: NVIDIA, "XID Errors" and "GPU Memory Error Management"; open-gpu-kernel-modules
(gpu_rc, row remapper, error containment); the kernel logs that leptonai/gpud tests with.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from .line_reading import MESSAGE_CHARACTERS_MAX, LineReading, printable
from .nvlink import decode_nvlink5, decode_xid74
from .policy import XidSeverity, lookup, lookup_sxid

#: Length of a process name in the driver (NV_PROC_NAME_MAX_LENGTH); the rest is cut.
NAME_CHARACTERS_MAX = 100
#: The kernel's highest process id (PID_MAX_LIMIT); a larger number is not a process id.
PROCESS_ID_MAX = 4194304
#: Longer attribute values are cut.
VALUE_CHARACTERS_MAX = 120

#: nvmlDeviceGpuRecoveryAction_t (nvml.h) -> our name, severity, action.
RECOVERY_ACTIONS: dict[int, tuple[str, XidSeverity, str]] = {
    0: ("none", XidSeverity.IGNORE, "none; the driver no longer asks for a recovery action"),
    1: ("reset", XidSeverity.FATAL, "drain and reset the GPU"),
    2: ("reboot", XidSeverity.FATAL, "drain and reboot the host"),
    3: ("drain peer-to-peer", XidSeverity.HAZARD, "end the peer-to-peer work of that GPU"),
    4: ("drain and reset", XidSeverity.FATAL, "let the jobs end, start none, then reset the GPU"),
}

_LINE = re.compile(
    r"\b(SXid|Xid)\s*\((?:PCI:)?([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)[^)]{0,40}\)\s*:"
    r"\s*([0-9]{1,9})\b\s*,?\s*",
    re.ASCII | re.IGNORECASE,
)
_PROCESS_ID = re.compile(r"\bpid='?([0-9]{1,10})\b", re.ASCII)
_PROCESS_NAME = re.compile(r"\bname=([^,\r\n]{1,400})")
_RECOVERY = re.compile(
    r"from\s+0x([0-9a-f]{1,8})\s*\(([^)]{0,60})\)\s*to\s+0x([0-9a-f]{1,8})\s*\(([^)]{0,60})",
    re.ASCII | re.IGNORECASE,
)
_SXID_WORD = re.compile(r"(?:^|[,:])\s*(Fatal|Non-?fatal)\b", re.ASCII | re.IGNORECASE)
_SXID_SEVERITY = re.compile(r"(?:^|,)\s*Severity\s+([01])\s+Engine instance", re.ASCII)
_SXID_DATA = re.compile(r"(?:^|,)\s*Data\s*\{", re.ASCII)
_LINK = re.compile(r"\bLink\s+([0-9]{1,3})\b", re.ASCII)
#: Attribute -> its pattern, in any line.
_ANYWHERE: dict[str, str] = {
    "channel": r"\b(?:Ch|channel)\s+(?:ID\s+)?(?:0x)?([0-9a-f]{1,16})\b",
    "caused_by": r"\bcaused by previous Xid\s+([0-9]{1,9})\b",
}
_MEMORY = {
    "physical_address": r"\bphysAddr\s+(0x[0-9a-f_]{1,24})",
    "row_address": r"\brow(?: address)?\s*\(?(0x[0-9a-f]{1,16})\b",
    "partition": r"\bpartition\s+([0-9]{1,4})\b",
    "subpartition": r"\bsubpartition\s+([0-9]{1,4})\b",
    "fbpa": r"\bFBPA\s*([0-9]{1,4})\b",
    "memory_channel": r"\bMarking Channel\s+([0-9]{1,4})\b",
    "memory": r"\b(SRAM|DRAM|framebuffer)\b",
    "location": r"\b(?:Unc|C)ontained:\s*([A-Za-z0-9 ]{1,40}(?:\([0-9a-fx, ]{1,24}\))?)",
    "reset_required": r"[. ]RST:\s*(Yes|No)\b",
    "drain_and_reset": r"\bD-RST:\s*(Yes|No)\b",
    "reboot_required": r"\b(Node Reboot Required)\b",
}
_MMU = {
    "engine": r"\bENGINE\s+([A-Z0-9_]{1,40})\b",
    "address": r"\bfaulted @\s*(0x[0-9a-f_]{1,24})",
    "fault": r"\b(FAULT_[A-Z0-9_]{1,40})\b",
    "access": r"\b(ACCESS_TYPE_[A-Z0-9_]{1,40})\b",
}
_GRAPHICS = {
    "sm": r"\((GPC\s+[0-9]{1,3},\s*TPC\s+[0-9]{1,3}(?:,\s*SM\s+[0-9]{1,3})?)\)",
    "exception": r"\b(?:Graphics |SM )(?:Warp |Global )?Exception\b[^:]{0,80}:\s*([A-Za-z ]{3,60})",
}
_GSP = {
    "waited_seconds": r"\bTimeout after\s+([0-9]{1,6})\s*s\b",
    "function": r"\b[Ff]unction\s+[0-9]{1,6}\s*\(([A-Z0-9_]{1,60})\)",
    "gsp": r"\b(GPU[0-9]{1,3}) GSP\b",
}
_PATTERNS: dict[str, re.Pattern[str]] = {
    pattern: re.compile(pattern, re.ASCII | re.IGNORECASE)
    for group in (_ANYWHERE, _MEMORY, _MMU, _GRAPHICS, _GSP)
    for pattern in group.values()
}
_MEMORY_PLACES = (
    "memory",
    "location",
    "partition",
    "subpartition",
    "fbpa",
    "memory_channel",
    "row_address",
)
_NVLINK5 = frozenset(range(144, 151))
#: XIDs whose lines differ in severity, by link, unit or recovery action.
VARYING = _NVLINK5 | {74, 154}


@dataclass(frozen=True, slots=True)
class DecodedLine:
    """Content of one line: the policy's row, refined.

    `process_id` 0 and `process_name` "": the line names no process; a named process met the fault and is not
    necessarily its cause. `attributes`: at most 32 decoded values by name (`policy.refine` reads `severity`, `action`
    and `recovery`). `cancels`: codes of the same device that this line revokes. `continuation`: a further line about
    the same code, not a separate event. `verified` False: decoded without the driver's version, or against the expected
    form.
    """

    code: int
    severity: XidSeverity
    action: str
    message: str = ""
    process_id: int = 0
    process_name: str = ""
    attributes: dict[str, str] = field(default_factory=dict)
    cancels: tuple[int, ...] = ()
    continuation: bool = False
    verified: bool = True


@dataclass(frozen=True, slots=True)
class XidLine:
    """A line of the kernel log with a code. `device`: PCI address in sysfs form."""

    table: str  # xid, sxid
    code: int
    device: str
    message: str  # the text after the code


def parse_line(line: str) -> XidLine | None:
    """Return the code, device and message of a line of the kernel log; None if the line has no code."""
    match = _LINE.search(line[:MESSAGE_CHARACTERS_MAX])
    if match is None:
        return None
    device = match[2].lower()
    domain, _, rest = device.partition(":")
    device = f"{domain[-4:] if not domain[:-4].strip('0') else domain}:{rest}"
    if "." not in device:
        device += ".0"
    message = line[match.end() : match.end() + MESSAGE_CHARACTERS_MAX]
    return XidLine(match[1].lower(), int(match[3]), device, message)


def decode(code: int, message: str, driver_version: str = "", table: str = "xid") -> DecodedLine:
    """Return the decoded *message* of *code*: the whole line, or the text after the code.

    `driver_version`: in NVML's form, "575.57.08"; only NVLink 5 needs it. `table`: xid or sxid.
    """
    text = message[:MESSAGE_CHARACTERS_MAX]
    process_id, process_name = _process(text)
    text = _PROCESS_NAME.sub(
        "name=", text
    )  # a user chose it: it must not pass for the driver's words
    reading = LineReading()
    _find_attributes(_ANYWHERE, text, reading)
    if table == "sxid":
        row, continuation = lookup_sxid(code), _nvswitch(code, text, reading)
    else:
        row, continuation = lookup(code), False
        if row.code in _NVLINK5:
            decode_nvlink5(code, text, driver_version, reading)
        elif decoder := _DECODERS.get(code):
            decoder(text, reading)
    if "caused_by" in reading.attributes:
        reading.details.append(f"the driver says: because of XID {reading.attributes['caused_by']}")
    severity = row.severity if reading.severity is None else reading.severity
    action = reading.action or row.action
    if reading.severity is not None:
        reading.attributes["severity"] = severity.value
    if reading.action is not None:
        reading.attributes["action"] = action
    return DecodedLine(
        code=code,
        severity=severity,
        action=action,
        message="; ".join(dict.fromkeys(reading.details)),
        process_id=process_id,
        process_name=process_name,
        attributes={k: v[:VALUE_CHARACTERS_MAX] for k, v in reading.attributes.items()},
        cancels=reading.cancels or row.cancels,
        continuation=continuation,
        verified=reading.verified,
    )


def _process(text: str) -> tuple[int, str]:
    """Return the process that the line names; 0 and "" if the line names no process, or "<unknown>"."""
    found = _PROCESS_ID.search(text)
    process_id = int(found[1]) if found else 0
    name_match = _PROCESS_NAME.search(text)
    name = printable(name_match[1]).strip().strip("'")[:NAME_CHARACTERS_MAX] if name_match else ""
    if name.startswith("<") and name.endswith(">"):
        name = ""
    return (process_id if process_id <= PROCESS_ID_MAX else 0), name


def _find_attributes(patterns: dict[str, str], text: str, reading: LineReading) -> None:
    for name, pattern in patterns.items():
        if match := _PATTERNS[pattern].search(text):
            reading.attributes[name] = " ".join(match[1].split())


def _memory(text: str, reading: LineReading) -> None:
    """Read 48, 63, 64, 92, 94, 95, 156 to 161, 171, 172: the place in the memory, and the due action."""
    _find_attributes(_MEMORY, text, reading)
    found = reading.attributes
    for name, detail in (
        ("reset_required", "the driver asks for a reset"),
        ("drain_and_reset", "the driver asks for a drain and a reset"),
        ("reboot_required", "the line asks for a reboot of the host"),
    ):
        if found.get(name) in ("Yes", "Node Reboot Required"):
            reading.details.append(detail)
    place = [f"{k.replace('_', ' ')} {found[k]}" for k in _MEMORY_PLACES if k in found]
    if place:
        reading.details.append(", ".join(place))


def _mmu(text: str, reading: LineReading) -> None:
    """Read 31: the engine and the address."""
    _find_attributes(_MMU, text, reading)
    if {"engine", "address"} <= reading.attributes.keys():
        found = reading.attributes
        reading.details.append(f"engine {found['engine']} reached for {found['address']}")


def _graphics(text: str, reading: LineReading) -> None:
    """Read 13: the multiprocessor."""
    _find_attributes(_GRAPHICS, text, reading)
    if "sm" in reading.attributes:
        reading.details.append(f"on {reading.attributes['sm']}")


def _gsp(text: str, reading: LineReading) -> None:
    """Read 119, 120: the driver's waiting time and the awaited function."""
    _find_attributes(_GSP, text, reading)
    found = reading.attributes
    if "waited_seconds" in found:
        awaited = f" for {found['function']}" if "function" in found else ""
        reading.details.append(f"the driver waited {found['waited_seconds']} s{awaited}")


def _recovery(text: str, reading: LineReading) -> None:
    """Read 154: the requested action. If number and text disagree, the text counts."""
    match = _RECOVERY.search(text)
    if match is None:
        return
    number, driver_text = int(match[3], 16), printable(match[4]).strip()
    action = _recovery_number(driver_text)
    if action is None:
        action = number if number in RECOVERY_ACTIONS else None
    if action is None:
        reading.details.append(
            f"the driver requests {driver_text!r} (0x{number:x}), which Gangline does not know"
        )
        reading.severity = XidSeverity.HAZARD
        reading.attributes |= {"recovery": "unknown", "recovery_number": str(number)}
        return
    name, reading.severity, reading.action = RECOVERY_ACTIONS[action]
    reading.attributes |= {
        "recovery": name,
        "recovery_number": str(number),
        "recovery_text": driver_text,
    }
    before = printable(match[2]).strip()
    reading.details.append(
        f"the driver asks for: {name} ({driver_text}); before: {before or 'not given'}"
    )
    if action != number:
        reading.details.append(f"its number, {number}, stands for something else; the text counts")
    if action == 0:
        reading.cancels = (154,)


def _recovery_number(driver_text: str) -> int | None:
    """Return NVML's number for the driver's text; None for an unknown text."""
    text = driver_text.lower()
    if "drain" in text:
        return 4 if "reset" in text else 3
    if "reboot" in text:
        return 2
    if "reset" in text or "flr" in text:  # PF FLR: a function-level reset
        return 1
    return 0 if text == "none" else None


def _nvswitch(code: int, text: str, reading: LineReading) -> bool:
    """Read a line of an NVSwitch; return whether it continues another line of the same code."""
    if link := _LINK.search(text):
        reading.attributes["link"] = str(int(link[1]))
    severity_word, severity_number = _SXID_WORD.search(text), _SXID_SEVERITY.search(text)
    if severity_word is None and severity_number is None:
        return _SXID_DATA.search(text) is not None
    fatal = (
        severity_word[1].lower() == "fatal"
        if severity_word
        else bool(severity_number and severity_number[1] == "1")
    )
    reading.attributes["line_severity"] = "fatal" if fatal else "nonfatal"
    where = f", link {link[1]}" if link else ""
    reading.details.append(f"the line says {'Fatal' if fatal else 'Non-fatal'}{where}")
    default_severity = lookup_sxid(code).severity
    if (
        default_severity is not XidSeverity.HAZARD
        and (default_severity is XidSeverity.FATAL) != fatal
    ):
        reading.severity = XidSeverity.HAZARD
    return severity_word is None


_DECODERS: dict[int, Callable[[str, LineReading], None]] = {
    13: _graphics,
    31: _mmu,
    74: decode_xid74,
    119: _gsp,
    120: _gsp,
    154: _recovery,
    **dict.fromkeys((48, 63, 64, 92, 94, 95, 156, 157, 160, 161, 171, 172), _memory),
}
