"""What each collector of each host says of itself: ok, no-data, blind, error, hung."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .arrays import Bytes, Indexes, grown
from .tables import DeviceTable

#: `collector.outcome_state` in words.
OUTCOMES = ("ok", "no-data", "blind", "error", "hung")
OK, NO_DATA, BLIND, ERROR, HUNG = range(5)

#: More collectors of one host than this are not kept.
SOURCES_PER_HOST_MAX = 64
WORDS_CHARACTERS_MAX = 240
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

    def words(self, host: int, name: str, outcome: int, words: str) -> None:
        """An outcome changed, with its words (the event collector.outcome)."""
        self._put(host, [Source(name, outcome, words[:WORDS_CHARACTERS_MAX])])

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
        for host, several in hosts.items():
            before = {source.name: source.outcome for source in self.of(host)}
            self._put(host, [s for s in several if before.get(s.name) != s.outcome])

    def _put(self, host: int, several: list[Source]) -> None:
        held = {source.name: source for source in self.of(host)}
        for source in several:
            if source.name in held or len(held) < SOURCES_PER_HOST_MAX:
                held[source.name] = source
        view = tuple(held[name] for name in sorted(held))
        if len(self._shared) >= SHARED_MAX:
            self._shared.clear()  # whoever has a view keeps it
        self._views[host] = self._shared.setdefault(view, view)

    def of(self, host: int) -> tuple[Source, ...]:
        """Return the host's outcomes, by name."""
        return self._views.get(host, ())
