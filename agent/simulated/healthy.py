"""Counters of trouble on hardware that is well: they stand at 0 where the part has them, and are missing
where it has not."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from ...fingerprints.catalogue import Kind, Signal

#: Another maker's driver, or another generation of links, as the catalogue marks it in the source.
_ELSEWHERE = re.compile(r"^[^,]*\((?:bnxt_re|bnxt_en|efa|ena|ice|irdma|NVLink 5|links 0-11)\)")
#: Further counters that an eight-GPU H100 machine with InfiniBand does not have.
_LACKS = (
    "rdma.congestion_*",  # of RoCE
    "rdma.receive_icrc_errors",  # of RoCE
    "pcie.aer_root_port_*",  # GPUs and NICs are no root ports
    "gpu.retired_*",  # before Ampere
    # Since Hopper the driver tells errors as those of DRAM and of SRAM (nvidia-smi -q of an H100).
    "gpu.ecc_*_l1_errors",
    "gpu.ecc_*_l2_errors",
    "gpu.ecc_*_register_errors",
    "gpu.ecc_*_texture_errors",
    "gpu.ecc_*_cbu_errors",
)


def is_healthy_at_zero(signal: Signal) -> bool:
    """Say whether *signal* counts trouble that a simulated host has the counter for."""
    if signal.kind is not Kind.COUNTER or not (signal.on_change or signal.unit == "errors"):
        return False
    lacks = any(fnmatchcase(signal.name, pattern) for pattern in _LACKS)
    return not lacks and not _ELSEWHERE.match(signal.source)
