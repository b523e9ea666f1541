"""What runs where by a scheduler's word: gangs, their size, and how often they write checkpoints. Each until it ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

#: At once, and hosts of all of them together.
GANGS_MAX, HOSTS_OF_ALL_MAX = 50_000, 200_000


class Gang(NamedTuple):
    """One workload. `gpus` 0: all that its hosts have; `checkpoint_seconds` 0: not told."""

    workload: str
    hosts: tuple[str, ...]
    gpus: int
    checkpoint_seconds: float
    until_ns: int
    by: str
    told_ns: int


class Gangs:
    """Those that stand, by workload and by host."""

    def __init__(self, told: Iterable[Gang] = ()) -> None:
        self._gangs: dict[str, Gang] = {}
        self._of_host: dict[str, dict[str, Gang]] = {}
        self._hosts = 0
        for one in told:
            self.tell(one)

    def __len__(self) -> int:
        return len(self._gangs)

    def room_for(self, told: Iterable[Gang]) -> bool:
        """Say whether *told* may be told of, too."""
        new = {one.workload: one for one in told}
        kept = [self._gangs[name] for name in new.keys() & self._gangs.keys()]
        hosts = self._hosts - sum(len(one.hosts) for one in kept)
        hosts += sum(len(one.hosts) for one in new.values())
        return len(self._gangs.keys() | new.keys()) <= GANGS_MAX and hosts <= HOSTS_OF_ALL_MAX

    def count_with(self, told: Iterable[Gang], ended: Iterable[str]) -> int:
        """Return how many there would be with *told*, and without *ended*."""
        return len((self._gangs.keys() | {one.workload for one in told}) - set(ended))

    def tell(self, one: Gang) -> None:
        """Keep *one*, in place of what was told of its workload."""
        self.end(one.workload)
        self._gangs[one.workload] = one
        self._hosts += len(one.hosts)
        for host in one.hosts:
            self._of_host.setdefault(host, {})[one.workload] = one

    def end(self, workload: str) -> bool:
        """Forget *workload*; say whether it was known."""
        gone = self._gangs.pop(workload, None)
        if gone is None:
            return False
        self._hosts -= len(gone.hosts)
        for host in set(gone.hosts):
            there = self._of_host[host]
            del there[workload]
            if not there:
                del self._of_host[host]
        return True

    def expire(self, now_ns: int) -> list[str]:
        """Forget what nobody told again, and return its names."""
        over = [name for name, one in self._gangs.items() if one.until_ns <= now_ns]
        for name in over:
            self.end(name)
        return over

    def leap(self, leapt_ns: int, now_ns: int) -> list[Gang]:
        """Our clock, which says *now_ns*, was set forward by *leapt_ns*: let what was told before last for as long as it
        would have, and return that."""
        before = [one for one in self._gangs.values() if one.told_ns <= now_ns - leapt_ns]
        moved = [one._replace(until_ns=one.until_ns + leapt_ns) for one in before]
        for one in moved:
            self.tell(one)
        return moved

    def on(self, host: str) -> Gang | None:
        """Return the gang on *host*, the largest of several; None: nobody has told of one."""
        there = self._of_host.get(host)
        if not there:
            return None
        return max(there.values(), key=lambda one: (len(one.hosts), one.gpus, one.workload))
