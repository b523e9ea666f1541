"""Slots of a kind of call, shared by login: no login can take those of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import ResourceExhausted
from ..principal import current_login

#: Maximum share of the slots per login. Callers without a login count as a single caller with all
#: slots.
LOGIN_SHARE_MAX = 0.5
#: A login that holds no slot gets one until this many times the slots are held.
OVERCOMMIT = 2


class CallerSlots:
    """Belongs to an event loop."""

    def __init__(self) -> None:
        self._held = Counter[str]()

    @property
    def count(self) -> int:
        """Number of held slots."""
        return self._held.total()

    @contextmanager
    def slot(self, slots_max: int, reason: str, retry_seconds: float) -> Iterator[None]:
        """Hold a slot of *slots_max* for the caller. Raises ResourceExhausted with *reason*."""
        login = current_login()
        own_max = max(1, int(slots_max * LOGIN_SHARE_MAX)) if login else slots_max
        total_max = slots_max * OVERCOMMIT if login and not self._held[login] else slots_max
        if self.count >= total_max or self._held[login] >= own_max:
            share = ""
            if login:
                share = f" (the login {login!r} has {self._held[login]}, at most {own_max})"
            raise ResourceExhausted(reason + share, retry_seconds)
        self._held[login] += 1
        try:
            yield
        finally:
            self._held[login] -= 1
            self._held += Counter()  # drop logins that hold none
