"""All hosts of a judgement as a sequence: what is said of one is made when it is asked for, but for the unwell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from ..fleet.arrays import Codes, Flags, Floats, Times
from ..hazard.model import PRIOR, SPREAD_ASSUMED
from ..verdicts import SIMULATED_SILENT_SECONDS_MAX, HostScore, State
from .experience import NO_OUTCOMES, Outcomes
from .scoring import Own, Subject, score_host


@dataclass(frozen=True, slots=True)
class Subjects:
    """What every host is scored from beside its symptoms, by node index. Arrays of its own, never changed."""

    names: Sequence[str]
    simulated: Flags
    gpus: Codes
    heard_ns: Times
    heard: Flags  # now
    relative_speed: Floats  # of its slowest computing GPU
    speed_error: Floats
    #: ln of each host's hazard before any evidence, what each feature added, and the features.
    log_base: Floats
    parts: Floats
    features: Floats
    model: str = PRIOR
    at_ns: int = 0
    spread: float = SPREAD_ASSUMED  # of the 90 % interval of a hazard, up and down
    outcomes: Outcomes = NO_OUTCOMES

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, host: int) -> Subject:
        return Subject(
            self.names[host],
            host,
            bool(self.simulated[host]),
            int(self.gpus[host]),
            int(self.heard_ns[host]),
            bool(self.heard[host]),
            float(self.relative_speed[host]),
            float(self.speed_error[host]),
            Own(
                self.model,
                float(self.log_base[host]),
                tuple(self.parts[host].tolist()),
                tuple(self.features[host].tolist()),
                self.at_ns,
                self.spread,
                self.outcomes,
            ),
        )

    @property
    def hazards_per_hour(self) -> Floats:
        """Each host's hazard before any symptom."""
        log_hazard = self.log_base + self.parts.sum(axis=1) + self.outcomes.log_factor
        return np.asarray(np.exp(log_hazard))


class Hosts(Sequence[HostScore]):
    """A score per host, by node index. *told*: of those that are not simply well."""

    def __init__(self, subjects: Subjects, told: Mapping[int, HostScore]) -> None:
        self.subjects, self.told = subjects, told

    def __len__(self) -> int:
        return len(self.subjects)

    @overload
    def __getitem__(self, host: int) -> HostScore: ...
    @overload
    def __getitem__(self, host: slice) -> tuple[HostScore, ...]: ...
    def __getitem__(self, host: int | slice) -> HostScore | tuple[HostScore, ...]:
        if isinstance(host, slice):
            return tuple(self._of(each) for each in range(*host.indices(len(self))))
        if not -len(self) <= host < len(self):
            raise IndexError(f"host {host} of {len(self)}")
        return self._of(host % len(self))

    def __iter__(self) -> Iterator[HostScore]:
        return map(self._of, range(len(self)))

    def _of(self, host: int) -> HostScore:
        return self.told.get(host) or score_host(self.subjects[host], ())

    def state(self, host: int) -> State:
        """Return the state of one, without making its score."""
        told = self.told.get(host)
        return told.state if told else State.HEALTHY

    def listed_count(self, now_ns: int) -> int:
        """Return how many belong in a list of hosts (`Snapshot.lists`), without making their scores."""
        silent_seconds = (now_ns - self.subjects.heard_ns) / 1e9
        ended = (self.subjects.heard_ns > 0) & (silent_seconds > SIMULATED_SILENT_SECONDS_MAX)
        return len(self) - int((ended & self.subjects.simulated).sum())

    def but(self, others: Mapping[int, HostScore]) -> Hosts:
        """Return the same with *others* in place of what is said of these hosts."""
        return Hosts(self.subjects, {**self.told, **others})
