"""Findings that hold now: kept in the fleet, ended when they no longer occur, told to the store."""

from __future__ import annotations

from dataclasses import replace

from ..fleet.fleet import Fleet
from ..verdicts import OURSELVES, Finding

#: A finding that is told by an occurrence, not by a state, ends when it has not occurred for so long.
EXPIRES_SECONDS = 300
_EXPIRES_NS = EXPIRES_SECONDS * 1_000_000_000

Key = tuple[str, str, str]  # host, name, subject


class Findings:
    """Owned by the loop's thread."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._last_ns: dict[Key, int] = {}  # only of those that expire
        self._told: dict[Key, Finding] = {}
        self._news: list[Finding] = []

    def __contains__(self, key: Key) -> bool:
        return key in self._fleet.findings

    def find(
        self, host: str, name: str, words: str, now_ns: int, *, subject: str = "", expires: bool
    ) -> None:
        """Say that something is so; *expires* after EXPIRES_SECONDS without being said again."""
        key = host, name, subject
        if expires:
            self._last_ns[key] = now_ns
        if key not in self:
            finding = Finding(host, name, subject, words, now_ns)
            if self._fleet.find(finding):
                self._told[key] = finding
                self._news.append(finding)

    def restore(self, finding: Finding, now_ns: int, *, expires: bool) -> None:
        """Take over what was so before our restart, since when it was."""
        key = finding.host, finding.name, finding.subject
        if expires:
            self._last_ns[key] = now_ns
        self._told[key] = finding
        self._fleet.find(finding)

    def say_not_stored(self, words: str, now_ns: int) -> None:
        """Say why nothing is stored; "" when all is. It is on record once the disk takes it."""
        if words:
            said = f"nothing is stored and nothing receipted: {words}; agents keep their readings"
            self.find(OURSELVES, "store.failing", said, now_ns, expires=False)
        else:
            self.clear(OURSELVES, "store.failing", now_ns)

    def clear(
        self, host: str, name: str, now_ns: int, *, subject: str = "", because: str = ""
    ) -> None:
        """Say that something is no longer so, and what ended it. Nothing happens when it was not so."""
        key = host, name, subject
        self._last_ns.pop(key, None)
        self._fleet.clear(host, name, subject)
        finding = self._told.pop(key, None)
        if finding is not None:
            ended = because or finding.clears_when
            self._news.append(replace(finding, cleared_ns=now_ns, clears_when=ended))

    def sweep(self, now_ns: int) -> None:
        """Clear what has expired."""
        old = [key for key, last in self._last_ns.items() if now_ns - last > _EXPIRES_NS]
        for host, name, subject in old:
            self.clear(host, name, now_ns, subject=subject)

    def changes(self, now_ns: int) -> list[Finding]:
        """Return what came and what went (with when it did) since the last call: for the store."""
        held = dict(self._fleet.findings)
        news, self._news = self._news, []
        came = [one for key, one in held.items() if self._told.get(key) != one]
        went = [
            replace(one, cleared_ns=now_ns)
            for key, one in self._told.items()
            if held.get(key) != one
        ]
        self._told = held
        return news + went + came
