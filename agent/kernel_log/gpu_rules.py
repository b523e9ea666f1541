"""Rules for log lines of GPU drivers: XIDs, SXIDs and other faults of NVIDIA; RAS errors, hangs and resets of amdgpu.

Formats: kernel_rc.c (`NVRM: Xid (PCI:domain:bus:device[ GPU-I:n][ GPU-CI:n]): code, pid=, name=, words`),
osinit.c, nv.c and the nvswitch error reporting of NVIDIA's open-gpu-kernel-modules; older forms as in
logs of drivers 3xx and 4xx.
"""

from __future__ import annotations

from collections.abc import Callable

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

#: Words by which a line of the driver is worth an event though it bears no XID.
_NOTABLE = (
    r"RmInitAdapter failed",
    r"rm_init_adapter failed",
    r"crash dump",
    r"needs to be reset",
    r"non-zero usage count",
    r"is probably locked",
    r"API mismatch",
    r"GPU recovery",
    r"BAR\d+ is 0M",
    r"This PCI I/O region assigned to your NVIDIA device is invalid",
    r"GSP[^\n]{0,80}(?:fail|time ?out|timed out|halt|panic|crash)",
    r"[Hh]eartbeat[^\n]{0,40}(?:time ?out|timed out|lost)",
    r"Xid \(",  # a line of this kind that the rules above could not read
)
_ANY_NOTABLE = "|".join(_NOTABLE)

NVIDIA_RULES = (
    rule(
        XID,
        "NVRM:",
        rf"NVRM: Xid \((?:PCI:)?(?P<pci>{PCI})(?: GPU-I:(?P<gpu_instance>\d+))?"
        r"(?: GPU-CI:(?P<compute_instance>\d+))?[^)]{0,64}\): (?P<code>\d{1,9})\b"
        r"(?:, pid='?(?:(?P<pid>\d+)|<[^>]*>)'?)?(?:, name=(?:<[^>]*>|(?P<comm>[^,\n]+)))?",
    ),
    rule(
        LOST,
        "NVRM:",
        rf"NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?(?P<pci>{PCI_WITH_DOMAIN})\b.{{0,240}}?"
        r"fallen off the bus",
    ),
    rule(
        MESSAGE,
        "NVRM:",
        rf"NVRM:(?=(?:.{{0,160}}?\b(?P<pci>{PCI_WITH_DOMAIN}))?).{{0,240}}?(?:{_ANY_NOTABLE})",
    ),
    rule(
        MESSAGE,
        "nvidia",
        rf"nvidia(?:: probe of)? (?P<pci>{PCI})(?:: probe with driver nvidia)? failed with error",
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


# ----------------------------------------------------------------------
# What NVIDIA's driver means beyond the form of its lines: read by the XID policy's decoder.

#: What of a line of `VARYING` tells it from the next of its code, besides its severity. Each is an incident
#: of its own, so every line of theirs is decoded.
_SCOPE_ATTRIBUTES = ("recovery", "unit", "link")


class XidDecoder:
    """Adds to an XID or SXID what its words say by the driver that is loaded."""

    def __init__(self, driver_version: Callable[[], str]) -> None:
        """*driver_version* as `575.57.08`, "" when it is not known; asked for each line decoded."""
        self._driver_version = driver_version
        for code, table in (
            (145, "xid"),
            (0, "sxid"),
        ):  # the tables are read now, not when it counts
            decode(code, "", table=table)

    def decode(self, parsed: ParsedLine, text: str) -> ParsedLine:
        """Return the notice with what was decoded, all but these two as it is. Never raises."""
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


# ----------------------------------------------------------------------
# Lines of the amdgpu driver that have weight: RAS errors, queues that hang, resets, GPUs off the bus.
#
# Formats of drivers/gpu/drm/amd/amdgpu: amdgpu_ras.c (`N [new ]uncorrectable hardware errors detected in umc block`),
# amdgpu_ras_eeprom.c (thresholds of bad pages), amdgpu_job.c (`ring R timeout`), amdgpu_device.c (`GPU reset begin!`,
# `GPU reset(N) failed`, `GPU reset end with ret`), amdgpu_reset.c and nbio_*.c; of before Linux 6.9 DRM's own prefix.

RAS_ERROR, HANG, RESET, OFF_BUS = "gpu.ras_error", "gpu.hang", "gpu.reset", "gpu.lost"
#: Codes of RAS_ERROR.
CORRECTED, UNCORRECTED, DEFERRED, REPLACE = range(4)
#: Code of HANG of a queue that came back without a reset, and of RESET of one that failed.
RECOVERED, FAILED = 1, 1

_KINDS = {"correctable": CORRECTED, "uncorrectable": UNCORRECTED, "deferred": DEFERRED}
#: `amdgpu 0000:c3:00.0: amdgpu: {12}` and what varies of it: the second word, and the number of the RAS event.
_PREFIX = rf"amdgpu (?P<pci>{BDF}): (?:amdgpu: )?(?:\[drm\] )?(?:\{{\d{{1,20}}\}})?"


def _without_counts(parsed: ParsedLine) -> ParsedLine | None:
    """A line that says that there are no errors says nothing."""
    errors = parsed.attributes.get("errors", "")
    return None if errors.strip("0") == "" and errors else parsed


AMDGPU_RULES = (
    # Newer drivers follow it by a line of totals since the driver loaded, which is no new error.
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
    ),
    # The scheduler of compute queues: HIP programs have no ring of their own.
    rule(
        HANG,
        "HWS",
        rf"{_PREFIX}(?:HWS hang|HIQ MQD's queue_doorbell_id0 is not 0, Queue preemption time out)",
    ),
    rule(
        RESET,
        "GPU reset",
        rf"{_PREFIX}GPU reset(?:\(\d{{1,9}}\) failed| end with ret = (?P<error>-\d{{1,5}}))",
        code=FAILED,
    ),
    rule(RESET, "GPU reset", rf"{_PREFIX}GPU reset begin!"),
    rule(OFF_BUS, "device lost from bus", rf"{_PREFIX}device lost from bus"),
)
