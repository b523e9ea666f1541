"""Whether files rest, so that half a copy is not taken, and what becomes of those that never do."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from .reading import File

#: Each so many looks without rest, a minute of them, what files hold is compared at the last two.
RESTLESS_LOOKS = 12


class Resting:
    """What the looks before saw: an exporter may write every few seconds, and a mount tell other times at each look."""

    def __init__(self) -> None:
        self._stamps: object = None
        self._looks = 0
        self._held: dict[str, bytes] = {}

    def look(self, stamps: object) -> bool:
        """Take what a look saw of the files (names, times, sizes); say whether they rest: it is as at the one before."""
        rests, self._stamps = stamps == self._stamps, stamps
        self._looks = 0 if rests else self._looks % RESTLESS_LOOKS + 1
        return rests

    @property
    def is_to_compare(self) -> bool:
        """What the files hold is to be read and handed to `compare`, though they do not rest."""
        return self._looks >= RESTLESS_LOOKS - 1

    def compare(self, files: Iterable[File]) -> str | None:
        """Return "" if *files* hold what they held at the look before, else words on one that does not; None: ask at the next."""
        before, self._held = (
            self._held,
            {one.name: hashlib.sha256(one.data).digest() for one in files},
        )
        if self._looks < RESTLESS_LOOKS:
            return None
        names = before.keys() | self._held.keys()
        changed = [name for name in names if before.get(name) != self._held.get(name)]
        if not changed:
            return ""
        return (
            f"{min(changed)}: was written again and again for a minute, and says something else each time: it may be half "
            "written. Write it only when there is news"
        )
