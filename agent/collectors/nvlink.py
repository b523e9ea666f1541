"""NVLink and C2C links of each GPU, from NVML's field values.

A field is requested with its link as scope. Drivers without scoped fields have one field per link,
for links 0 to 11. Both are requested, and the first with a value is used; fields that a link does
not support are left out of later calls. Ids: nvml.h of NVML 12.9; none has changed since it was
introduced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...contract.block import Block
from ...contract.signals import BY_NAME, TABLES, index_of
from ...ext.nvml import NvmlError
from ...ext.nvml_parts import BIT_ERROR_RATIO, FLOAT, INTEGER, FieldPass, Parts
from ..collector import NoData
from ..hardware.files import Roots
from .gpu_parts import GpuPartsCollector

_KIB, _MEGABYTE = 1024, 1_000_000


@dataclass(frozen=True, slots=True)
class LinkField:
    """The NVML fields of a link's signal."""

    scoped: int = 0  # field id that takes the link as scope; 0: none
    by_link: Sequence[int] = ()  # field id per link, if there is no scoped field
    whole: int = 0  # field id of all links of the GPU together, as a last resort
    form: int = INTEGER
    multiplier: int = 1
    raw_max: int = 0  # larger values are invalid; 0: any

    def requests(self, link: int) -> list[tuple[int, int]]:
        """Return (field id, scope) in order of preference."""
        requests = [(self.scoped, link)] if self.scoped else []
        requests += [(self.by_link[link], 0)] if link < len(self.by_link) else []
        return requests + ([(self.whole, 0)] if self.whole else [])


def _two_ranges(first: int, sixth: int) -> tuple[int, ...]:
    """Return the ids of links 0-5 and 6-11; a later header added the second half."""
    return (*range(first, first + 6), *range(sixth, sixth + 6))


NVLINK: Mapping[str, LinkField] = {
    "nvlink.transmitted_data_bytes": LinkField(138, multiplier=_KIB),
    "nvlink.received_data_bytes": LinkField(139, multiplier=_KIB),
    "nvlink.transmitted_bytes": LinkField(202),
    "nvlink.received_bytes": LinkField(204),
    "nvlink.transmitted_packets": LinkField(201),
    "nvlink.received_packets": LinkField(203),
    **{f"nvlink.fec_history_{bin_}_count": LinkField(235 + bin_) for bin_ in range(16)},
    "nvlink.link_state": LinkField(165, raw_max=3),
    "nvlink.version_code": LinkField(166, raw_max=255),
    "nvlink.speed_bytes_per_second": LinkField(
        164, _two_ranges(84, 132), 90, form=FLOAT, multiplier=_MEGABYTE, raw_max=10_000_000
    ),
    "nvlink.replay_errors": LinkField(161, _two_ranges(46, 108)),
    "nvlink.recovery_errors": LinkField(162, _two_ranges(53, 114)),
    "nvlink.crc_errors": LinkField(163),
    "nvlink.crc_flit_errors": LinkField(by_link=_two_ranges(32, 96)),
    "nvlink.crc_data_errors": LinkField(by_link=_two_ranges(39, 102)),
    "nvlink.ecc_data_errors": LinkField(by_link=range(148, 160)),
    "nvlink.malformed_packets_errors": LinkField(206),
    "nvlink.buffer_overrun_errors": LinkField(207),
    "nvlink.receive_errors": LinkField(208),
    "nvlink.receive_remote_errors": LinkField(209),
    "nvlink.receive_general_errors": LinkField(210),
    "nvlink.local_link_integrity_errors": LinkField(211),
    "nvlink.transmit_discards_packets": LinkField(212),
    "nvlink.link_recovery_successful_events": LinkField(213),
    "nvlink.link_recovery_failed_events": LinkField(214),
    "nvlink.link_recovery_events": LinkField(215),
    "nvlink.effective_errors": LinkField(219),
    "nvlink.effective_bit_error_ratio": LinkField(220, form=BIT_ERROR_RATIO),
    "nvlink.symbol_errors": LinkField(221),
    "nvlink.symbol_bit_error_ratio": LinkField(222, form=BIT_ERROR_RATIO),
}
C2C: Mapping[str, LinkField] = {
    "c2c.link_state": LinkField(171, raw_max=1),
    "c2c.speed_max_bytes_per_second": LinkField(
        172, form=FLOAT, multiplier=_MEGABYTE, raw_max=10_000_000
    ),
    "c2c.crc_errors": LinkField(231),
    "c2c.replay_errors": LinkField(232),
    "c2c.replay_back_to_back_errors": LinkField(233),
    "c2c.power_state": LinkField(234, raw_max=1),
}


class GpuLinkCollector(GpuPartsCollector):
    """The links of one kind, every 10 s, with as few calls per GPU as possible."""

    def __init__(
        self,
        roots: Roots,
        kind: str,
        fields: Mapping[str, LinkField],
        count: Callable[[Parts, str], int],
        no_link_reason: str,
    ) -> None:
        """*count* returns the number of a GPU's links.

        *no_link_reason*: the NoData message of a host without a link.
        """
        super().__init__(f"{kind}_10s", roots)
        self._kind, self._fields = kind, fields
        self._count, self._no_link_reason = count, no_link_reason
        self._blocks: dict[str, Block] = {}
        self._links: list[tuple[str, int]] = []  # (address, link) of each row
        self._pass: FieldPass | None = None

    def _prepare(self, parts: Parts) -> None:
        counts = self._query(lambda address: self._count(parts, address))
        self._open_error = self._open_error or self.access_error
        if len(counts) < len(self._gpus) or 0 in counts.values():
            self._mark_unhealthy()  # retry: a GPU did not answer, or has no link
        self._links = [
            (address, link) for address, count in counts.items() for link in range(count)
        ]
        if not self._links:
            raise NoData(self._no_link_reason)
        name = "link" if self._kind == "nvlink" else self._kind
        keys = [f"{self._gpus[address]}/{name}{link}" for address, link in self._links]
        tables = {BY_NAME[signal].table for signal in self._fields}
        self._blocks = {table: Block(table, keys) for table in TABLES if table in tables}
        self._pass = FieldPass(parts)
        for signal, field in self._fields.items():
            self._add_field(
                self._pass, self._blocks[BY_NAME[signal].table], index_of(signal), field
            )

    def release(self) -> None:
        super().release()
        self._pass = None

    def _add_field(self, fields: FieldPass, block: Block, column: int, field: LinkField) -> None:
        for row, (address, link) in enumerate(self._links):
            cell = column * block.rows + row
            for number, scope in field.requests(link):
                fields.ask(
                    *(address, number, scope, block.cells, block.valid, cell, field.form),
                    multiplier=field.multiplier,
                    raw_max=field.raw_max,
                )

    def _read(self, parts: Parts) -> Sequence[Block]:
        assert self._pass is not None
        self._pass.run()
        self._record_errors(
            {
                address: NvmlError(f"nvmlDeviceGetFieldValues: NVML error {code}", code)
                for address, code in self._pass.codes.items()
            }
        )
        self._fill_in(parts, self._pass.codes)
        return tuple(self._blocks.values())

    def _fill_in(self, parts: Parts, silent: Mapping[str, int]) -> None:
        """Read signals that have no field in this driver by other calls."""


class NvLinkCollector(GpuLinkCollector):
    """NVLinks, with keys `GPU-uuid/link0`."""

    def __init__(self, roots: Roots) -> None:
        super().__init__(roots, "nvlink", NVLINK, Parts.nvlink_count, "no GPU has an NVLink")

    def _fill_in(self, parts: Parts, silent: Mapping[str, int]) -> None:
        """Read the link state by its own call: drivers before 535 have no field for it."""
        block, column = self._blocks["nvlink_10s_changes"], index_of("nvlink.link_state")
        errors: dict[str, NvmlError] = {}
        for row, (address, link) in enumerate(self._links):
            if block.valid[column * block.rows + row] or address in silent or address in errors:
                continue
            try:
                block.put_int(column, row, parts.nvlink_state(address, link))
            except NvmlError as error:
                errors[address] = error
        self._record_errors(errors)


class C2cLinkCollector(GpuLinkCollector):
    """Links between GPU and Grace CPU, with keys `GPU-uuid/c2c0`."""

    def __init__(self, roots: Roots) -> None:
        super().__init__(roots, "c2c", C2C, Parts.c2c_count, "no GPU has a C2C link to a CPU")
