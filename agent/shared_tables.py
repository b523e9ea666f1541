"""Tables that two collectors fill, as one block each: a host with GPUs of two vendors."""

from __future__ import annotations

from collections.abc import Sequence

from ..contract.block import Block
from ..contract.signals import TABLES

_ON_CHANGE = frozenset(name for name, signals in TABLES.items() if signals[0].on_change)


class SharedTables:
    """Joins the blocks of one frame by their table. For one thread.

    A table that travels when it changes is joined with what its other collector filled last, so that the rows of that one do
    not count as gone where the two take their turns in different seconds.
    """

    def __init__(self) -> None:
        """No table is shared yet."""
        self._collectors: dict[str, str] = {}  # table -> who filled it first
        self._shared: set[str] = set()
        self._last: dict[str, dict[str, Block]] = {}  # of on-change tables: collector -> its block
        self._joined: dict[str, Block] = {}

    def join(self, filled: Sequence[tuple[str, Block]]) -> list[Block]:
        """Return the blocks of (collector, block), those of a shared table as one."""
        for collector, block in filled:
            if self._collectors.setdefault(block.table, collector) != collector:
                self._shared.add(block.table)
            if block.table in _ON_CHANGE:
                self._last.setdefault(block.table, {})[collector] = block
        if not self._shared:
            return [block for _, block in filled]
        joined = [block for _, block in filled if block.table not in self._shared]
        for table in sorted({block.table for _, block in filled} & self._shared):
            new = {collector: block for collector, block in filled if block.table == table}
            parts = self._last[table] | new if table in _ON_CHANGE else new
            offset_ns = max(block.offset_ns for block in new.values())
            joined += self._join(table, [parts[name] for name in sorted(parts)], offset_ns)
        return joined

    def _join(self, table: str, parts: Sequence[Block], offset_ns: int) -> Sequence[Block]:
        if len(parts) == 1 or any(part.signal_ids != parts[0].signal_ids for part in parts):
            return parts
        devices = tuple(device for part in parts for device in part.devices)
        whole = self._joined.get(table)
        if whole is None or whole.devices != devices:
            whole = self._joined[table] = Block(table, devices, parts[0].signal_ids)
        whole.offset_ns = offset_ns
        for column in range(len(whole.signal_ids)):
            target = column * whole.rows
            for part in parts:
                source = column * part.rows
                whole.ints[target : target + part.rows] = part.ints[source : source + part.rows]
                whole.valid[target : target + part.rows] = part.valid[source : source + part.rows]
                target += part.rows
        return [whole]
