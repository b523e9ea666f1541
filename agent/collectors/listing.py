"""What a host has, listed now and then: devices come and go while the agent runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from ...fingerprints.catalogue import PERIOD_SECONDS, Pace

T = TypeVar("T")


class Listing(Generic[T]):
    """The last list, and whether it is another one than before. Time is counted in turns."""

    def __init__(
        self,
        read: Callable[[], T],
        pace: Pace,
        *,
        seconds: int = 10,
        glance: Callable[[], object] | None = None,
    ) -> None:
        """*read* lists; it is called in the first turn and then about every *seconds*.

        *glance* is a cheap look, each turn: when it shows other than the turn before, *read* is called
        at once.
        """
        self._read, self._glance = read, glance
        self._glanced: object = None
        #: Whether the last glance showed another thing than the one before.
        self.is_shaken = False
        self._turns = max(1, seconds // PERIOD_SECONDS[pace])
        self._turns_left = 0
        self._current: list[T] = []

    @property
    def value(self) -> T:
        """The last list. IndexError before the first `renew`."""
        return self._current[0]

    def renew(self) -> bool:
        """Count a turn and list again when it is time; return whether the list has changed."""
        self._turns_left -= 1
        if self._glance is not None:
            before, self._glanced = self._glanced, self._glance()
            self.is_shaken = before != self._glanced
            self._turns_left = 0 if self.is_shaken else self._turns_left
        if self._turns_left > 0:
            return False
        self._turns_left = self._turns
        listed, self._current = self._current, [self._read()]
        return listed != self._current
