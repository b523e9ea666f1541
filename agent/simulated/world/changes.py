"""Which on-change tables of which hosts are not as they were handed out: all others need not be looked at.

An agent's framer sends of such a table what changed, and all of it once a minute; of 2,000 hosts at one step hardly
any changed, and to compare them all at once is a tenth of the work of handing each out to find that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from ....fingerprints.block import Block
from ..tables import Tables


class Changes:
    """Of all hosts of a set of tables."""

    def __init__(self, tables: Tables, hosts: int) -> None:
        self._tables = tables
        self._names = tables.on_change
        self._before = {name: tables.cells(name)[0].copy() for name in self._names}
        self._valid = {name: tables.cells(name)[1].copy() for name in self._names}
        self._bits = {name: 1 << at for at, name in enumerate(self._names)}
        self._every = (1 << len(self._names)) - 1
        self._masks = [self._every] * hosts  # a bit for each table that changed
        self._named: dict[int, frozenset[str]] = {}

    def look(self, hosts: Collection[int]) -> None:
        """Compare all tables with those of the look before. *hosts*: those of which no table counts as unchanged."""
        for at, name in enumerate(self._names):
            cells, valid = self._tables.cells(name)
            before = self._before[name]
            changed = (cells != before).any(axis=(1, 2))
            if not np.array_equal(valid, self._valid[name]):
                changed |= (valid != self._valid[name]).any(axis=(1, 2))
                np.copyto(self._valid[name], valid)
            before[changed] = cells[changed]
            for host in np.flatnonzero(changed).tolist():
                self._masks[host] |= 1 << at
        for host in hosts:
            self._masks[host] = self._every

    def due(self, host: int) -> None:
        """All tables of *host* are to be handed out, when their turn comes."""
        self._masks[host] = self._every

    def unchanged(self, host: int) -> Collection[str]:
        """Return the tables of *host* that are as they were handed out."""
        mask = self._masks[host]
        if (known := self._named.get(mask)) is None:
            known = self._named[mask] = frozenset(
                name for at, name in enumerate(self._names) if not mask >> at & 1
            )
        return known

    def handed(self, host: int, blocks: Iterable[Block]) -> None:
        """Note that *blocks* of *host* were handed out."""
        if mask := self._masks[host]:
            for block in blocks:
                mask &= ~self._bits.get(block.table, 0)
            self._masks[host] = mask
