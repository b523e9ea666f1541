"""Position and health of each GPU in its NVLink fabric, every second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...contract.block import Block
from ...ext.nvml_parts import Fabric, Parts
from ..collector import NoData
from ..hardware.files import Roots
from .gpu_parts import GpuPartsCollector, cleared_block

_NOT_SUPPORTED, _COMPLETED = 0, 3
_STATE_MAX, _SUMMARY_MAX = 3, 3  # larger values are unknown to nvml.h of NVML 13.5
_BLANK = 0xFFFF_FFFF
#: A flag of the mask has two bits: 0 not supported, 1 yes, 2 no (NVML_GPU_FABRIC_HEALTH_MASK_*).
_YES_OR_NO = {1: 1, 2: 0}
#: Degraded bandwidth, route recovery, unhealthy route, access timeout recovery.
_YES_OR_NO_SHIFTS = (0, 2, 4, 6)
# Four bits: 0 not supported, 1 correct, larger: the kind of error (NVML 13)
_CONFIGURATION_SHIFT = 8


class GpuFabric(GpuPartsCollector):
    """State and health of each GPU's registration with its NVLink fabric.

    The compute trays of an NVL72 rack see nothing else: errors of the switches are in the switch
    trays' own logs.
    """

    def __init__(self, roots: Roots) -> None:
        super().__init__("gpu_fabric_1s", roots)
        self._block: Block | None = None
        self._answers: dict[str, Fabric | None] = {}  # answers in the block

    def release(self) -> None:
        super().release()
        self._answers = {}

    def _read(self, parts: Parts) -> Sequence[Block]:
        """Return the block, refilled if an answer changed."""
        answers = self._query(parts.fabric)
        if self._block is None or answers != self._answers or not answers:
            self._block, self._answers = self._fill(answers), answers
        return (self._block,)

    def _fill(self, answers: Mapping[str, Fabric | None]) -> Block:
        fabrics = {
            address: fabric
            for address, fabric in answers.items()
            if fabric is not None and fabric.state != _NOT_SUPPORTED
        }
        if not fabrics:
            raise NoData("no GPU is part of an NVLink fabric")
        keys = [self._gpus[address] for address in fabrics]
        block = cleared_block(self._block, "gpu_fabric_1s_changes", keys)
        for row, fabric in enumerate(fabrics.values()):
            for column, value in enumerate(values_of(fabric)):
                block.put_int(column, row, value)
        return block


def values_of(fabric: Fabric) -> tuple[int | None, ...]:
    """Return the columns of the table; None for a state or a summary that nvml.h does not define.

    Status and clique are None until the registration is completed.
    """
    completed = fabric.state == _COMPLETED
    summary = fabric.health_summary or 0
    return (
        fabric.state if fabric.state <= _STATE_MAX else None,
        fabric.status if completed and fabric.status >= 0 else None,
        fabric.clique if completed and fabric.clique != _BLANK else None,
        *health(fabric.health_mask),
        summary if 0 < summary <= _SUMMARY_MAX else None,
    )


def health(mask: int | None) -> tuple[int | None, ...]:
    """Return the mask, four flags (1 yes, 0 no), and the code of the configuration.

    A value is None if the driver does not support it, or nvml.h does not define it.
    """
    if mask is None or mask == _BLANK:
        return (None,) * 6
    flags = (_YES_OR_NO.get(mask >> shift & 3) for shift in _YES_OR_NO_SHIFTS)
    return mask, *flags, mask >> _CONFIGURATION_SHIFT & 0xF or None
