"""Rules for log lines of NVIDIA's drivers (XIDs and other faults) and amdgpu (RAS, hangs, resets).

Formats: kernel_rc.c (`NVRM: Xid (PCI:domain:bus:device[ GPU-I:n][ GPU-CI:n]): code, pid=, name=,
words`), osinit.c, nv.c and the nvswitch error reporting of NVIDIA's open-gpu-kernel-modules; older
forms from logs of drivers 3xx and 4xx.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ...contract.xid.decode import VARYING, decode
from .record import (
    ATTRIBUTES_MAX,
    BDF,
    PCI,
    PCI_WITH_DOMAIN,
    VALUE_CHARACTERS_MAX,
    LinePart,
    ParsedLine,
    printable,
    rule,
)

XID, SXID, LOST, MESSAGE = "gpu.xid", "nvswitch.sxid", "gpu.lost", "gpu.driver_message"
NEEDS_RESET, NEEDS_REBOOT = "gpu.needs_reset", "gpu.needs_reboot"
#: Codes of MESSAGE: firmware or engines do not respond; the driver cannot start a GPU.
NO_RESPONSE, NOT_STARTED = 1, 2


def _status(hex_digits: str) -> str:
    """Return the pattern of an NV_STATUS (nvstatuscodes.h): after its key, or of a failed start."""
    return (
        rf"(?i:\b\w{{0,12}}status)[ =:]{{1,3}}0x0{{0,7}}{hex_digits}\b"
        rf"|RmInitAdapter failed! \(0x\w{{1,8}}:0x0{{0,7}}{hex_digits}:"
    )


#: A status in a comparison ("status == NV_ERR_GPU_IS_LOST") does not mean that it occurred.
_NOT_COMPARED = r"(?<![=] )"
#: Meanings of lines of NVIDIA's modules, most serious first, by their words alone: any function may
#: print them.
_MEANINGS: tuple[tuple[str, int, tuple[str, ...]], ...] = (
    (
        NEEDS_REBOOT,
        0,
        (
            r"requir\w{1,4} (?:an? )?(?:OS|os|system|node|host|full|cold)[ -]reboot",
            r"global fatal error",
            r"[Rr]eboot (?:is )?required",
            r"must be rebooted",
        ),
    ),
    (
        LOST,
        0,
        (
            r"fallen off the bus",
            r"lost from the bus",
            rf"{_NOT_COMPARED}NV_ERR_GPU_IS_LOST",
            _status("[fF]"),
        ),
    ),
    (
        NEEDS_RESET,
        0,
        (
            r"[Rr]eset (?:is )?required",
            r"needs? to be reset",
            r"requires? (?:a )?reset\b",
            r"WPR2 already up",
            rf"{_NOT_COMPARED}NV_ERR_RESET_REQUIRED",
            _status("62"),
        ),
    ),
    (
        MESSAGE,
        NO_RESPONSE,
        (
            r"[Hh]eartbeat[^\n]{0,40}(?:time ?out|timed out|lost)",
            r"is probably locked",
            r"Timeout waiting for RISC-V to halt",
            r"GSP(?: RM)?(?: has)? (?:halt|panic|crash|time ?out|timed out)",
            r"waiting for RPC response from GPU\d{1,3} GSP",
        ),
    ),
    (
        MESSAGE,
        NOT_STARTED,
        (
            r"RmInitAdapter failed",
            r"rm_init_adapter failed",
            r"Cannot initialize GSP firmware",
            r"BAR\d+ is 0M",
            r"This PCI I/O region assigned to your NVIDIA device is invalid",
        ),
    ),
    (
        MESSAGE,
        0,
        (
            r"crash dump",
            r"non-zero usage count",
            r"API mismatch",
            r"GPU recovery",
            r"GSP[^\n]{0,80}(?:fail|time ?out|timed out|halt|panic|crash)",
            r"Xid \(",  # a line with an XID that the rules above could not parse
        ),
    ),
)
#: Module -> prefix of its lines. Drivers before 530 print no colon.
_MODULES = {
    "NVRM": r"NVRM:?(?= )",
    "nvidia-uvm": r"nvidia-uvm:",
    "nvidia-modeset": r"nvidia-modeset:",
}
#: The GPU named in a line, by address or by the driver's number.
_NAMED_GPU = (
    rf"(?=(?:.{{0,160}}?\b(?P<pci>{PCI_WITH_DOMAIN}))?)"
    r"(?=(?:.{0,160}?\bGPU:?(?P<gpu_number>\d{1,3})\b)?)"
)

NVIDIA_RULES = (
    rule(
        XID,
        "NVRM",
        rf"NVRM:? Xid \((?:PCI:)?(?P<pci>{PCI})(?: GPU-I:(?P<gpu_instance>\d+))?"
        r"(?: GPU-CI:(?P<compute_instance>\d+))?[^)]{0,64}\): (?P<code>\d{1,9})\b"
        r"(?:, pid='?(?:(?P<pid>\d+)|<[^>]*>)'?)?(?:, name=(?:<[^>]*>|(?P<comm>[^,\n]+)))?",
    ),
    *(
        rule(name, module, rf"{prefix}{_NAMED_GPU}.{{0,400}}?(?:{'|'.join(patterns)})", code=code)
        for module, prefix in _MODULES.items()
        for name, code, patterns in _MEANINGS
    ),
    rule(
        MESSAGE,
        "nvidia",
        rf"nvidia(?:: probe of)? (?P<pci>{PCI})(?:: probe with driver nvidia)? failed with error",
        code=NOT_STARTED,
    ),
    rule(
        SXID,
        "SXid",
        rf"nvidia-nvswitch\d+: SXid \(PCI:(?P<pci>{PCI})\): (?P<code>\d{{1,9}}), "
        r"(?:Severity (?P<severity_number>\d+)|Data \{(?P<data>[^}]*)|Engine)",
        part=LinePart.DETAIL,
        group="sxid",
    ),
    rule(
        SXID,
        "SXid",
        rf"(?P<switch>nvidia-nvswitch\d+): SXid \(PCI:(?P<pci>{PCI})\): (?P<code>\d{{1,9}})\b"
        r"(?:, [A-Za-z-]+)?(?:, Link (?P<link>\d+))?",
        group="sxid",
    ),
)


#: Attributes, besides the severity, that separate incidents of a code in `VARYING`. Every line of
#: such an incident is decoded.
_SCOPE_ATTRIBUTES = ("recovery", "unit", "link")


class XidDecoder:
    """Adds the meaning of an XID or SXID under the loaded driver."""

    def __init__(self, driver_version: Callable[[], str]) -> None:
        """*driver_version*: returns `575.57.08`, or "" if unknown; called for each decoded line."""
        self._driver_version = driver_version
        # Load the tables now, not during a fault
        for code, table in ((145, "xid"), (0, "sxid")):
            decode(code, "", table=table)

    def decode(self, parsed: ParsedLine, text: str) -> ParsedLine:
        """Return an XID or SXID with its decoded attributes, any other line unchanged.

        Never raises.
        """
        if parsed.name not in (XID, SXID):
            return parsed
        table = "xid" if parsed.name == XID else "sxid"
        decoded = decode(parsed.code, text, self._driver_version(), table)
        attributes = {
            name: printable(value, VALUE_CHARACTERS_MAX)
            for name, value in {**parsed.attributes, **decoded.attributes}.items()
        }
        scope = ""
        if parsed.name == SXID or parsed.code in VARYING:
            scope_parts = (decoded.attributes.get(name, "") for name in _SCOPE_ATTRIBUTES)
            scope = " ".join((decoded.severity.value, *scope_parts))[:VALUE_CHARACTERS_MAX]
        limited = dict(list(attributes.items())[:ATTRIBUTES_MAX])
        return parsed._replace(attributes=limited, scope=scope)


# Lines of amdgpu about RAS errors, hangs, resets, dead firmware, and GPUs off the bus.
# Formats of drivers/gpu/drm/amd: amdgpu/amdgpu_ras.c (`N [new ]uncorrectable hardware errors detected in umc block`),
# amdgpu_ras_eeprom.c (thresholds of bad pages), amdgpu_job.c (`ring R timeout`), amdgpu_device.c (`GPU reset begin!`,
# `GPU reset(N) failed`, `GPU reset end with ret`), amdgpu_ib.c, amdgpu_ring.c, amdgpu_reset.c, amdgpu_mes.c and
# mes_v1*.c, nbio_*.c; amdkfd/kfd_device_queue_manager.c; pm/swsmu/smu_cmn.c; drm/drm_drv.c (`device wedged`).

RAS_ERROR, HANG, RESET, OFF_BUS = "gpu.ras_error", "gpu.hang", "gpu.reset", "gpu.lost"
#: Codes of RAS_ERROR.
CORRECTED, UNCORRECTED, DEFERRED, REPLACE = range(4)
#: Codes of HANG: the queue recovered without a reset; firmware, a queue or an engine does not
#: recover by itself.
RECOVERED, DEAD = 1, 2
#: Code of a failed RESET.
FAILED = 1

_KINDS = {"correctable": CORRECTED, "uncorrectable": UNCORRECTED, "deferred": DEFERRED}
#: Forms of the driver's prefix: with the GPU's address; of KFD, and of DRM before Linux 6.9 and in
#: DKMS, without it. The number in braces is that of the RAS event.
_PREFIX = (
    rf"(?:amdgpu (?P<pci>{BDF}): |(?:kfd kfd: )?amdgpu: |\[drm:[\w.]{{1,96}} \[amdgpu\]\] |\[drm\] (?=\*ERROR\* ))"
    r"(?:amdgpu: )?(?:\[drm(?::[\w.]{1,96} \[amdgpu\])?\] )?(?:\*ERROR\* )?(?:\{\d{1,20}\})?"
)
#: KFD of Linux before 5.4 prints some lines without a prefix.
_KFD_PREFIX = rf"(?:(?:kfd: )?(?=(?:qcm fence wait|[Tt]he cp might))|{_PREFIX})"
#: Lines after which jobs on the GPU hang until a reset: common substring -> pattern.
_DEAD: dict[str, str] = {
    # the scheduler of queues: MES, HWS, HIQ, KIQ
    "MES": r"(?:MES(?:\(\d\))? failed to respon|MES might be in unrecoverable state"
    r"|(?:\w{1,32} )?failed to (?:add|remove|suspend|resume|map|unmap|reset) [^\n]{0,40}\b(?:from|to|by) MES)",
    "kiq": r"time(?:d )?out waiting for kiq fence",
    "KIQ": r"(?:KIQ [^\n]{0,40}\bfail|failed to \w{1,16} KIQ)",
    "KCQ": r"(?:KCQ|KGQ) (?:enable|disable) failed",
    "qcm fence": r"qcm fence wait loop timeout",
    "queues preemption": r"[Tt]he cp might be in an unrecoverable state",
    "HWS": r"HWS hang",
    "HIQ": r"HIQ MQD's queue_doorbell_id0 is not 0, Queue preemption time out",
    # KFD's queue manager
    "queue": r"Failed to (?:evict|restore|preempt|suspend|resume|unmap) (?:process )?queues?\b",
    "process pid": r"Failed to (?:suspend|evict|restore|resume) process pid",
    "KFD": r"(?:\w{1,48}: )?Failed to (?:quiesce|resume|suspend) KFD",
    # power management's firmware
    "SMU": r"(?:SMU: I'm not done with your|Failed to export SMU metrics table"
    r"|[^\n]{0,60}SMU may be not in the right state|SMU: (?:response:0x[fF]{8}|No response))",
    # engines
    "reset failed": r"Ring (?P<ring>[\w.]{1,32}) reset failed",
    "test failed": r"(?:IB test failed on (?P<engine>[\w.]{1,32}) |ib ring test failed |"
    r"ring (?P<tested_ring>[\w.]{1,32}) test failed )\(-\d{1,5}\)",
}


def _without_counts(parsed: ParsedLine) -> ParsedLine | None:
    """Return None for a line that reports no errors."""
    errors = parsed.attributes.get("errors", "")
    return None if errors.strip("0") == "" and errors else parsed


AMDGPU_RULES = (
    # Newer drivers also print the total since the driver loaded, which is not a new error.
    rule(
        RAS_ERROR,
        "hardware errors detected in",
        rf"{_PREFIX}(?:socket: (?P<socket>\d+),? ?(?:die: (?P<die>\d+),? )?)?(?P<errors>\d{{1,19}}) (?:new )?"
        r"(?P<kind>correctable|uncorrectable|deferred) hardware errors detected in (?!total)(?P<block>\w{1,32}) block",
        codes=("kind", _KINDS),
        scope="block",
        finish=_without_counts,
    ),
    rule(
        RAS_ERROR,
        "uncorrectable hardware error",
        rf"{_PREFIX}(?:RAS event of type (?P<event>\w{{1,64}}) detected|"
        r"uncorrectable hardware error\s?\((?P<source>\w{1,64})\) detected)",
        code=UNCORRECTED,
    ),
    rule(
        RAS_ERROR,
        "threshold",
        rf"{_PREFIX}(?:RAS records:(?P<records>\d{{1,9}}) exceed threshold:|"
        r"Saved bad pages ?\(?(?P<pages>\d{1,9})\)? reaches threshold)",
        code=REPLACE,
    ),
    rule(
        HANG,
        "timeout",
        rf"{_PREFIX}ring (?P<ring>[\w.]{{1,32}}) timeout, but soft recovered",
        code=RECOVERED,
        scope="ring",
    ),
    rule(
        HANG,
        "timeout",
        rf"{_PREFIX}ring (?P<ring>[\w.]{{1,32}}) timeout, signaled seq=",
        scope="ring",
        group="ring",
    ),
    rule(
        HANG,
        "rocess ",
        rf"{_PREFIX} ?Process (?:information: process )?(?P<comm>\S.{{0,63}}?) pid (?P<pid>[1-9]\d{{0,9}}) thread",
        part=LinePart.DETAIL,
        group="ring",
    ),
    *(rule(HANG, word, rf"{_KFD_PREFIX}{pattern}", code=DEAD) for word, pattern in _DEAD.items()),
    rule(
        RESET,
        "GPU ",
        rf"{_PREFIX}GPU (?:reset(?:\(\d{{1,9}}\) failed| end with ret = (?P<error>-\d{{1,5}}))"
        r"|Recovery Failed: (?P<recovery_error>-\d{1,5}))",
        code=FAILED,
    ),
    rule(RESET, "GPU ", rf"{_PREFIX}GPU reset begin!"),
    rule(RESET, "wedged", rf"{_PREFIX}device wedged, needs recovery", code=FAILED),
    rule(
        MESSAGE,
        "atal error during GPU init",
        rf"{_PREFIX}[Ff]atal error during GPU init",
        code=NOT_STARTED,
    ),
    rule(
        MESSAGE,
        "amdgpu",
        rf"amdgpu(?:: probe of)? (?P<pci>{BDF})(?:: probe with driver amdgpu)? failed with error",
        code=NOT_STARTED,
    ),
    rule(OFF_BUS, "device lost from bus", rf"{_PREFIX}device lost from bus"),
)


#: XIDs of the GSP contain address and number: `Xid (PCI:0000:9b:00): 119, ... response from GPU4
#: GSP`.
_NUMBERED = re.compile(r"\bfrom GPU(\d{1,3}) GSP\b")


class GpuFinder:
    """Adds an unambiguous GPU address to lines without an address."""

    def __init__(
        self, nvidia: Callable[[], Sequence[str]], amd: Callable[[], Sequence[str]]
    ) -> None:
        """*nvidia*, *amd*: return the PCI addresses of a driver's GPUs."""
        self._nvidia, self._amd = nvidia, amd
        self._numbers: dict[str, str] = {}  # the driver's number -> address

    def complete(self, parsed: ParsedLine, text: str) -> ParsedLine:
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
