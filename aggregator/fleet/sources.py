"""What each collector of each host says of itself: ok, no-data, blind, error, hung."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .arrays import Indexes, Words, grown
from .tables import DeviceTable

#: `collector.outcome_state` in words.
OUTCOMES = ("ok", "no-data", "blind", "error", "hung")
OK, NO_DATA, BLIND, ERROR, HUNG = range(5)

#: More collectors of one host than this are not kept.
SOURCES_PER_HOST_MAX = 64
WORDS_CHARACTERS_MAX = 240


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
    """Outcomes per host. `of` returns an immutable view that changes only when an outcome does."""

    def __init__(self) -> None:
        self._hosts: dict[int, dict[str, Source]] = {}
        self._views: dict[int, tuple[Source, ...]] = {}
        #: Of each row of the table: its outcome + 1 as last taken over; 0 before.
        self._taken: Words = np.zeros(64, dtype=np.uint64)

    def words(self, host: int, name: str, outcome: int, words: str) -> None:
        """An outcome changed, with its words (the event collector.outcome)."""
        self._put(host, Source(name, outcome, words[:WORDS_CHARACTERS_MAX]))

    def advance(self, rows: Indexes, table: DeviceTable) -> None:
        """Take over the outcome states of *rows*; words stay while the outcome does."""
        if self._taken.shape[0] < table.devices.capacity:
            self._taken = grown(self._taken, table.devices.capacity)
        states = np.minimum(table.state("outcome_state")[rows], 254) + np.uint64(1)
        states[~table.known("outcome_state")[rows]] = 0
        changed = np.flatnonzero((states != self._taken[rows]) & (states > 0))
        for row, state in zip(rows[changed], states[changed], strict=True):
            self._taken[row] = state
            host, name = int(table.devices.host[row]), table.devices.names[row]
            held = self._hosts.get(host, {}).get(name)
            if held is None or held.outcome != int(state) - 1:
                self._put(host, Source(name, int(state) - 1, ""))

    def _put(self, host: int, source: Source) -> None:
        held = self._hosts.setdefault(host, {})
        if source.name in held or len(held) < SOURCES_PER_HOST_MAX:
            held[source.name] = source
            self._views.pop(host, None)

    def of(self, host: int) -> tuple[Source, ...]:
        """Return the host's outcomes, by name."""
        view = self._views.get(host)
        if view is None:
            held = self._hosts.get(host, {})
            view = self._views[host] = tuple(held[name] for name in sorted(held))
        return view
