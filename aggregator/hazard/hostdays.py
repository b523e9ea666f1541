"""What was measured of each host at the beginning of each day, read from the table `host_days` and looked up by unit."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .events import Faults, Floats, Indexes
from .measured import MEASURED

#: So many rows are read at a time: between two of them other threads get their turn.
BATCH_ROWS = 50_000
#: Names hold no space; a list of 100,000 of them would take DuckDB half a minute to take over.
_NODES = (
    "SELECT unnest(string_split($hosts, ' ')) AS host, "
    "generate_subscripts(string_split($hosts, ' '), 1) - 1 AS node"
)
_ROWS = (
    f"SELECT node::BIGINT AS node, (epoch_us(time) - $first) / 86400e6 AS at_days, {', '.join(each.name for each in MEASURED)} "
    f"FROM host_days JOIN ({_NODES}) USING (host) "
    "WHERE time >= make_timestamp($first) AND time < make_timestamp($last)"
)


class HostDays(NamedTuple):
    """What was measured, by node and day since the recording began, which was at a 00:00."""

    row: Indexes  # nodes x days: which row of the others; -1: none
    values: Floats  # rows x MEASURED; NaN: not known

    @staticmethod
    def of(node: Indexes, at_days: Floats, values: Floats, faults: Faults) -> HostDays:
        """Return rows of values of *node*, measured *at_days*, as far as their nodes had not failed on that day before.

        What a fault did to its host is no warning of it.
        """
        row = np.full((len(faults.nodes), int(faults.end_days) + 1), -1, dtype=np.intp)
        row[node, at_days.astype(np.intp)] = np.arange(len(node))
        began = np.isfinite(faults.start) & (faults.start >= 0.0)
        failed, start = faults.node[began], faults.start[began]
        day = start.astype(np.intp)
        first = row[failed, day]
        late = first >= 0
        late[late] = at_days[first[late]] >= start[late]
        row[failed[late], day[late]] = -1
        return HostDays(row, values)

    def at(self, node: Indexes, day: Indexes) -> Floats:
        """Return what was measured of units: units x MEASURED, NaN where nothing was."""
        row = self.row[node, day]
        found = np.full((len(row), len(MEASURED)), np.nan)
        found[row >= 0] = self.values[row[row >= 0]]
        return found


def host_days(connection: Any, faults: Faults, first_us: int, last_us: int) -> HostDays | None:
    """Return what is on record of the nodes of *faults* from *first_us* until *last_us*; None: nothing.

    *faults*: of a recording that began at *first_us*. Its nodes, and no others, in its order: meanwhile hosts register.
    """
    asked = {"first": first_us, "last": last_us, "hosts": " ".join(faults.nodes)}
    nodes, at_days, values = [], [], []
    for batch in connection.sql(_ROWS, params=asked).to_arrow_reader(BATCH_ROWS):
        node, day, *columns = (column.to_numpy(zero_copy_only=False) for column in batch.columns)
        nodes.append(node)
        at_days.append(day)
        values.append(np.stack(columns, axis=1))
    if not nodes:
        return None
    return HostDays.of(
        np.concatenate(nodes).astype(np.intp),
        np.concatenate(at_days),
        np.concatenate(values),
        faults,
    )
