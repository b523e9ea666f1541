"""Status of each collector of each host: ok, no-data, blind, error, hung."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..arrays import Bytes, Flags, Indexes, Times
from ..counter_deltas import Boots, capacity_for, grown
from .tables import DeviceTable

#: `collector.outcome_state` as text.
OUTCOMES = ("ok", "no-data", "blind", "error", "hung")
OK, NO_DATA, BLIND, ERROR, HUNG = range(5)

#: Further collectors of a host are ignored.
COLLECTORS_PER_HOST_MAX = 64
MESSAGE_CHARACTERS_MAX = 240
#: An agent reports all its collectors at once: a collector not reported for this long was switched
#: off. A status received first as text has its row by then.
GONE_NS = 60_000_000_000
#: Limit of distinct views shared between hosts.
SHARED_MAX = 1000


class CollectorStatus(NamedTuple):
    """The last outcome of a collector."""

    name: str
    outcome: int
    message: str

    @property
    def outcome_name(self) -> str:
        """Return the outcome as text, or as a number if only a newer agent knows it."""
        return OUTCOMES[self.outcome] if self.outcome < len(OUTCOMES) else str(self.outcome)


class CollectorStatuses:
    """Outcomes per host. `of` returns an immutable view that is replaced only when an outcome
    changes.

    Hosts with the same outcomes share a view.
    """

    def __init__(self) -> None:
        self._views: dict[int, tuple[CollectorStatus, ...]] = {}
        self._shared: dict[tuple[CollectorStatus, ...], tuple[CollectorStatus, ...]] = {}
        #: Per row of the table: the last outcome + 1; 0: none yet.
        self._row_outcomes: Bytes = np.zeros(64, dtype=np.uint8)
        #: Per host: the boot of its rows, and the boot time of the first and last of them.
        self._boot: Boots = np.zeros(64, dtype=np.uint16)
        self._first_ns: Times = np.zeros(64, dtype=np.int64)
        self._last_ns: Times = np.zeros(64, dtype=np.int64)
        #: Host -> collector reported only as text -> boot time of the host's last row at that time.
        self._message_only: dict[int, dict[str, int]] = {}

    def update(self, host: int, name: str, outcome: int, message: str) -> None:
        """Set an outcome and its message, from the event collector.outcome."""
        self._merge(host, [CollectorStatus(name, outcome, message[:MESSAGE_CHARACTERS_MAX])])
        if any(status.name == name for status in self.of(host)):
            self._fit(host + 1)
            self._message_only.setdefault(host, {})[name] = int(self._last_ns[host])

    def _fit(self, hosts: int) -> None:
        if self._boot.size < hosts:
            capacity = capacity_for(hosts, self._boot.size)
            for name in ("_boot", "_first_ns", "_last_ns"):
                setattr(self, name, grown(getattr(self, name), capacity))

    def advance(self, rows: Indexes, table: DeviceTable) -> None:
        """Update the outcomes of *rows*; a message stays until its outcome changes."""
        if self._row_outcomes.shape[0] < table.devices.capacity:
            self._row_outcomes = grown(self._row_outcomes, table.devices.capacity)
        states = np.minimum(table.state("outcome_state")[rows], 254).astype(np.uint8) + np.uint8(1)
        states[~table.known("outcome_state")[rows]] = 0
        changed = np.flatnonzero((states != self._row_outcomes[rows]) & (states > 0))
        self._row_outcomes[rows[changed]] = states[changed]
        hosts: dict[int, list[CollectorStatus]] = {}
        for row, state in zip(rows[changed].tolist(), states[changed].tolist(), strict=True):
            status = CollectorStatus(table.devices.names[row], state - 1, "")
            hosts.setdefault(int(table.devices.host[row]), []).append(status)
        self._forget_stopped(rows, table)
        for host, changes in hosts.items():
            before = {status.name: status.outcome for status in self.of(host)}
            self._merge(host, [s for s in changes if before.get(s.name) != s.outcome])

    def forget(self, table: DeviceTable, row: int) -> None:
        """Remove the collector in *row*, which is being reassigned."""
        if row < self._row_outcomes.size and self._row_outcomes[row]:
            self._row_outcomes[row] = 0
            self._drop(int(table.devices.host[row]), table.devices.names[row])

    def _forget_stopped(self, rows: Indexes, table: DeviceTable) -> None:
        """Remove collectors that hosts no longer report because they were switched off."""
        host, boot, read_ns = table.devices.host, table.boot, table.read_ns
        self._fit(int(host.max(initial=0)) + 1)
        host_of_row = host[rows]
        is_new = np.unique(host_of_row[self._boot[host_of_row] != boot[rows]])
        reporting = np.unique(host_of_row)
        latest = np.zeros(self._last_ns.size, dtype=np.int64)
        np.maximum.at(latest, host_of_row, read_ns[rows])
        self._boot[host_of_row] = boot[rows]
        self._first_ns[is_new] = latest[is_new]
        self._last_ns[reporting] = latest[reporting]
        since_ns = np.where(boot == self._boot[host], read_ns, self._first_ns[host])
        gone: Flags = (self._row_outcomes[: host.size] > 0) & (
            self._last_ns[host] - since_ns > GONE_NS
        )
        for row in np.flatnonzero(gone).tolist():
            self._row_outcomes[row] = 0
            self._drop(int(host[row]), table.devices.names[row])
        for reporting_host in (
            self._message_only.keys() & set(reporting.tolist()) if self._message_only else ()
        ):
            self._forget_messages(reporting_host, table)

    def _forget_messages(self, host: int, table: DeviceTable) -> None:
        """Remove collectors reported as text only that no longer are, as after a restart."""
        message_only = self._message_only[host]
        for name, reported_ns in list(message_only.items()):
            row = table.devices.find(host, name)
            if row >= 0 and self._row_outcomes[row]:
                del message_only[name]  # from now on its row has the outcome
            elif not 0 <= self._last_ns[host] - reported_ns <= GONE_NS:
                del message_only[name]
                self._drop(host, name)
        if not message_only:
            del self._message_only[host]

    def _drop(self, host: int, name: str) -> None:
        self._set_view(host, {s.name: s for s in self.of(host) if s.name != name})

    def _merge(self, host: int, changes: list[CollectorStatus]) -> None:
        statuses = {status.name: status for status in self.of(host)}
        for status in changes:
            if status.name in statuses or len(statuses) < COLLECTORS_PER_HOST_MAX:
                statuses[status.name] = status
        self._set_view(host, statuses)

    def _set_view(self, host: int, statuses: dict[str, CollectorStatus]) -> None:
        view = tuple(statuses[name] for name in sorted(statuses))
        if len(self._shared) >= SHARED_MAX:
            self._shared.clear()  # users of a view keep it
        self._views[host] = self._shared.setdefault(view, view)

    def of(self, host: int) -> tuple[CollectorStatus, ...]:
        """Return the host's outcomes, sorted by name."""
        return self._views.get(host, ())
