"""What each collector of each host says of itself: ok, no-data, blind, error, hung."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..counter_deltas import Boots, Bytes, Flags, Indexes, Times, grown, room
from .tables import DeviceTable

#: `collector.outcome_state` in words.
OUTCOMES = ("ok", "no-data", "blind", "error", "hung")
OK, NO_DATA, BLIND, ERROR, HUNG = range(5)

#: More collectors of one host than this are not kept.
SOURCES_PER_HOST_MAX = 64
WORDS_CHARACTERS_MAX = 240
#: An agent tells of all its collectors at once: one that it has not told of for so long is switched off. What is told
#: first in words has its row by then.
GONE_NS = 60_000_000_000
#: So many different views are shared between hosts.
SHARED_MAX = 1000


class Source(NamedTuple):
    """One collector's last outcome."""

    name: str
    outcome: int
    words: str

    @property
    def outcome_word(self) -> str:
        """The outcome as people read it; a number of a newer agent is shown as it is."""
        return OUTCOMES[self.outcome] if self.outcome < len(OUTCOMES) else str(self.outcome)


class Sources:
    """Outcomes per host. `of` returns an immutable view that changes only when an outcome does.

    The collectors of most hosts say the same: one view is theirs.
    """

    def __init__(self) -> None:
        self._views: dict[int, tuple[Source, ...]] = {}
        self._shared: dict[tuple[Source, ...], tuple[Source, ...]] = {}
        #: Of each row of the table: its outcome + 1 as last taken over; 0 before.
        self._taken: Bytes = np.zeros(64, dtype=np.uint8)
        #: Of each host: the boot that its rows are of, and the boot time of the first and the last of them.
        self._boot: Boots = np.zeros(64, dtype=np.uint16)
        self._first_ns: Times = np.zeros(64, dtype=np.int64)
        self._last_ns: Times = np.zeros(64, dtype=np.int64)
        #: Host -> collector told of in words alone -> the host's last row then.
        self._unread: dict[int, dict[str, int]] = {}

    def words(self, host: int, name: str, outcome: int, words: str) -> None:
        """An outcome changed, with its words (the event collector.outcome)."""
        self._put(host, [Source(name, outcome, words[:WORDS_CHARACTERS_MAX])])
        if any(one.name == name for one in self.of(host)):
            self._fit(host + 1)
            self._unread.setdefault(host, {})[name] = int(self._last_ns[host])

    def _fit(self, hosts: int) -> None:
        if self._boot.size < hosts:
            capacity = room(hosts, self._boot.size)
            for name in ("_boot", "_first_ns", "_last_ns"):
                setattr(self, name, grown(getattr(self, name), capacity))

    def advance(self, rows: Indexes, table: DeviceTable) -> None:
        """Take over the outcome states of *rows*; words stay while the outcome does."""
        if self._taken.shape[0] < table.devices.capacity:
            self._taken = grown(self._taken, table.devices.capacity)
        states = np.minimum(table.state("outcome_state")[rows], 254).astype(np.uint8) + np.uint8(1)
        states[~table.known("outcome_state")[rows]] = 0
        changed = np.flatnonzero((states != self._taken[rows]) & (states > 0))
        self._taken[rows[changed]] = states[changed]
        hosts: dict[int, list[Source]] = {}
        for row, state in zip(rows[changed].tolist(), states[changed].tolist(), strict=True):
            source = Source(table.devices.names[row], state - 1, "")
            hosts.setdefault(int(table.devices.host[row]), []).append(source)
        self._forget(rows, table)
        for host, several in hosts.items():
            before = {source.name: source.outcome for source in self.of(host)}
            self._put(host, [s for s in several if before.get(s.name) != s.outcome])

    def forget(self, table: DeviceTable, row: int) -> None:
        """Let go of the collector in *row*, which is another's from now on."""
        if row < self._taken.size and self._taken[row]:
            self._taken[row] = 0
            self._drop(int(table.devices.host[row]), table.devices.names[row])

    def _forget(self, rows: Indexes, table: DeviceTable) -> None:
        """Let go of what *rows*, just told of, show to be told of no more: collectors that are switched off."""
        host, boot, read_ns = table.devices.host, table.boot, table.read_ns
        self._fit(int(host.max(initial=0)) + 1)
        of = host[rows]
        is_new = np.unique(of[self._boot[of] != boot[rows]])
        heard = np.unique(of)
        latest = np.zeros(self._last_ns.size, dtype=np.int64)
        np.maximum.at(latest, of, read_ns[rows])
        self._boot[of] = boot[rows]
        self._first_ns[is_new] = latest[is_new]
        self._last_ns[heard] = latest[heard]
        since_ns = np.where(boot == self._boot[host], read_ns, self._first_ns[host])
        gone: Flags = (self._taken[: host.size] > 0) & (self._last_ns[host] - since_ns > GONE_NS)
        for row in np.flatnonzero(gone).tolist():
            self._taken[row] = 0
            self._drop(int(host[row]), table.devices.names[row])
        for one in self._unread.keys() & set(heard.tolist()) if self._unread else ():
            self._forget_words(one, table)

    def _forget_words(self, host: int, table: DeviceTable) -> None:
        """Let go of what was told of in words, and then of no more: told again after a restart of ours, say."""
        told = self._unread[host]
        for name, at_ns in list(told.items()):
            row = table.devices.find(host, name)
            if row >= 0 and self._taken[row]:
                del told[name]  # its row tells from now on
            elif not 0 <= self._last_ns[host] - at_ns <= GONE_NS:
                del told[name]
                self._drop(host, name)
        if not told:
            del self._unread[host]

    def _drop(self, host: int, name: str) -> None:
        self._keep(host, {source.name: source for source in self.of(host) if source.name != name})

    def _put(self, host: int, several: list[Source]) -> None:
        held = {source.name: source for source in self.of(host)}
        for source in several:
            if source.name in held or len(held) < SOURCES_PER_HOST_MAX:
                held[source.name] = source
        self._keep(host, held)

    def _keep(self, host: int, held: dict[str, Source]) -> None:
        view = tuple(held[name] for name in sorted(held))
        if len(self._shared) >= SHARED_MAX:
            self._shared.clear()  # whoever has a view keeps it
        self._views[host] = self._shared.setdefault(view, view)

    def of(self, host: int) -> tuple[Source, ...]:
        """Return the host's outcomes, by name."""
        return self._views.get(host, ())
