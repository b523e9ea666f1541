"""Slots of one kind of call, shared by login: no login can take those of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import ResourceExhausted
from ..principal import current_login

#: A login holds at most this share of the slots. Callers without a login are one caller, and have all.
LOGIN_SHARE_MAX = 0.5
#: A login without a slot gets one up to this many times the slots.
OVERCOMMIT = 2


class CallerSlots:
    """Belongs to one loop."""

    def __init__(self) -> None:
        self._held = Counter[str]()

    @property
    def count(self) -> int:
        """How many slots are held."""
        return self._held.total()

    @contextmanager
    def slot(self, slots_max: int, reason: str, retry_seconds: float) -> Iterator[None]:
        """Hold one of *slots_max* slots for the caller. Raises ResourceExhausted with *reason*."""
        login = current_login()
        own_max = max(1, int(slots_max * LOGIN_SHARE_MAX)) if login else slots_max
        total_max = slots_max * OVERCOMMIT if login and not self._held[login] else slots_max
        if self.count >= total_max or self._held[login] >= own_max:
            share = (
                f" (the login {login!r} has {self._held[login]}, at most {own_max})"
                if login
                else ""
            )
            raise ResourceExhausted(reason + share, retry_seconds)
        self._held[login] += 1
        try:
            yield
        finally:
            self._held[login] -= 1
            self._held += Counter()  # without logins that hold none
