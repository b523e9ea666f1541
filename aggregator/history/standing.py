"""Findings of the store itself: each told once when it begins, and once when it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..verdicts import OURSELVES, Finding


class Standing:
    """`now_ns` is set by who owns it."""

    def __init__(self, submit: Callable[[Sequence[Finding]], None]) -> None:
        self.now_ns = 0
        self._submit = submit
        self._standing: dict[tuple[str, str], Finding] = {}

    def find(self, name: str, words: str, clears_when: str, subject: str = "") -> None:
        """Say that something is so, in the words of the first time."""
        if (name, subject) not in self._standing:
            one = Finding(OURSELVES, name, subject, words, self.now_ns, clears_when=clears_when)
            self._standing[name, subject] = one
            self._submit([one])

    def clear(self, name: str, subject: str = "") -> None:
        """Say that it is no longer so. Nothing happens when it was not."""
        one = self._standing.pop((name, subject), None)
        if one is not None:
            self._submit([replace(one, cleared_ns=self.now_ns)])


def gigabytes(count: int) -> str:
    """Return bytes as a person reads them."""
    return f"{count / 1e9:.3g} GB"
