"""What advice and its outcomes tell judging: which hosts came back into service, and by how much hazards were too small."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log
from typing import NamedTuple

from ..verdicts import Evidence, Reason
from .queries import moment

#: No hazard is scaled by more than this, however few or many outcomes there are.
FACTOR_BOUNDS = (0.1, 10.0)
_SQL = (
    "SELECT time, outcome, hosts, interrupted, expected_interruptions FROM ops.outcomes "
    "WHERE expected_interruptions IS NOT NULL AND time <= {} ORDER BY time DESC"
)


class Outcomes(NamedTuple):
    """Interruptions that schedulers reported, and how many scores without their help had expected."""

    interruptions: int = 0
    expected: float = 0.0

    @property
    def factor(self) -> float:
        """By how much hazards were too small: with a Gamma prior worth one interruption few outcomes move little."""
        low, high = FACTOR_BOUNDS
        return min(max((1.0 + self.interruptions) / (1.0 + self.expected), low), high)

    @property
    def log_factor(self) -> float:
        """What they add to ln(hazard)."""
        return log(self.factor)

    def evidence(self, score_delta: float, at_ns: int) -> Evidence:
        """Return them as one contribution, which moved the score by so much."""
        words = (
            f"schedulers reported {self.interruptions:,} interruptions where {self.expected:,.1f} were expected: "
            f"{self.factor:.2g} times as many, with one of each added"
        )
        return Evidence(
            signal="hazard.outcomes",
            device="host",
            value=self.factor,
            unit="ratio",
            normal="1",
            log_hazard_delta=self.log_factor,
            relative_speed_factor=1.0,
            score_delta=score_delta,
            reason=Reason.NONE,
            words=words,
            observed_ns=at_ns,
            sql=_SQL.format(moment(at_ns)),
        )


#: Nobody has reported any.
NO_OUTCOMES = Outcomes()


class Return(NamedTuple):
    """A host is back in service, and watched until then."""

    since_ns: int
    until_ns: int


@dataclass(frozen=True, slots=True)
class Experience:
    """As it is known at one judgement; `returned` by host."""

    returned: Mapping[str, Return] = field(default_factory=dict[str, Return])
    outcomes: Outcomes = NO_OUTCOMES


NOTHING = Experience()
