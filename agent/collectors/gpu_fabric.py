"""Each GPU's place in its NVLink fabric, and what it feels of the fabric's health, every second.

Of an NVL72 rack the compute trays see no more than this: errors of the switches are in the switch trays' own logs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...ext.nvml_parts import Fabric, Parts
from ...fingerprints.block import Block
from ...fingerprints.catalogue import Pace
from ..hardware.roots import Roots
from ..turn import NoData
from .gpu_parts import PartsLane, remade

_NOT_SUPPORTED, _COMPLETED = 0, 3
_STATE_MAX, _SUMMARY_MAX = 3, 3  # nvml.h of NVML 13.5 knows no more
_BLANK = 0xFFFF_FFFF
#: A `yes or no` of the mask has two bits: 0 not supported, 1 yes, 2 no (NVML_GPU_FABRIC_HEALTH_MASK_*).
_YES_OR_NO = {1: 1, 2: 0}
#: Degraded bandwidth, route recovery, unhealthy route, access timeout recovery.
_YES_OR_NO_SHIFTS = (0, 2, 4, 6)
_CONFIGURATION_SHIFT = 8  # four bits: 0 not supported, 1 correct, above: what is wrong (NVML 13)


class GpuFabric(PartsLane):
    """State and health of each GPU's registration with the fabric."""

    def __init__(self, roots: Roots) -> None:
        super().__init__("gpu_fabric_1s", Pace.SECOND, roots)
        self._block: Block | None = None
        self._answers: dict[str, Fabric | None] = {}  # of the turn that filled the block

    def let_go(self) -> None:
        super().let_go()
        self._answers = {}

    def _read(self, parts: Parts) -> Sequence[Block]:
        """As long as every GPU says the same, the block stands."""
        answers = self._ask(parts.fabric)
        if self._block is None or answers != self._answers or not answers:
            self._block, self._answers = self._filled(answers), answers
        return (self._block,)

    def _filled(self, answers: Mapping[str, Fabric | None]) -> Block:
        found = {
            address: fabric
            for address, fabric in answers.items()
            if fabric is not None and fabric.state != _NOT_SUPPORTED
        }
        if not found:
            raise NoData("no GPU is part of an NVLink fabric")
        keys = [self._gpus[address] for address in found]
        block = remade(self._block, "gpu_fabric_1s_changes", keys)
        for row, fabric in enumerate(found.values()):
            for column, value in enumerate(values_of(fabric)):
                block.put_int(column, row, value)
        return block


def values_of(fabric: Fabric) -> tuple[int | None, ...]:
    """Return the columns of the table; status and clique mean something once the registration is completed.

    A state or a summary that nvml.h does not know is none.
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
    """Return the mask and what it says: four times 1 yes, 0 no, and the code of the configuration.

    None for what the driver does not support, or writes as no value that the header knows.
    """
    if mask is None or mask == _BLANK:
        return (None,) * 6
    flags = (_YES_OR_NO.get(mask >> shift & 3) for shift in _YES_OR_NO_SHIFTS)
    return mask, *flags, mask >> _CONFIGURATION_SHIFT & 0xF or None
