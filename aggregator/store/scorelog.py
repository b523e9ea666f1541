"""Which scores are written: those that changed, and every host's every five minutes."""

from __future__ import annotations

from ..verdicts import HostScore, Snapshot

#: An unchanged score is written again after this long; hosts are spread over it by their index.
REPEAT_SECONDS = 300
#: What counts as a change.
SCORE_STEP = 0.005
SPEED_STEP = 0.02
HAZARD_STEP_RATIO = 0.10


class ScoreLog:
    """Remembers what was written of each host."""

    def __init__(self) -> None:
        self._written: dict[str, tuple[HostScore, int]] = {}

    def changed(self, snapshot: Snapshot) -> list[HostScore]:
        """Return the hosts to write now, and take them as written."""
        chosen = [one for one in snapshot.hosts if self._due(one, snapshot.computed_ns)]
        for one in chosen:
            self._written[one.host] = one, snapshot.computed_ns
        return chosen

    def _due(self, one: HostScore, now_ns: int) -> bool:
        last = self._written.get(one.host)
        if last is None:
            return True
        before, written_ns = last
        spread = one.node_index % REPEAT_SECONDS
        periods = [(t // 1_000_000_000 + spread) // REPEAT_SECONDS for t in (written_ns, now_ns)]
        return periods[0] != periods[1] or _differs(before, one)


def _differs(before: HostScore, now: HostScore) -> bool:
    if (before.state, before.reason, before.simulated) != (now.state, now.reason, now.simulated):
        return True
    speed = abs(before.relative_speed - now.relative_speed) > SPEED_STEP
    known = (before.relative_speed == before.relative_speed) == (
        now.relative_speed == now.relative_speed
    )
    hazard = abs(before.hazard_per_hour - now.hazard_per_hour)
    return (
        abs(before.score - now.score) > SCORE_STEP
        or speed
        or not known
        or hazard > HAZARD_STEP_RATIO * before.hazard_per_hour
    )
