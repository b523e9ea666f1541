"""Lines of NVIDIA's drivers: XID, SXID, and what of the rest has weight.

Formats: kernel_rc.c (`NVRM: Xid (PCI:domain:bus:device[ GPU-I:n][ GPU-CI:n]): code, pid=, name=, words`),
osinit.c, nv.c and the nvswitch error reporting of NVIDIA's open-gpu-kernel-modules; older forms as in
logs of drivers 3xx and 4xx.
"""

from __future__ import annotations

from .notice import PCI, PCI_WITH_DOMAIN, Part, rule

XID, SXID, LOST, MESSAGE = "gpu.xid", "nvswitch.sxid", "gpu.lost", "gpu.driver_message"

#: Words by which a line of the driver is worth an event though it bears no XID.
_WEIGHTY = (
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
_ANY_WEIGHTY = "|".join(_WEIGHTY)

RULES = (
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
        rf"NVRM:(?=(?:.{{0,160}}?\b(?P<pci>{PCI_WITH_DOMAIN}))?).{{0,240}}?(?:{_ANY_WEIGHTY})",
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
        part=Part.DETAIL,
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
