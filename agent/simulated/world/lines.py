"""What the kernel of a struck host writes, in the driver's own words, read by the agent's own rules."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from ....fingerprints.wire import telemetry_pb2
from ...kernel_log.table import classify
from ..parts import GPU_ADDRESSES, Machine
from .settings import FaultClass

_UNKNOWN = "pid='<unknown>', name=<unknown>"
#: Class -> lines when its onset is over; {gpu} is the address.
_LINES: dict[str, tuple[str, ...]] = {
    "nvlink": (
        "NVRM: Xid (PCI:{gpu}): 74, " + _UNKNOWN + ", NVLink: fatal error detected on link 0"
        "(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
    ),
    "nvlink_switch": (
        "NVRM: Xid (PCI:{gpu}): 74, " + _UNKNOWN + ", NVLink: fatal error detected on link 0"
        "(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
    ),
    "gsp_hang": (
        "NVRM: Xid (PCI:{gpu}): 119, "
        + _UNKNOWN
        + ", Timeout after 6s of waiting for RPC response "
        "from GPU0 GSP! Expected function 76 (GSP_RM_CONTROL) (0x2080a02a 0x4).",
    ),
    "gpu_lost": ("NVRM: Xid (PCI:{gpu}): 79, " + _UNKNOWN + ", GPU has fallen off the bus.",),
    "gpu_fault": (
        "NVRM: Xid (PCI:{gpu}): 109, "
        + _UNKNOWN
        + ", Ch 00000008, errorString CTX SWITCH TIMEOUT, Info 0x1c",
    ),
}
_HBM = (
    "NVRM: Xid (PCI:{gpu}): 48, " + _UNKNOWN + ", An uncorrectable double bit error (DBE) has been "
    "detected on GPU in the framebuffer at partition 5, subpartition 0.",
    "NVRM: Xid (PCI:{gpu}): 95, "
    + _UNKNOWN
    + ", Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No",
)
_REMAPPED = (
    "NVRM: Xid (PCI:{gpu}): 63, "
    + _UNKNOWN
    + ", Row Remapper: New row marked for remapping, reset gpu to activate."
)
_NOT_REMAPPED = (
    "NVRM: Xid (PCI:{gpu}): 64, "
    + _UNKNOWN
    + ", Row Remapper: All reserved rows for bank are remapped."
)


def events(
    each: FaultClass, machine: Machine, cause: int, part: int, variant: float
) -> Iterator[telemetry_pb2.HealthEvent]:
    """Yield what the agent tells of an incident of *each* when its onset is over. No clock is set."""
    gpu = max(part, 0)
    texts: tuple[str, ...] = _LINES.get(each.name, ())
    if each.name == "hbm":
        failed = variant < each.remap_failed_ratio
        texts = (*_HBM, _NOT_REMAPPED if failed else _REMAPPED)
    for text in texts:
        line = text.format(gpu=GPU_ADDRESSES[gpu].removesuffix(".0"))
        notice = classify(line)
        if notice is not None:
            yield telemetry_pb2.HealthEvent(
                event_id=_id(machine.name, cause, notice.code),
                device_kind="gpu",
                device=machine.gpus[gpu],
                name=notice.name,
                code=notice.code,
                message=line,
                count=1,
                process_id=notice.process_id,
                process_name=notice.process_name,
                attributes=notice.attributes,
            )


def _id(host: str, cause: int, code: int) -> str:
    """Return an event's id, of which nobody can read which cause it is of: that the truth log alone says."""
    return hashlib.blake2b(f"{host} {cause} {code}".encode(), digest_size=12).hexdigest()
