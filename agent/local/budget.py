"""What a user of the host may cost the agent: a share of one processor, with a reserve for a burst. Pure."""

from __future__ import annotations

#: Of one processor, for all connections of one user together.
CPU_SHARE_MAX = 0.1
#: What may be used at once by one who has used nothing for a while.
BURST_SECONDS = 0.25
#: Users that are remembered; those who used least of late are forgotten.
USERS_MAX = 256


class Budget:
    """Seconds that each user has left."""

    def __init__(self) -> None:
        self._left: dict[int, tuple[float, float]] = {}  # user -> (seconds left, as of)

    def left_seconds(self, user: int, now: float) -> float:
        """Return what a user may use now; at 0 or less nothing more is read from it."""
        left, since = self._left.get(user, (BURST_SECONDS, now))
        return min(BURST_SECONDS, left + max(0.0, now - since) * CPU_SHARE_MAX)

    def spend(self, user: int, seconds: float, now: float) -> None:
        """Note what a user has cost."""
        self._left[user] = self.left_seconds(user, now) - seconds, now
        if len(self._left) > USERS_MAX:
            del self._left[max(self._left, key=lambda one: self.left_seconds(one, now))]

    def again(self, user: int, now: float) -> float:
        """Return when there is something left again; 0 if there is."""
        left = self.left_seconds(user, now)
        return now - left / CPU_SHARE_MAX if left < 0 else 0.0
